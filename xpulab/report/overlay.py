"""Two or more calls laid over each other: their curves of iterations in one picture, and their phases side by side."""

from __future__ import annotations

from collections.abc import Sequence

from xpulab.report.calls import differing
from xpulab.report.curves import by_iteration, digits_of, line
from xpulab.report.html import css, phases_bar
from xpulab.report.record import FitRecord
from xpulab.report.rendering import Html, block, escape, format_number, format_seconds, pairs, plain, table_html
from xpulab.report.text import worded

__all__ = ["LINES", "overlay_html"]

#: Colour and dashes of each line. The colours are those of Okabe and Ito's palette, in tones with a contrast of at
#: least 3:1 to black and to white; the dashes make the lines distinguishable without colour.
LINES = (
    ("#0072b2", ""),
    ("#d55e00", "6 3"),
    ("#009e73", "2 3"),
    ("#b5679a", "9 3 2 3"),
    ("#8a7000", "12 4"),
    ("#767676", "1 2"),
)


def overlay_html(calls: Sequence[tuple[int, FitRecord]]) -> Html:
    """Lay calls over each other.

    Parameters
    ----------
    calls : sequence of (int, FitRecord)
        The calls with their numbers; at most as many as `LINES` are drawn.

    Returns
    -------
    Html
    """
    calls = calls[: len(LINES)]
    names = list(dict.fromkeys(name for _, report in calls for i in report.iterations for name in i.metrics))
    curves = "".join(_curve(name, calls) for name in names)
    parts = [_legend(calls)]
    parts += [Html(f'<div class="xpu-curves">{curves}</div>')] if curves else []
    parts += [_phases(calls)]
    rules = "".join(
        f".xpu .xpu-curve polyline.xpu-o{n}"
        f"{{stroke:{colour};stroke-dasharray:{dashes or 'none'};stroke-width:2;opacity:1}}"
        for n, (colour, dashes) in enumerate(LINES)
    )
    return block("Calls laid over each other", parts, css() + rules)


def _named(number: int, report: FitRecord, parameters: dict[str, object]) -> str:
    return f"{number}  {plain(report.title)}" + (f" ({pairs(parameters)})" if parameters else "")


def _legend(calls: Sequence[tuple[int, FitRecord]]) -> Html:
    items = ""
    differ = differing([report for _, report in calls])
    for (number, report), parameters, (colour, dashes) in zip(calls, differ, LINES, strict=False):
        key = (
            f'<svg width="34" height="8" aria-hidden="true"><line x1="1" y1="4" x2="33" y2="4" stroke="{colour}" '
            f'stroke-width="2.5" stroke-dasharray="{dashes or "none"}"/></svg>'
        )
        items += f"<div>{key} {escape(_named(number, report, parameters))}</div>"
    return Html(f'<div class="xpu-legend">{items}</div>')


def _curve(name: str, calls: Sequence[tuple[int, FitRecord]]) -> Html:
    """Draw a metric of the best run of each call against iteration."""
    lines: list[tuple[int, list[tuple[int, float]]]] = []
    for _, report in calls:
        run, seen = report.best_run, tuple(report.iterations)
        points = [(i.number, i.metrics[name]) for i in seen if i.init == run and name in i.metrics]
        lines.append((len(lines), points))
    values = [value for _, points in lines for _, value in points if value == value]
    last = max((number for _, points in lines for number, _ in points), default=1)
    if last < 2 or not values:
        return Html("")
    low, high = min(values), max(values)
    picture = words = ""
    for n, points in lines:
        if points:
            picture += line(f"xpu-o{n}", points, last, low, high)
            final = f"{format_number(points[-1][1])} after {points[-1][0]}"
            words += f"{'; ' if words else ''}call {calls[n][0]} ends at {final}"
    title = f"{worded(name).capitalize()} by iteration"
    digits = digits_of(low, high, 4)
    ends = format_number(low, digits), format_number(high, digits)
    return by_iteration(title, f"{title}: {words}", picture, last, *ends)


def _phases(calls: Sequence[tuple[int, FitRecord]]) -> Html:
    """Put the mean phases of each call side by side, on one scale."""
    phases = [report.mean_phases for _, report in calls]
    names = list(dict.fromkeys(name for each in phases for name in each))
    longest = max((sum(each.values()) for each in phases), default=0.0) or 1.0
    keys = [Html(f'<i class="xpu-key xpu-p-{name}" aria-hidden="true"></i>{name}') for name in names]
    rows = [
        [
            Html(escape(f"{number}  {plain(report.title)}") + phases_bar(each, longest)),
            *(format_seconds(each.get(name)) for name in names),
            format_seconds(report.elapsed),
        ]
        for (number, report), each in zip(calls, phases, strict=True)
    ]
    return table_html(["call", *keys, "time"], rows, "l" + "r" * (len(keys) + 1), "Mean of the engines by phase")
