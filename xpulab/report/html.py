"""Reports as self-contained HTML, for light and dark backgrounds. The HTML has no script, and loads no other file.

Front ends remove style sheets and SVG from a notebook that is not trusted. Therefore the headline, the facts and the
table are plain HTML that can be read without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from xpulab.report.conclusion import conclusion, slowest_engine, split
from xpulab.report.curves import curve_of_runs
from xpulab.report.figure import COLOURS
from xpulab.report.record import EngineReport, FitRecord, Pair
from xpulab.report.rendering import (
    Html,
    as_of,
    block,
    escape,
    format_count,
    format_number,
    format_seconds,
    format_size,
    style,
    table_html,
)
from xpulab.report.task import Status, TaskRecord
from xpulab.report.text import NAMES, comparison_names, comparison_table, time_unit, worded

__all__ = [
    "SHAPE",
    "as_of_html",
    "bar",
    "comparison_html",
    "css",
    "document",
    "facts_html",
    "fit_html",
    "fit_parts",
    "folded_parts",
    "head",
    "message_html",
    "page_html",
    "phases_bar",
    "progress_html",
    "task_html",
]

_MARKS = {"running": "▶", "finished": "✓", "not converged": "!", "interrupted": "■", "failed": "✕"}

#: What the numbers of a launch shape are; a thread of a device is what SYCL calls a work-item.
SHAPE = "rows of a thread of the device x centres at a time x threads of a group, span rows of a group"

_STRIPES = "rgba(255,255,255,.55)"
_PATTERNS = {
    "transfer": f"repeating-linear-gradient(45deg,{_STRIPES} 0 1.5px,transparent 1.5px 6px)",
    "compile": f"radial-gradient(circle,{_STRIPES} 1.2px,transparent 1.6px) 0 0/5px 5px",
    "host": f"repeating-linear-gradient(45deg,{_STRIPES} 0 1px,transparent 1px 5px),"
    f"repeating-linear-gradient(-45deg,{_STRIPES} 0 1px,transparent 1px 5px)",
    "import": f"radial-gradient(circle,{_STRIPES} 1.2px,transparent 1.6px) 0 0/5px 5px",
    "backward": f"radial-gradient(circle,transparent 1.6px,{_STRIPES} 1.8px 2.6px,transparent 3px) 0 0/8px 8px",
    "communicate": f"repeating-linear-gradient(-45deg,{_STRIPES} 0 2px,transparent 2px 5px)",
    "wait": f"repeating-linear-gradient(90deg,{_STRIPES} 0 1px,transparent 1px 4px)",
    "other": "none",
}

#: CSS rules for the colours of the phases. The matplotlib figure has the same colours.
_PHASES = "".join(
    f".xpu .xpu-p-{phase}{{background:{_PATTERNS.get(phase, 'none')}"
    + (f",{colour}}}" if phase in _PATTERNS else f";background-color:{colour}}}")
    for phase, (colour, _) in COLOURS.items()
    if phase != "other"
)


def fit_html(report: FitRecord) -> Html:
    """Return the report of a call, running or ended, for a notebook's output."""
    return block(report.headline, fit_parts(report), css())


def fit_parts(report: FitRecord) -> list[str]:
    """Return the pieces of HTML of a report, for a block whose style is that of `css`."""
    parts = [head(report.title, report.status, f"{report.scale} · {format_seconds(report.elapsed)}")]
    parts += [progress_html(report), message_html(report.part), _facts(report), message_html(report.message)]
    if report.engines:
        parts.append(_engines_table(report.engines, report.phases))
    parts.append(_curves(report))
    parts += [message_html(note) for note in (*report.notes, split(report), conclusion(report))]
    if report.status != "running":  # while it runs, each new drawing would fold them again
        parts += [_folded("Parameters", report.parameters), _folded("Versions", report.versions)]
        parts.append(_folded("Launch shape", {report.launch_shapes: SHAPE} if report.launch_shapes else {}))
    return [*parts, as_of_html(report)]


