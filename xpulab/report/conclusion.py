"""The last line of a report: which phase took longest, and how to make the call faster."""

from __future__ import annotations

from collections import Counter

from xpulab.report.record import WORK, EngineReport, FitRecord
from xpulab.report.rendering import counted, format_seconds

__all__ = ["conclusion", "slowest_engine", "split"]

#: Descriptions of the parts of a call.
_DOING = {
    "copy": "copying the rows into shared memory",
    "queue": "waiting until another call had ended",
    "lost": "work before the loss of engines",
    "restart": "starting new engines",
    "transfer": "moving rows between the host and the devices",
    "compile": "finishing kernels for the devices",
    "kernel": "computing on the devices",
    "host": "computing on the processors of the hosts",
    "import": "importing PyTorch on the engines, once in their life,",
    "forward": "computing the outputs of the module",
    "backward": "computing the gradients, and adding them over the engines",
    "communicate": "exchanging results between the engines",
    "wait": "waiting for other engines",
    "other": "work of the engines beside their devices",
}
#: In place of moving rows: those of files, and those that the engines do not keep.
_FILES, _READS = "reading the rows from their files", "reading again the rows that the engines do not keep"
_SPOOLS = "writing rows that do not fit into memory to a file"  # in place of copying them
#: If the own work of an engine takes longer than the mean by more than the first percentage, the report names the
#: engine. If it takes longer by more than the second, the report gives advice.
_WORD, _ADVICE = 5, 25
#: If engines wait for a larger part of their time although their work is even, the report says so.
_BY_TURNS = 0.2
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
    doing = _DOING[name]
    if name == "copy" and report.spooled:
        doing = _SPOOLS
    elif _reads(report, name):
        doing = _READS
    elif name == "transfer" and report.files:
        doing = _FILES
    said = [f"{doing} took longest, {_by_engine(report, name, seconds)} of {format_seconds(report.elapsed)}"]
    if report.converged is False:
        said.append("it ended at max_iter, before it converged: raise max_iter, or tol")
    if report.elapsed >= _SHORT and (advice := _advice(report, name)):
        said.append(advice)
    text = "; ".join(said)
    return text[0].upper() + text[1:]


def _reads(report: FitRecord, name: str) -> bool:
    """Return whether most of a phase was spent waiting for rows that are read again."""
    return name == "transfer" and report.reading > report.mean_phases[name] / 2


def _by_engine(report: FitRecord, name: str, mean: float) -> str:
    """Return the seconds of a phase, or their range if they differ much between the engines: a mean would hide it."""
    each = [engine.phases.get(name, 0.0) for engine in report.engines]
    if not each or name in ("copy", "queue", "lost", "restart") or max(each) <= (1 + _ADVICE / 100) * mean:
        return format_seconds(mean)
    return f"{format_seconds(min(each))} to {format_seconds(max(each))} by engine,"


def slowest_engine(report: FitRecord) -> str:
    """Say which engine had the longest work of its own, and by how much; empty if the difference is small."""
    if report.slowest is None or report.imbalance is None or report.imbalance < _WORD:
        return ""
    longer = f"{report.imbalance:.0f} % longer than the mean"
    return f"engine {report.slowest.rank}, whose own work, without waits, took {longer}"


def split(report: FitRecord) -> str:
    """List the parts of the call's whole time; empty while it runs, and if the engines took nearly all or none."""
    engines = max((engine.total for engine in report.engines), default=0.0)
    rest = report.elapsed - engines - report.sent - report.waited - report.lost - report.restart
    if not report.engines or report.status == "running" or report.elapsed - engines < _UNSEEN * report.elapsed:
        return ""
    parts = {
        "before the loss of engines": report.lost,
        "to start new engines": report.restart,
        f"to {'write the rows to a file' if report.spooled else 'copy the rows into shared memory'}": report.sent,
        "until another call had ended": report.waited,
        "on the new engines" if report.restart else "on the engines": engines,
        "for messages and preparation": max(0.0, rest),
    }
    named = [
        f"{format_seconds(seconds)} {what}" for what, seconds in parts.items() if seconds >= 0.005 * report.elapsed
    ]
    return f"{format_seconds(report.elapsed)} in all: {', '.join(named)}"


def _advice(report: FitRecord, name: str) -> str:
    iterations = len(report.iterations)
    if _reads(report, name):
        return "to have them keep more, give them more memory, such as xpulab.current_cluster().memory = 0.8"
    if name in ("copy", "transfer"):
        if report.spooled:
            return "to write them once for several calls, write a .npy or Parquet file, and pass xpulab.scan of it"
        if report.stays and not report.files:
            return ""
        once = "to read them once" if report.files else "to send them once"
        return f"{once} for several calls, type: rows = xpulab.current_cluster().scatter(X), and pass rows"
    if name == "compile":
        return "the next call takes the compiled kernels from a cache"
    uneven = report.imbalance is not None and report.imbalance >= _ADVICE
    if uneven and name in ("kernel", "host", "forward", "backward", "wait"):
        return _about_slowest(report)
    if not uneven and (turns := _by_turns(report)):
        return turns
    if name == "kernel" and report.dtype == "float64":
        return "float32 takes about half as long, if its precision is enough: X.astype('float32')"
    if name in ("communicate", "wait", "other") and len(report.engines) > 1 and report.elapsed < _QUICK * iterations:
        return f"each of the {counted(iterations, 'iteration')} is so short that fewer engines may be faster"
    return ""


def _by_turns(report: FitRecord) -> str:
    """Say that engines with even work wait for each other by turns: each of them, and not all for the same one."""
    waits = [engine.seconds["wait"] for engine in report.engines]
    total = sum(engine.total for engine in report.engines)
    if len(waits) < 2 or len(report.iterations) < 2 or sum(waits) < _BY_TURNS * total or min(waits) < max(waits) / 2:
        return ""
    if any(_shares_cores(report, engine) for engine in report.engines):
        return "the engines, which share cores, wait for each other by turns: start fewer engines"
    return "the engines wait for each other by turns: another program may use the cores now and then"


def _about_slowest(report: FitRecord) -> str:
    """Say why an engine was busy longer than the others: by the phase in which it is, and what explains this phase."""
    slowest = report.slowest
    assert slowest is not None
    others = [engine for engine in report.engines if engine is not slowest]
    usual = {phase: sum(engine.seconds[phase] for engine in others) / len(others) for phase in WORK}
    cause = max(WORK, key=lambda phase: slowest.seconds[phase] - usual[phase])
    took = f"{format_seconds(slowest.seconds[cause])}, and the others {format_seconds(usual[cause])}"
    if cause == "compile":
        return f"engine {slowest.rank} finished kernels for {took}: the next call takes them from a cache"
    mean = sum(engine.rows for engine in report.engines) / len(report.engines)
    if slowest.rows > 1.05 * mean:
        return f"engine {slowest.rank} has {slowest.rows:,} rows, and the mean is {mean:,.0f}: scatter them evenly"
    if cause == "transfer":
        return f"engine {slowest.rank} moved its rows for {took}"
    if _shares_cores(report, slowest):
        return f"engine {slowest.rank} shares cores with another one: start fewer engines"
    if any(engine.device != slowest.device for engine in others):
        return f"engine {slowest.rank} has another device than others, and computed for {took}"
    return f"engine {slowest.rank} was slower with no more rows: another program may use its device or its cores"


def _shares_cores(report: FitRecord, one: EngineReport) -> bool:
    used = Counter((engine.host, core) for engine in report.engines for core in engine.cores or ())
    return any(used[one.host, core] > 1 for core in one.cores or ())
