"""Reports as plain text: for terminals, logs, and readers that show no HTML."""

from __future__ import annotations

from collections.abc import Iterable

from xpulab.report.conclusion import conclusion, slowest_engine, split
from xpulab.report.record import EngineReport, FitRecord, Pair
from xpulab.report.rendering import as_of, format_count, format_number, format_seconds, plain, shorten, table_text

__all__ = ["NAMES", "comparison_names", "comparison_table", "comparison_text", "fit_line", "fit_text", "time_unit"]


#: Names of the two reports in a comparison.
NAMES = ("first", "second")
#: Largest width of a device name in characters, so that a line of the table fits into a terminal.
_DEVICE = 32


def fit_line(report: FitRecord) -> str:
    """Return the progress of a running call, on one line."""
    parts = [report.title, report.part, format_seconds(report.elapsed), report.message]
    if report.iterations:
        last = report.iterations[-1]
        most = report.parameters.get("max_iter")
        parts += [f"run {last.init}/{report.runs}"] if report.runs > 1 else []
        parts += [f"iteration {last.number}" + (f"/{most}" if most else "")]
        shown = [f"{worded(name)} {format_number(value, 3)}" for name, value in last.metrics.items()]
        first = next(iter(last.metrics.items()), None)
        shown[:1] = [f"{worded(first[0])} {format_number(first[1])}"] if first is not None else []
        parts += shown[:1]
        parts += [f"{report.remaining} left"] if report.remaining else []
        parts += shown[1:]
    elif report.remaining:
        parts += [f"{report.remaining} left"]
    return "  ".join(plain(part) for part in parts if part)


def fit_text(report: FitRecord) -> str:
    """Return the whole report: a headline, the result, and a line per engine."""
    lines = [report.headline]
    lines += [f"  {plain(report.part)}"] if report.part else []
    lines += [f"  {plain(line)}" for line in report.message.splitlines()]
    if (reached := report.reached) is not None:
        chosen = report.finished and reached.init == report.best_run and not report.every_run
        best = ", the best one" if chosen else ""
        runs = f" of run {reached.init} of {report.runs}{best}" if report.runs > 1 else ""
        lines += [f"  iteration {reached.number}{runs}" + _objective(report, ", {} {}")]
    if report.engines:
        unit, factor = time_unit(report.engines)
        phases = report.phases
        header = ["engine", "device", "machine", "rows", *phases, f"total ({unit})"]
        rows = [
            [
                e.rank,
                shorten(e.device, _DEVICE),
                e.host,
                format_count(e.rows),
                *(f"{e.phases.get(phase, 0.0) * factor:.3f}" for phase in phases),
                f"{e.total * factor:.3f}",
            ]
            for e in report.engines
        ]
        lines += [table_text(header, rows, "rll" + "r" * (len(header) - 3))]
    slowest = slowest_engine(report)
    lines += [f"  slowest: {slowest}"] if slowest else []
    lines += [f"  note: {plain(note)}" for note in report.notes]
    lines += [f"  {plain(line)}" for line in (split(report), conclusion(report)) if line]
    lines += [f"  {as_of(report.later)}"] if report.status == "running" else []
    return "\n".join(lines)


def worded(name: str) -> str:
    """Return the name of a metric in words, such as ``"center shift"``."""
    return name.replace("_", " ")


def _objective(report: FitRecord, form: str) -> str:
    if report.objective is None:
        return ""
    name, value = report.objective
    return form.format(worded(name), format_number(value))


def time_unit(engines: Iterable[EngineReport]) -> tuple[str, float]:
    """Return the unit for a table of the engines' times, and the factor that turns seconds into it."""
    longest = max((engine.total for engine in engines), default=0.0)
    return ("s", 1.0) if longest >= 1 else ("ms", 1e3)


def comparison_text(comparison: Pair) -> str:
    """Two reports side by side, below a line that names each of them."""
    reports = (comparison.first, comparison.second)
    about = "\n".join(f"{name}: {what}" for name, what in zip(NAMES, comparison_names(*reports), strict=True))
    return f"{about}\n{table_text(*comparison_table(*reports), 'lrrr')}"


def comparison_names(*reports: FitRecord) -> list[str]:
    """Return a description of each report: the call, its data and its devices."""
    devices = [", ".join(dict.fromkeys(engine.device for engine in report.engines)) for report in reports]
    return [plain(f"{r.title}, {r.scale}" + f" ({d})" * bool(d)) for r, d in zip(reports, devices, strict=True)]


def comparison_table(first: FitRecord, second: FitRecord) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the comparison: a quantity, its value in each report, and for times the ratio of the two."""
    reports = (first, second)
    rows = [
        ["status", *(report.status for report in reports), ""],
        ["iterations", *(format_count(len(report.iterations)) for report in reports), ""],
        *_objectives(reports),
        _times("wall time", first.elapsed, second.elapsed),
        _times("copying rows", first.sent, second.sent),
    ]
    if first.engines and second.engines:
        means = [report.mean_phases for report in reports]
        phases = dict.fromkeys(phase for mean in means for phase in mean)
        rows += [_times(f"{p}, mean of engines", means[0].get(p, 0.0), means[1].get(p, 0.0)) for p in phases]
        busiest = [max(report.engines, key=lambda engine: engine.work) for report in reports]
        rows.append(["engine that was busy longest", *(f"engine {engine.rank}" for engine in busiest), ""])
        rows.append(_times("how long it was busy", busiest[0].work, busiest[1].work))
    return ["", *NAMES, "first / second"], rows


def _times(name: str, first: float, second: float) -> list[str]:
    ratio = f"{first / second:.2f}" if second > 0 else ""
    return [name, format_seconds(first), format_seconds(second), ratio]


def _objectives(reports: Iterable[FitRecord]) -> list[list[str]]:
    """Return a row with the metric that both algorithms minimise; no row if the metrics differ or are missing."""
    found = [report.objective for report in reports]
    names = {objective[0] for objective in found if objective is not None}
    if len(names) != 1:
        return []
    return [[worded(names.pop()), *("" if each is None else format_number(each[1]) for each in found), ""]]
