"""Draws a report as a matplotlib figure. matplotlib is imported only when a figure is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpulab.report.record import FitRecord
from xpulab.report.rendering import format_seconds, plain, shorten
from xpulab.report.text import time_unit, worded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


__all__ = ["COLOURS", "draw"]

#: Colour and hatch of each phase. The colours are those of Okabe and Ito's palette, which colour-blind readers can
#: distinguish, in tones with a contrast of at least 3:1 to black and to white. The hatch makes the phases
#: distinguishable without colour.
COLOURS: dict[str, tuple[str, str]] = {
    "transfer": ("#0072b2", "//"),
    "compile": ("#cc79a7", ".."),
    "kernel": ("#009e73", ""),
    "import": ("#cc79a7", ".."),
    "forward": ("#009e73", ""),
    "backward": ("#9a7d00", "oo"),
    "communicate": ("#d55e00", "\\\\"),
    "wait": ("#8a8a8a", "||"),
    "other": ("#ffffff", "--"),
}


def draw(report: FitRecord, axes: tuple[Axes, Axes] | None = None) -> Figure:
    """Draw the first metric by iteration and the seconds of each engine by phase, in a new figure or on two axes."""
    if axes is None:
        axes = _new_axes(len(report.engines))
    curve, bars = axes
    _draw_objective(report, curve)
    _draw_engines(report, bars)
    figure = bars.figure.get_figure(root=True)
    assert figure is not None
    return figure


def _new_axes(engines: int) -> tuple[Axes, Axes]:
    import matplotlib
    import matplotlib.pyplot as plt

    figure, (curve, bars) = plt.subplots(
        1, 2, figsize=(11, max(3.2, 1.6 + 0.32 * engines)), layout="constrained", width_ratios=(2, 3)
    )
    if "inline" in matplotlib.get_backend():
        plt.close(figure)  # otherwise the inline backend shows it, in addition to IPython, which shows the result
    return curve, bars


def _draw_objective(report: FitRecord, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    name = report.objective[0] if report.objective is not None else ""
    for run in range(1, report.runs + 1):
        points = [(i.number, i.metrics[name]) for i in report.iterations if i.init == run and name in i.metrics]
        if points:
            numbers, values = zip(*points, strict=True)
            axes.plot(numbers, values, marker="." if len(points) < 40 else "", label=f"run {run}")
    if 1 < report.runs <= 10:
        axes.legend()
    axes.set(xlabel="iteration", ylabel=worded(name), title=f"{plain(report.title)}, {report.status}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def _draw_engines(report: FitRecord, axes: Axes) -> None:
    unit, factor = time_unit(report.engines)
    names = [f"{engine.rank}  {shorten(engine.device, 32)}" for engine in report.engines]
    starts = [0.0] * len(names)
    phases = dict.fromkeys(phase for engine in report.engines for phase in engine.phases)
    for phase, (colour, hatch) in ((phase, COLOURS[phase]) for phase in phases):
        widths = [engine.phases.get(phase, 0.0) * factor for engine in report.engines]
        axes.barh(
            names, widths, left=starts, label=phase, color=colour, hatch=hatch, edgecolor="#404040", linewidth=0.5
        )
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel=f"time ({unit}), {format_seconds(report.elapsed)} in all", ylabel="engine")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize="small", columnspacing=1)
