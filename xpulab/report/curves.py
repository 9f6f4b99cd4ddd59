"""Pure functions that draw curves as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from xpulab.report.rendering import Html, drawn, escape, format_number

__all__ = ["by_iteration", "curve_of_runs", "digits_of", "line", "polyline", "small_curve"]

#: Largest number of points of a curve. More points do not change how it looks, but a live view sends all of them ten
#: times a second.
_POINTS = 200

# Size of a small curve in pixels, and the margins around its axes.
_WIDTH, _HEIGHT = 300, 150
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 22, 10, 20
_TICKS = 12  # largest number of labels on the axis, in addition to the first
_LETTER = 6.7  # width of a digit
_MOST_DIGITS = 17  # with as many, two numbers that differ are written differently


def polyline(kind: str, places: Iterable[Sequence[float]], digits: int = 1) -> str:
    """Return an SVG polyline of class `kind` through `places` (x, y), with `digits` decimals."""
    points = " ".join(f"{x:.{digits}f},{y:.{digits}f}" for x, y in places)
    return f'<polyline class="{kind}" points="{points}"/>'


def curve_of_runs(
    name: str, seen: Sequence[tuple[int, int, float]], best: int, show: Callable[[float, int], str]
) -> str:
    """Draw a quantity against iteration, as HTML with one line per run, as wide as the element that contains it.

    The labels are HTML beside the SVG, so that they keep their size if the SVG is stretched.

    Parameters
    ----------
    name : str
        Title of the curve.
    seen : sequence of (run, iteration, value)
        The points; runs and iterations count from 1.
    best : int
        The run that is drawn in bold.
    show : callable
        Formats a value with a number of digits: ``show(value, digits)``.

    Returns
    -------
    str
        Empty if there are fewer than two iterations, or none of the best run.
    """
    runs: dict[int, list[tuple[int, float]]] = {}
    for run, number, value in seen:
        runs.setdefault(run, []).append((number, value))
    values = [value for *_, value in seen]
    last = max((number for _, number, _ in seen), default=1)
    if last < 2 or best not in runs:
        return ""
    low, high = min(values), max(values)
    lines = ""
    for run, points in runs.items():
        lines += line("xpu-best" if run == best else "xpu-run", points, last, low, high)
    name += ", the best run in bold" if len(runs) > 1 else ""
    digits = digits_of(low, high, 4, show)
    first, final = (show(runs[best][end][1], max(6, digits)) for end in (0, -1))
    label = f"{name}: from {first} to {final} in {runs[best][-1][0]} iterations"
    return by_iteration(name, label, lines, last, show(low, digits), show(high, digits))


def digits_of(low: float, high: float, least: int, show: Callable[[float, int], str] = format_number) -> int:
    """Return how many digits make the numbers at both ends of an axis differ, at least `least`.

    Parameters
    ----------
    low, high : float
    least : int
    show : callable
        Formats a value with a number of digits: ``show(value, digits)``.
    """
    every = range(least, _MOST_DIGITS)
    return least if low == high else next((n for n in every if show(low, n) != show(high, n)), _MOST_DIGITS)


def line(kind: str, points: Sequence[tuple[int, float]], last: int, low: float, high: float) -> str:
    """Return the polyline of class `kind` of a quantity by iteration, for `by_iteration`.

    Parameters
    ----------
    kind : str
    points : sequence of (iteration, value)
        At least one; values that are no numbers are left out.
    last : int
        The iteration at the right side; iteration 1 is at the left side.
    low, high : float
        The values at the lower and the upper side.
    """
    step = -(-len(points) // _POINTS)
    kept = [*points[:-1:step], points[-1]]
    places = [(_part(100, n - 1, last - 1), _part(100, high - v, high - low)) for n, v in kept if v == v]
    return polyline(kind, places, 2)


def by_iteration(title: str, label: str, lines: str, last: int, low: str, high: str) -> Html:
    """Put lines into a frame with a title, `low` and `high` beside it, and the iterations 1 to `last` below it.

    If both are the same, because nothing changes, only `high` is shown, where the line is.

    The frame is as wide as the element that contains it. `label` says in words what the lines show.
    """
    label, low = escape(label), low if low != high else ""
    return drawn(
        f'<div class="xpu-curve"><div class="xpu-name xpu-dim">{escape(title)}</div>'
        f'<div class="xpu-y" aria-hidden="true"><span>{high}</span> <span>{low}</span></div>'
        f'<svg role="img" aria-label="{label}" viewBox="0 0 100 100" preserveAspectRatio="none">{lines}</svg>'
        f'<div class="xpu-x" aria-hidden="true"><span>1</span> <span>iteration</span> <span>{last}</span></div></div>',
        label,
    )


def small_curve(title: str, points: Sequence[tuple[int, float]], mark: int | None = None) -> str:
    """Draw a quantity against whole numbers, as one SVG with its labels.

    Parameters
    ----------
    title : str
        Title of the curve.
    points : sequence of (number, value)
    mark : int, optional
        Draw a ring around the point of this number.

    Returns
    -------
    str
        Empty if there are fewer than two points.
    """
    if len(points) < 2:
        return ""
    numbers, values = [number for number, _ in points], [value for _, value in points]
    first, last, low, high = min(numbers), max(numbers), min(values), max(values)
    digits = digits_of(low, high, 3)
    lowest, highest = format_number(low, digits), format_number(high, digits)
    left = max(_LEFT, math.ceil(8 + _LETTER * max(len(lowest), len(highest))))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    places = [
        (
            left + _part(right - left, number - first, last - first),
            _TOP + _part(bottom - _TOP, high - value, high - low),
        )
        for number, value in points
    ]
    dots = "".join(f'<circle class="xpu-dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    ring = "".join(
        f'<circle class="xpu-axis" style="opacity:1;stroke-width:2" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
        for (x, y), number in zip(places, numbers, strict=True)
        if number == mark
    )
    if len(points) <= _TICKS + 1:
        label = f"{title}: " + ", ".join(f"{number}: {format_number(value, digits)}" for number, value in points)
    else:
        begin, end = (format_number(values[at], max(6, digits)) for at in (0, -1))
        label = f"{title}: from {begin} at {numbers[0]} to {end} at {last}"
    apart = max(1, -(-(last - first) // _TICKS))
    texts = [
        (left - 6, _TOP + 4, "end", highest),
        *([(left - 6, bottom + 4, "end", lowest)] if low < high else []),
        *(
            (round(left + _part(right - left, number - first, last - first), 1), _HEIGHT - 4, "middle", str(number))
            for number in range(first, last + 1, apart)
        ),
        (0, 11, "start", title),
    ]
    written = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts)
    return (
        f'<svg class="xpu-chart" role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<path class="xpu-axis" d="M{left} {_TOP}V{bottom}H{right}"/>'
        f"{polyline('xpu-line', places)}{dots}{ring}{written}</svg>"
    )


def _part(size: float, distance: float, whole: float) -> float:
    """Scale `distance`, a part of `whole`, to a side of `size` pixels; 0 if all points are the same."""
    return size * distance / (whole or 1.0)
