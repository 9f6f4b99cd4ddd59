"""The state of an explorer at one moment, as HTML, as text, or as a matplotlib figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xpulab.explorer.picture import INKS, Picture, ink_on
from xpulab.report.curves import polyline, small_curve
from xpulab.report.rendering import (
    Displayed,
    Html,
    block,
    counted,
    drawn,
    escape,
    format_number,
    plain,
    style,
    table_html,
    table_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Snapshot"]

# Margins of the plot, in pixels of the picture.
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 10, 12, 40
_INK, _GRID, _WHITE = "#333333", "#dddddd", "#ffffff"  # colours of the image, which is white in every theme


@dataclass(frozen=True, eq=False)
class Snapshot(Displayed):
    """The state of an explorer at one moment. A notebook shows it as HTML, a terminal as text.

    Attributes
    ----------
    picture : Picture
        The clusters in the plane of two features.
    k, points, n_samples, n_features : int
        Numbers of clusters, of used rows, of all rows, and of features.
    random_state : int
        Random state of the initial centres.
    trails : numpy.ndarray of float64 of shape (n_iterations + 1, k, 2)
        The initial centres, and the centres after each iteration, in the two features of the picture.
    inertias : tuple of float
        Inertia for each element of `trails`.
    elbows : dict of int to float
        Number of clusters -> inertia.
    converged : bool
        Whether `KMeans` would end after the last iteration.
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
        """The image of the rows, without axes and centres."""
        return self.picture.png

    def image(self) -> bytes:
        """Return the plot as a PNG on white: rows, axes, trails and centres."""
        return _painted(self)

    def line(self) -> str:
        """Return a summary on one line."""
        rows = f"{self.points:,}" + (f" of {self.n_samples:,}" if self.points < self.n_samples else "")
        n = len(self.inertias) - 1
        turns = counted(n, "iteration") + (", converged" if self.converged else "")
        return (
            f"k-means of {rows} rows x {self.n_features}, k={self.k}, start {self.random_state}: {turns}, "
            f"inertia {format_number(self.inertias[-1])}"
        )

    def __str__(self) -> str:
        lines = [self.line(), table_text(self._header(), self._rows(), "rrrr")]
        return "\n".join(lines + ([f"  {self._found()}"] if self.elbows else []))

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, extra: str = "") -> Html:
        """Return the snapshot as HTML.

        Parameters
        ----------
        extra : str, default=""
            HTML that follows; it is not escaped.
        """
        parts = [drawn(self.body(_address(self.png)), self._words()), f"<div>{escape(self.line())}</div>"]
        return block(f"k-means explorer: {self.line()}", [*parts, self.table(), extra], style("explorer"))

    def body(self, image: str) -> Html:
        """Return the plot and the curves, without their style sheet.

        Parameters
        ----------
        image : str
            The URL of the image of the rows.
        """
        return Html(
            f'<div class="xpu-explore">{_plot(self, image)}<div>'
            f"{small_curve('Inertia by iteration', list(enumerate(self.inertias)))}"
            f"{small_curve('Inertia by number of clusters', list(self.elbows.items()), self.k)}"
            "</div></div>"
        )

    def table(self) -> Html:
        """Return the centres as a folded table."""
        rows = [
            (Html(f'<i class="xpu-key" style="background:{self.picture.colours[j]}"></i>{j}'), *cells)
            for j, (_, *cells) in enumerate(self._rows())
        ]
        return Html(f"<details><summary>Centres</summary>{table_html(self._header(), rows, 'lrrr')}</details>")

    def plot(self, axes: Sequence[Axes] | None = None) -> Figure:
        """Draw the snapshot as a matplotlib figure: the rows, the inertia by iteration, and the elbow curve.

        Parameters
        ----------
        axes : sequence of three matplotlib Axes, optional
            The axes to draw on; those of a new figure by default.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return _figure(self, axes)

    def _header(self) -> tuple[str, ...]:
        return ("cluster", *self.picture.names, "rows in view")

    def _found(self) -> str:
        found = ", ".join(f"{k}: {format_number(inertia, 4)}" for k, inertia in self.elbows.items())
        return f"inertia by number of clusters: {found}"

    def _words(self) -> str:
        """Return a description that replaces the plot and the curves in front ends that remove SVG."""
        image = f'<img alt="{_label(self)}" src="{_address(self.image())}">'
        return image + (f"<div>{self._found()}</div>" if self.elbows else "")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (str(j), format_number(x, 4), format_number(y, 4), f"{size:,}")
            for j, ((x, y), size) in enumerate(zip(self.trails[-1], self.picture.sizes, strict=True))
        ]


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return round numbers between two values, each with its label."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [(float(v), f"{v:.8g}") for v in values if low <= v <= high]


def _address(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _label(snapshot: Snapshot) -> Html:
    across, up = snapshot.picture.names
    return escape(f"{snapshot.line()}. Across: {across}, up: {up}.")


def _places(snapshot: Snapshot) -> np.ndarray:
    """Return the trails in pixels from the upper left corner; points outside of the picture are moved to its edge."""
    picture = snapshot.picture
    lines, columns = picture.counts.shape[1:]
    low, high = np.array(picture.low), np.array(picture.high)
    places = np.clip((snapshot.trails - low) / (high - low), 0, 1)
    places[..., 1] = 1 - places[..., 1]
    return places * (columns, lines)


def _plot(snapshot: Snapshot, image: str) -> str:
    """Draw the plot as SVG: the rows are an image; axes, trails and centres are shapes, which are sharp at any size."""
    picture = snapshot.picture
    lines, columns = picture.counts.shape[1:]
    place = _places(snapshot)
    names = [escape(plain(name)) for name in picture.names]
    view = " ".join(f"{number:.9g}" for number in (_LEFT, _TOP, columns, lines, *picture.low, *picture.high))
    return (
        f'<svg class="xpu-plot" role="img" aria-label="{_label(snapshot)}" data-view="{view}" '
        f'viewBox="0 0 {_LEFT + columns + _RIGHT} {_TOP + lines + _BOTTOM}">'
        f"{_grid(picture, columns, lines)}"
        f'<svg x="{_LEFT}" y="{_TOP}" width="{columns}" height="{lines}">'
        f'<image width="{columns}" height="{lines}" href="{image}"/>'
        f"{''.join(_trail(place[:, j]) for j in range(snapshot.k))}</svg>"
        f"{''.join(_center(j, picture.colours[j], *(place[-1, j] + (_LEFT, _TOP))) for j in range(snapshot.k))}"
        f'<text x="{_LEFT + columns / 2}" y="{_TOP + lines + 34}" text-anchor="middle">{names[0]}</text>'
        f'<text transform="translate(12,{_TOP + lines / 2}) rotate(-90)" text-anchor="middle">{names[1]}</text></svg>'
    )


def _marks(picture: Picture) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Return the ticks of both axes: positions in pixels from the upper left corner, and labels."""
    lines, columns = picture.counts.shape[1:]
    (left, bottom), (right, top) = picture.low, picture.high
    across = [(columns * (value - left) / (right - left), text) for value, text in _ticks(left, right)]
    up = [(lines * (1 - (value - bottom) / (top - bottom)), text) for value, text in _ticks(bottom, top)]
    return across, up


