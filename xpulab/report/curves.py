"""Pure functions that draw curves as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xpulab.report.rendering import drawn, escape, format_number

__all__ = ["curve_of_runs", "polyline", "small_curve"]

#: Largest number of points of a curve. More points do not change how it looks, but a live view sends all of them ten
#: times a second.
_POINTS = 200

# Size of a small curve in pixels, and the margins around its axes.
_WIDTH, _HEIGHT = 300, 150
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 22, 10, 20
_TICKS = 12  # largest number of labels on the axis, in addition to the first


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
        step = -(-len(points) // _POINTS)
        kept = [*points[:-1:step], points[-1]]
        places = [(_part(100, n - 1, last - 1), _part(100, high - v, high - low)) for n, v in kept]
        lines += polyline("xpu-best" if run == best else "xpu-run", places, 2)
    name += ", the best run in bold" if len(runs) > 1 else ""
    first, final = (show(runs[best][end][1], 6) for end in (0, -1))
    label = f"{name}: from {first} to {final} in {runs[best][-1][0]} iterations"
    return drawn(
        f'<div class="xpu-curve"><div class="xpu-name xpu-dim">{name}</div>'
        f'<div class="xpu-y" aria-hidden="true"><span>{show(high, 4)}</span> <span>{show(low, 4)}</span></div>'
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
    # The smallest number of digits in which the labels of the lowest and the highest value differ.
    digits = next((n for n in (3, 4, 5, 6) if format_number(low, n) != format_number(high, n)), 7)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    places = [
        (
            _LEFT + _part(right - _LEFT, number - first, last - first),
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
        label = f"{title}: from {format_number(values[0])} at {numbers[0]} to {format_number(values[-1])} at {last}"
    apart = max(1, -(-(last - first) // _TICKS))
    texts = [
        (_LEFT - 6, _TOP + 4, "end", format_number(high, digits)),
        (_LEFT - 6, bottom + 4, "end", format_number(low, digits)),
        *(
            (round(_LEFT + _part(right - _LEFT, number - first, last - first), 1), _HEIGHT - 4, "middle", str(number))
            for number in range(first, last + 1, apart)
        ),
        (0, 11, "start", title),
    ]
    written = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts)
    return (
        f'<svg class="xpu-chart" role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<path class="xpu-axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        f"{polyline('xpu-line', places)}{dots}{ring}{written}</svg>"
    )


def _part(size: float, distance: float, whole: float) -> float:
    """Scale `distance`, a part of `whole`, to a side of `size` pixels; 0 if all points are the same."""
    return size * distance / (whole or 1.0)
