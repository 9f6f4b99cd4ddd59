"""The state of an explorer at one moment, as HTML, as text, or as a matplotlib figure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xpulab.explorer.picture import INKS, Picture, colour, colour_of, ink_on
from xpulab.rendering import (
    Displayed,
    Html,
    block,
    counted,
    escape,
    format_number,
    plain,
    style,
    table_html,
    table_text,
)
from xpulab.report.curves import polyline, small_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Snapshot"]

# Margins of the plot, in its own coordinates: one unit is one pixel of the picture.
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 10, 12, 40


@dataclass(frozen=True, eq=False)
class Snapshot(Displayed):
    """The state of an explorer at one moment; a notebook shows it as HTML, a terminal as text.

    Attributes
    ----------
    picture : Picture
    k, points, n_samples, n_features : int
        Clusters, rows that take part, rows in all, features.
    random_state : int
        Random state of the start.
    trails : numpy.ndarray of float64 of shape (n_iterations + 1, k, 2)
        The centres from the start on, in the two features of the picture.
    inertias : tuple of float
        Inertia of each of these centres.
    elbows : dict of int to float
        Inertia by number of clusters.
    converged : bool
    """

    picture: Picture
    k: int
    points: int
    n_samples: int
    n_features: int
    random_state: int
    trails: np.ndarray
    inertias: tuple[float, ...]
    elbows: dict[int, float]
    converged: bool

    @property
    def png(self) -> bytes:
        """The rows alone, as an image."""
        return self.picture.png

    def line(self) -> str:
        """A summary on one line."""
        rows = f"{self.points:,}" + (f" of {self.n_samples:,}" if self.points < self.n_samples else "")
        n = len(self.inertias) - 1
        turns = counted(n, "iteration") + (", converged" if self.converged else "")
        return (
            f"k-means of {rows} rows x {self.n_features}, k={self.k}, start {self.random_state}: {turns}, "
            f"inertia {format_number(self.inertias[-1])}"
        )

    def __str__(self) -> str:
        lines = [self.line(), table_text(self._header(), self._rows(), "rrrr")]
        if self.elbows:
            found = ", ".join(f"{k}: {format_number(inertia, 4)}" for k, inertia in self.elbows.items())
            lines.append(f"  inertia by number of clusters: {found}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, extra: str = "") -> Html:
        """The HTML, followed by `extra`, which is not escaped."""
        return block(f"k-means explorer: {self.line()}", [self.body(), extra], style("explorer"))

    def body(self, image: str | None = None) -> Html:
        """The HTML without its style.

        Parameters
        ----------
        image : str, optional
            Address of the image; by default the HTML contains it as base64.
        """
        if image is None:
            image = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        rows = [
            (Html(f'<i class="xpu-key" style="background:{colour_of(j)}"></i>{j}'), *cells)
            for j, (_, *cells) in enumerate(self._rows())
        ]
        return Html(
            f'<div class="xpu-explore">{_plot(self, image)}<div>'
            f"{small_curve('Inertia by iteration', list(enumerate(self.inertias)))}"
            f"{small_curve('Inertia by number of clusters', list(self.elbows.items()), self.k)}"
            f"</div></div><div>{escape(self.line())}</div>"
            f"<details><summary>Centres</summary>{table_html(self._header(), rows, 'lrrr')}</details>"
        )

    def plot(self, axes: Sequence[Axes] | None = None) -> Figure:
        """The snapshot as a matplotlib figure, on three axes if they are given."""
        return _figure(self, axes)

    def _header(self) -> tuple[str, ...]:
        return ("cluster", *self.picture.names, "rows in view")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (str(j), format_number(x, 4), format_number(y, 4), f"{size:,}")
            for j, ((x, y), size) in enumerate(zip(self.trails[-1], self.picture.sizes, strict=True))
        ]


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two values, each with its text."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [(float(v), f"{v:.8g}") for v in values if low <= v <= high]


def _plot(snapshot: Snapshot, image: str) -> str:
    """The rows as an image; axes, trails and centres as shapes, which stay sharp."""
    picture = snapshot.picture
    lines, columns = picture.counts.shape[1:]
    low, high = np.array(picture.low), np.array(picture.high)
    size = np.array([columns, lines])
    place = np.clip((snapshot.trails - low) / (high - low), 0, 1)
    place[..., 1] = 1 - place[..., 1]
    place *= size
    names = [escape(plain(name)) for name in picture.names]
    view = " ".join(f"{number:.9g}" for number in (_LEFT, _TOP, columns, lines, *low, *high))
    label = escape(f"{snapshot.line()}. Across: {picture.names[0]}, up: {picture.names[1]}.")
    return (
        f'<svg class="xpu-plot" role="img" aria-label="{label}" data-view="{view}" '
        f'viewBox="0 0 {_LEFT + columns + _RIGHT} {_TOP + lines + _BOTTOM}">'
        f"{_grid(picture, columns, lines)}"
        f'<svg x="{_LEFT}" y="{_TOP}" width="{columns}" height="{lines}">'
        f'<image width="{columns}" height="{lines}" href="{image}"/>'
        f"{''.join(_trail(place[:, j]) for j in range(snapshot.k))}</svg>"
        f"{''.join(_center(j, *(place[-1, j] + (_LEFT, _TOP))) for j in range(snapshot.k))}"
        f'<text x="{_LEFT + columns / 2}" y="{_TOP + lines + 34}" text-anchor="middle">{names[0]}</text>'
        f'<text transform="translate(12,{_TOP + lines / 2}) rotate(-90)" text-anchor="middle">{names[1]}</text></svg>'
    )


def _grid(picture: Picture, columns: int, lines: int) -> str:
    pieces = [f'<rect class="xpu-axis" x="{_LEFT}" y="{_TOP}" width="{columns}" height="{lines}"/>']
    for value, text in _ticks(picture.low[0], picture.high[0]):
        x = _LEFT + columns * (value - picture.low[0]) / (picture.high[0] - picture.low[0])
        pieces.append(f'<path class="xpu-faint" d="M{x:.1f} {_TOP}v{lines}"/>')
        pieces.append(f'<text x="{x:.1f}" y="{_TOP + lines + 16}" text-anchor="middle">{text}</text>')
    for value, text in _ticks(picture.low[1], picture.high[1]):
        y = _TOP + lines * (1 - (value - picture.low[1]) / (picture.high[1] - picture.low[1]))
        pieces.append(f'<path class="xpu-faint" d="M{_LEFT} {y:.1f}h{columns}"/>')
        pieces.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(pieces)


def _trail(places: np.ndarray) -> str:
    if len(places) < 2:
        return ""
    return polyline("xpu-halo", places) + polyline("xpu-trail", places)


def _center(j: int, x: float, y: float) -> str:
    colour = colour_of(j)
    return (
        f'<g class="xpu-center" data-center="{j}" transform="translate({x:.1f},{y:.1f})">'
        f'<circle r="10" fill="{colour}"/><text y="4" style="fill:{ink_on(colour)}">{j}</text></g>'
    )


def _figure(snapshot: Snapshot, axes: Sequence[Axes] | None) -> Figure:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    if axes is None:
        figure, places = plt.subplot_mosaic(
            [["rows", "inertia"], ["rows", "elbow"]], figsize=(11, 5.5), layout="constrained", width_ratios=(2, 1)
        )
        axes = [places[name] for name in ("rows", "inertia", "elbow")]
        if "inline" in matplotlib.get_backend():
            plt.close(figure)  # as the cell's result it is shown already; open, the inline backend would show it again
    rows, inertia, elbow = axes
    _draw_rows(snapshot, rows)
    inertia.plot(snapshot.inertias, marker=".")
    inertia.set(xlabel="iteration", ylabel="inertia")
    elbow.plot(list(snapshot.elbows), list(snapshot.elbows.values()), marker=".")
    elbow.set(xlabel="number of clusters", ylabel="inertia")
    elbow.set_visible(bool(snapshot.elbows))
    for each in (inertia, elbow):
        each.xaxis.set_major_locator(MaxNLocator(integer=True))
        each.grid(alpha=0.3)
    figure = rows.figure.get_figure(root=True)
    assert figure is not None
    return figure


def _draw_rows(snapshot: Snapshot, axes: Axes) -> None:
    from matplotlib.patheffects import withStroke

    picture = snapshot.picture
    extent = (picture.low[0], picture.high[0], picture.low[1], picture.high[1])
    axes.imshow(INKS[colour(picture.counts)], extent=extent, aspect="auto", interpolation="nearest")
    for j, (x, y) in enumerate(snapshot.trails[-1]):
        axes.plot(
            *snapshot.trails[:, j].T, color="black", lw=1.2, path_effects=[withStroke(linewidth=3, foreground="w")]
        )
        axes.text(
            x, y, str(j), color=ink_on(colour_of(j)), ha="center", va="center", weight="bold", size=8,
            bbox={"boxstyle": "circle", "facecolor": colour_of(j), "edgecolor": "w"},
        )  # fmt: skip
    axes.set(xlabel=plain(picture.names[0]), ylabel=plain(picture.names[1]), title=plain(snapshot.line()))
    axes.title.set_fontsize(9)