def _painted(snapshot: Snapshot) -> bytes:
    """Draw the plot as PNG, for front ends without SVG. matplotlib would take thirty times as long."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    picture = snapshot.picture
    lines, columns = picture.counts.shape[1:]
    image = Image.new("RGB", (_LEFT + columns + _RIGHT, _TOP + lines + _BOTTOM), _WHITE)
    draw = ImageDraw.Draw(image)
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), 11)
    across, up = _marks(picture)
    for x, text in across:
        draw.line([(_LEFT + x, _TOP), (_LEFT + x, _TOP + lines)], _GRID)
        draw.text((_LEFT + x, _TOP + lines + 5), text, _INK, font, anchor="mt")
    for y, text in up:
        draw.line([(_LEFT, _TOP + y), (_LEFT + columns, _TOP + y)], _GRID)
        draw.text((_LEFT - 6, _TOP + y), text, _INK, font, anchor="rm")
    draw.rectangle([_LEFT, _TOP, _LEFT + columns, _TOP + lines], outline=_INK)
    rows = Image.fromarray(INKS[picture.pixels], "RGBA")
    image.paste(rows, (_LEFT, _TOP), rows)
    places = _places(snapshot) + np.array([_LEFT, _TOP])
    for ink, width in ((_WHITE, 5), (_INK, 2)):
        for j in range(snapshot.k if len(places) > 1 else 0):
            draw.line([(float(x), float(y)) for x, y in places[:, j]], ink, width)
    for j, (x, y) in enumerate(places[-1]):
        hue = picture.colours[j]
        draw.ellipse([x - 12, y - 12, x + 12, y + 12], _INK)
        draw.ellipse([x - 11, y - 11, x + 11, y + 11], hue, _WHITE, 2)
        draw.text((x, y), str(j), ink_on(hue), font, anchor="mm")
    draw.text((_LEFT + columns / 2, _TOP + lines + 24), plain(picture.names[0]), _INK, font, anchor="mt")
    name = Image.new("RGB", (lines, 14), _WHITE)
    ImageDraw.Draw(name).text((lines / 2, 7), plain(picture.names[1]), _INK, font, anchor="mm")
    image.paste(name.rotate(90, expand=True), (2, _TOP))
    file = io.BytesIO()
    image.quantize(128, method=Image.Quantize.FASTOCTREE).save(file, "PNG", compress_level=6)
    return file.getvalue()


def _grid(picture: Picture, columns: int, lines: int) -> str:
    pieces = [f'<rect class="xpu-axis" x="{_LEFT}" y="{_TOP}" width="{columns}" height="{lines}"/>']
    across, up = _marks(picture)
    for x, text in across:
        pieces.append(f'<path class="xpu-faint" d="M{_LEFT + x:.1f} {_TOP}v{lines}"/>')
        pieces.append(f'<text x="{_LEFT + x:.1f}" y="{_TOP + lines + 16}" text-anchor="middle">{text}</text>')
    for y, text in up:
        pieces.append(f'<path class="xpu-faint" d="M{_LEFT} {_TOP + y:.1f}h{columns}"/>')
        pieces.append(f'<text x="{_LEFT - 6}" y="{_TOP + y + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(pieces)


def _trail(places: np.ndarray) -> str:
    if len(places) < 2:
        return ""
    return polyline("xpu-halo", places) + polyline("xpu-trail", places)


def _center(j: int, colour: str, x: float, y: float) -> str:
    """Draw a disc with a dark and a light ring, so that one of the rings is visible on any background."""
    return (
        f'<g class="xpu-center" data-center="{j}" transform="translate({x:.1f},{y:.1f})">'
        f'<circle class="xpu-ring" r="12"/><circle r="10" fill="{colour}"/>'
        f'<text y="4" style="fill:{ink_on(colour)}">{j}</text></g>'
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
            plt.close(figure)  # otherwise the inline backend shows it, in addition to IPython
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
    axes.imshow(INKS[picture.pixels], extent=extent, aspect="auto", interpolation="nearest")
    for j, (x, y) in enumerate(snapshot.trails[-1]):
        axes.plot(
            *snapshot.trails[:, j].T, color="black", lw=1.2, path_effects=[withStroke(linewidth=3, foreground="w")]
        )
        axes.text(
            x, y, str(j), color=ink_on(picture.colours[j]), ha="center", va="center", weight="bold", size=8,
            bbox={"boxstyle": "circle", "facecolor": picture.colours[j], "edgecolor": "w"},
        )  # fmt: skip
    axes.set(xlabel=plain(picture.names[0]), ylabel=plain(picture.names[1]), title=plain(snapshot.line()))
    axes.title.set_fontsize(9)