def folded_parts(report: FitRecord) -> list[str]:
    """Return the pieces of HTML of a report that shows its first line until a reader unfolds it."""
    first, *rest = fit_parts(report)
    return [f'<details class="xpu-fold"><summary>{first}</summary>{"".join(rest)}</details>']


def task_html(task: TaskRecord) -> Html:
    """Show a task on two lines while it runs, and on one line after it has ended."""
    parts = [head(task.title, task.status, format_seconds(task.elapsed))]
    if task.status == "running":
        parts.append(bar(task.done / max(1, task.total), "steps done"))
    return block(task.title, [*parts, message_html(task.message), as_of_html(task)], css())


def comparison_html(comparison: Pair) -> Html:
    """Two reports as one table."""
    reports = (comparison.first, comparison.second)
    about = [f"<div>{name}: {escape(what)}</div>" for name, what in zip(NAMES, comparison_names(*reports), strict=True)]
    return block("Comparison of two reports", [*about, table_html(*comparison_table(*reports), "lrrr")], css())


def page_html(report: FitRecord, extra: Iterable[str] = ()) -> str:
    """Return a self-contained page of a report. ``extra`` are sections of HTML, which are not escaped."""
    sections = "".join(f"<section>{section}</section>" for section in extra)
    unfolded = fit_html(report).replace("<details>", "<details open>")
    started = f"<p>Started at {escape(report.started)}</p>"
    return document(report.headline, f"<h1>xpulab report</h1>\n{started}\n{unfolded}\n{sections}")


def document(title: str, body: str) -> str:
    """Return a self-contained page with this HTML in its body."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style("page")}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def css() -> str:
    """Return the style of reports, in addition to the style of all blocks."""
    return style("report") + _PHASES


def head(title: str, status: str, rest: str) -> str:
    """Return the first line of a block: a call, how it is, and the rest."""
    return (
        f'<div class="xpu-head"><span class="xpu-title">{escape(title)}</span> '
        f'<span class="xpu-status"><span aria-hidden="true">{_MARKS[status]}</span> {escape(status)}</span> '
        f"<span>{escape(rest)}</span></div>"
    )


def progress_html(report: FitRecord) -> str:
    """Return the bar of a running call; nothing if it has ended, or if it is unknown how much of it is done."""
    fraction = report.fraction if report.status == "running" else None
    return "" if fraction is None else bar(fraction, "iterations done" if report.iterations else "steps done")


def bar(fraction: float, label: str) -> str:
    """Return a bar, filled to the fraction. Browsers draw their own element for this grey in some themes."""
    return (
        f'<div class="xpu-progress" role="progressbar" aria-label="{escape(label)}" aria-valuemin="0" aria-valuemax="1"'
        f' aria-valuenow="{fraction:.3f}"><i style="width:{100 * fraction:.1f}%"></i></div>'
    )


def message_html(text: str) -> str:
    """Return a remark below a report; nothing if the text is empty."""
    return f'<div class="xpu-note">{escape(text)}</div>' if text else ""


class Ends(Protocol):
    """What is shown while it runs, and after its end."""

    @property
    def status(self) -> Status:
        """How it is."""

    @property
    def later(self) -> str:
        """How to see the present state."""


def as_of_html(*tasks: Ends) -> str:
    """Return the time of the latest update if some of these tasks still run; nothing if all have ended."""
    running = [task for task in tasks if task.status == "running"]
    return f'<div class="xpu-dim xpu-as-of">{escape(as_of(running[0].later))}</div>' if running else ""


def _facts(report: FitRecord) -> str:
    facts: dict[str, str] = {}
    if (last := report.reached) is not None:
        most = report.parameters.get("max_iter")
        if report.runs > 1:
            best = report.finished and last.init == report.best_run and not report.every_run
            facts["best run" if best else "run"] = f"{last.init} of {report.runs}"
        facts["iteration"] = f"{last.number} of at most {most}" if most else f"{last.number}"
        if report.objective is not None:
            facts[worded(report.objective[0])] = format_number(report.objective[1])
        facts |= {worded(name): format_number(value, 3) for name, value in list(last.metrics.items())[1:]}
    if report.status == "running" and report.remaining:
        facts["time left"] = report.remaining
    if slowest := slowest_engine(report):
        facts["slowest"] = slowest
    return facts_html(facts)


def facts_html(facts: Mapping[str, str]) -> str:
    """Return names and values on a line; nothing without any."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f"<dl>{items}</dl>" if items else ""


