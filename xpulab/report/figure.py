"""Draws a report as a matplotlib figure. matplotlib is imported only when a figure is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xpulab.report.record import FitRecord
from xpulab.report.rendering import format_seconds, plain, shorten
from xpulab.report.text import time_unit, worded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


__all__ = ["COLOURS", "draw", "for_any_ground"]

#: Colour and hatch of each phase. The colours are those of Okabe and Ito's palette, which colour-blind readers can
#: distinguish, in tones with a contrast of at least 3:1 to black and to white. The hatch makes the phases
#: distinguishable without colour.
COLOURS: dict[str, tuple[str, str]] = {
    "transfer": ("#0072b2", "//"),
    "compile": ("#cc79a7", ".."),
    "kernel": ("#009e73", ""),
    "host": ("#7b5ea7", "xx"),
    "import": ("#cc79a7", ".."),
    "forward": ("#009e73", ""),
    "backward": ("#9a7d00", "oo"),
    "communicate": ("#d55e00", "\\\\"),
    "wait": ("#8a8a8a", "||"),
    "other": ("#ffffff", "--"),
}


#: Greys with a contrast of about 4:1 to white and to the ground of dark themes.
_DARKER, _LIGHTER = "#7c7c7c", "#828282"


def draw(report: FitRecord, axes: tuple[Axes, Axes] | None = None) -> Figure:
    """Draw the first metric by iteration and the seconds of each engine by phase, in a new figure or on two axes."""
    given = axes is not None
    curve, bars = _new_axes(len(report.engines)) if axes is None else axes
    _draw_objective(report, curve)
    _draw_engines(report, bars)
    figure = bars.figure.get_figure(root=True)
    assert figure is not None
    if not given:
        for_any_ground(figure)
    return figure


def for_any_ground(figure: Figure) -> None:
    """Make the ground of a figure transparent, and its text and lines grey, so that it can be read on any theme.

    Of a transparent figure whose tick labels are all darker, or all lighter, than a middle grey, matplotlib-inline
    says that it needs a white or a black ground. So those of the two axes are on both sides of it.
    """
    figure.patch.set_alpha(0)
    texts = [*figure.texts]
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, axes.xaxis.offsetText, axes.yaxis.offsetText]
        if legend := axes.get_legend():
            texts += legend.get_texts()
            legend.get_frame().set_alpha(0)
        axes.tick_params(axis="x", which="both", colors=_DARKER)
        axes.tick_params(axis="y", which="both", colors=_LIGHTER)
        for spine in axes.spines.values():
            spine.set_color(_DARKER)
    for text in texts:
        text.set_color(_DARKER)


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

    name = report.metric
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
