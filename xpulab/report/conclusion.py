"""The last line of a report: which phase took longest, and how to make the call faster."""

from __future__ import annotations

from collections import Counter

from xpulab.report.record import FitRecord
from xpulab.report.rendering import counted, format_seconds

__all__ = ["conclusion", "slowest_engine", "split"]

#: Descriptions of the parts of a call.
_DOING = {
    "copy": "copying the rows into shared memory",
    "queue": "waiting until another call had ended",
    "transfer": "moving rows between the host and the devices",
    "compile": "finishing kernels for the devices",
    "kernel": "computing on the devices",
    "import": "importing PyTorch on the engines, once in their life,",
    "forward": "computing the outputs of the module",
    "backward": "computing the gradients, and adding them over the engines",
    "communicate": "exchanging results between the engines",
    "wait": "engines that waited for each other",
    "other": "work of the engines beside their devices",
}
#: If an engine is busy longer than the mean by more than the first percentage, the report names the engine. If it is
#: busy longer by more than the second, the report gives advice.
_WORD, _ADVICE = 5, 25
#: A call of fewer seconds gets no advice on its parts.
_SHORT = 0.5
#: An iteration of fewer seconds consists mostly of messages and waiting.
_QUICK = 0.01
#: If a larger part of a call's time was spent outside of the engines, the report says how it was spent.
_UNSEEN = 0.05


def conclusion(report: FitRecord) -> str:
    """Say which phase took longest, and give advice; empty while the call runs, or if nothing was measured."""
    if report.status == "running" or report.longest is None:
        return ""
    name, seconds = report.longest
    said = [f"{_DOING[name]} took longest, {format_seconds(seconds)} of {format_seconds(report.elapsed)}"]
    if report.converged is False:
        said.append("it ended at max_iter, before it converged: raise max_iter, or tol")
    if report.elapsed >= _SHORT and (advice := _advice(report, name)):
        said.append(advice)
    text = "; ".join(said)
    return text[0].upper() + text[1:]


def slowest_engine(report: FitRecord) -> str:
    """Say which engine was busy longest, and by how much; empty if the difference is small."""
    if report.slowest is None or report.imbalance is None or report.imbalance < _WORD:
        return ""
    return f"engine {report.slowest.rank}, busy {report.imbalance:.0f} % longer than the mean"


def split(report: FitRecord) -> str:
    """List the parts of the call's whole time; empty while it runs, and if the engines took nearly all or none."""
    engines = max((engine.total for engine in report.engines), default=0.0)
    rest = report.elapsed - engines - report.sent - report.waited
    if not report.engines or report.status == "running" or report.elapsed - engines < _UNSEEN * report.elapsed:
        return ""
    parts = {
        "to copy the rows into shared memory": report.sent,
        "until another call had ended": report.waited,
        "on the engines": engines,
        "for messages and preparation": max(0.0, rest),
    }
    named = [
        f"{format_seconds(seconds)} {what}" for what, seconds in parts.items() if seconds >= 0.005 * report.elapsed
    ]
    return f"{format_seconds(report.elapsed)} in all: {', '.join(named)}"


def _advice(report: FitRecord, name: str) -> str:
    iterations = len(report.iterations)
    if name in ("copy", "transfer"):
        return "to send them once for several calls, type: rows = xpulab.current_cluster().scatter(X), and pass rows"
    if name == "compile":
        return "the next call takes the compiled kernels from a cache"
    uneven = report.imbalance is not None and report.imbalance >= _ADVICE
    if uneven and name in ("kernel", "forward", "backward", "wait"):
        return _about_slowest(report)
    if name == "kernel" and report.dtype == "float64":
        return "float32 takes about half as long, if its precision is enough: X.astype('float32')"
    if name in ("communicate", "wait", "other") and len(report.engines) > 1 and report.elapsed < _QUICK * iterations:
        return f"each of the {counted(iterations, 'iteration')} is so short that fewer engines may be faster"
    return ""


def _about_slowest(report: FitRecord) -> str:
    slowest = report.slowest
    assert slowest is not None
    mean = sum(engine.rows for engine in report.engines) / len(report.engines)
    if slowest.rows > 1.05 * mean:
        return f"engine {slowest.rank} has {slowest.rows:,} rows, and the mean is {mean:,.0f}: scatter them evenly"
    used = Counter((engine.host, core) for engine in report.engines for core in engine.cores or ())
    if any(used[slowest.host, core] > 1 for core in slowest.cores or ()):
        return f"engine {slowest.rank} shares cores with another one: start fewer engines"
    return f"engine {slowest.rank} was slower with no more rows: another program may use its device or its cores"