def _engines_table(engines: Sequence[EngineReport], phases: Sequence[str]) -> Html:
    unit, factor = time_unit(engines)
    longest = max((sum(engine.phases.values()) for engine in engines), default=0.0) or 1.0
    hosts = list(dict.fromkeys(engine.host for engine in engines))
    keys = [Html(f'<i class="xpu-key xpu-p-{phase}" aria-hidden="true"></i>{phase}') for phase in phases]
    rows = [
        [
            engine.rank,
            Html(_about(engine, with_host=len(hosts) > 1) + phases_bar(engine.phases, longest)),
            *(f"{engine.phases.get(phase, 0.0) * factor:.3f}" for phase in phases),
            f"{engine.total * factor:.3f}",
        ]
        for engine in engines
    ]
    place = f" on {hosts[0]}" if len(hosts) == 1 else ""
    caption = f"Engines{place}, {'seconds' if unit == 's' else 'milliseconds'} by phase"
    return table_html(["engine", "device", *keys, "total"], rows, "ll" + "r" * (len(keys) + 1), caption)


def _about(engine: EngineReport, with_host: bool) -> str:
    details = [f"{format_count(engine.rows)} rows"]
    details += [format_size(engine.memory)] if engine.memory is not None else []
    details += [engine.host] if with_host else []
    return f'{escape(engine.device)} <span class="xpu-dim xpu-r">· {escape(" · ".join(details))}</span>'


def phases_bar(phases: Mapping[str, float], longest: float) -> Html:
    """Draw the numbers of a row as a bar. Screen readers skip it, because the row has the numbers as text."""
    pieces = "".join(
        f'<i class="xpu-p-{phase}" title="{phase} {format_seconds(seconds)}"'
        f' style="width:{100 * seconds / longest:.2f}%"></i>'
        for phase, seconds in phases.items()
        if seconds > 0
    )
    return Html(f'<div class="xpu-bar" aria-hidden="true">{pieces}</div>')


def _curves(report: FitRecord) -> str:
    """Draw each metric against iteration, for each run. All metrics but the first have logarithmic scales."""
    best = report.best_run
    seen = tuple(report.iterations)  # another thread may append to the list while this one draws
    names = list(dict.fromkeys(name for iteration in seen for name in iteration.metrics))
    if not names:
        return ""
    found = [(i.init, i.number, i.metrics[names[0]]) for i in seen if names[0] in i.metrics]
    title = f"{worded(names[0]).capitalize()} by iteration"
    curves = curve_of_runs(title, found, best, format_number)
    for name in names[1:]:
        # The metric falls by orders of magnitude. Some fits end at 0, which a logarithmic scale cannot show.
        logarithms = [(i.init, i.number, math.log10(i.metrics[name])) for i in seen if i.metrics.get(name, 0) > 0]
        title = f"{worded(name).capitalize()} by iteration, on a logarithmic scale"
        ends = [i for i in seen if i.init == best and i.metrics.get(name) == 0]
        title += f", and 0 in iteration {ends[-1].number}" if ends else ""
        curves += curve_of_runs(title, logarithms, best, lambda v, n: format_number(10**v, n if n > 6 else 3))
    return f'<div class="xpu-curves">{curves}</div>' if curves else ""


def _folded(name: str, pairs: Mapping[str, object]) -> str:
    if not pairs:
        return ""
    items = ", ".join(f"{escape(key)} = {escape(value)}" for key, value in pairs.items())
    return f"<details><summary>{escape(name)}</summary>{items}</details>"
