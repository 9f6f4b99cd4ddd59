"""A picture of rows in a plane at one moment, with its axes: as HTML, as text, as PNG, or as a matplotlib figure."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xpulab.explorer.picture import DARK, INKS, LIGHT, Ground, Picture
from xpulab.report.curves import polyline
from xpulab.report.figure import for_any_ground
from xpulab.report.rendering import Displayed, Html, block, drawn, escape, plain, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

__all__ = ["INK", "LEFT", "TOP", "WHITE", "PlaneSnapshot", "Selection", "in_pixels"]

# Margins of the plot, in pixels of the picture.
LEFT, TOP, _RIGHT, _BOTTOM = 60, 10, 12, 40
INK, _GRID, WHITE = "#333333", "#dddddd", "#ffffff"  # colours of the image, which is white in every theme


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows inside of a shape.

    Attributes
    ----------
    sizes : tuple of int
        Number of selected rows of each cluster.
    corners : numpy.ndarray of shape (n_corners, 2), or None
        The shape, in the units of the features; None if the picture shows other features.
    noise : int
        Number of selected rows in no cluster.
    """

    sizes: tuple[int, ...]
    corners: np.ndarray | None
    noise: int = 0

    def __str__(self) -> str:
        total = sum(self.sizes) + self.noise
        if not total:
            return "no rows selected"
        named = [f"{size:,} of cluster {j}" for j, size in enumerate(self.sizes) if size]
        parts = ", ".join([*named[:20], *([f"{len(named) - 20:,} more clusters"] if len(named) > 20 else [])])
        parts += f"{', ' if parts else ''}{self.noise:,} of noise" if self.noise else ""
        return f"{total:,} {'row' if total == 1 else 'rows'} selected: {parts}"


@dataclass(frozen=True, eq=False)
class PlaneSnapshot(Displayed):
    """The state of an explorer at one moment. A notebook shows it as HTML, a terminal as text.

    Attributes
    ----------
    picture : Picture
        The rows in the plane of two features.
    points, n_samples, n_features : int
        Numbers of used rows, of all rows, and of features.
    selection : Selection, optional
        The rows inside of a shape.
    method : str
        What the explorer shows, such as ``"k-means"``.
    """

    picture: Picture
    points: int
    n_samples: int
    n_features: int
    selection: Selection | None = field(default=None, kw_only=True)
    method: str = field(default="", kw_only=True)

    @property
    def png(self) -> bytes:
        """The image of the rows, without axes."""
        return self.picture.png

    def image(self) -> bytes:
        """Return the plot as a PNG on white, with its axes."""
        return _painted(self)

    def line(self) -> str:
        """Return a summary on one line."""
        raise NotImplementedError

    def table(self) -> Html:
        """Return the clusters as a folded table."""
        raise NotImplementedError

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
        parts += [f"<div>{escape(str(self.selection))}</div>"] if self.selection else []
        return block(f"{self.method} explorer: {self.line()}", [*parts, self.table(), extra], style("explorer"))

    def body(self, image: str) -> Html:
        """Return the plot, without its style sheet.

        Parameters
        ----------
        image : str
            The URL of the image of the rows.
        """
        return Html(f'<div class="xpu-explore">{_plot(self, image)}<div>{self._curves()}</div></div>')

    def plot(self, axes: Sequence[Axes] | None = None) -> Figure:
        """Draw the rows as a matplotlib figure.

        Parameters
        ----------
        axes : sequence of matplotlib Axes, optional
            The first one is drawn on, and all others are hidden; by default that of a new figure.

        Returns
        -------
        matplotlib.figure.Figure
        """
        import matplotlib
        import matplotlib.pyplot as plt

        given = axes is not None
        if axes is None:
            figure, rows = plt.subplots(figsize=(7.5, 5.5), layout="constrained")
            axes = [rows]
            if "inline" in matplotlib.get_backend():
                plt.close(figure)  # otherwise the inline backend shows it, in addition to IPython
        self._draw_rows(axes[0])
        for each in axes[1:]:
            each.set_visible(False)
        found = axes[0].figure.get_figure(root=True)
        assert found is not None
        if not given:
            for_any_ground(found)
        return found

    # -- what a kind of explorer adds ---------------------------------------------------------------------------------

    def _curves(self) -> str:
        """Return what stands beside the plot, in HTML."""
        return ""

    def _words(self) -> str:
        """Return a description that replaces the plot and the curves in front ends that remove SVG."""
        return f'<img alt="{_label(self)}" src="{_address(self.image())}">'

    def _in_plot(self) -> str:
        """Return SVG that is drawn on the rows, and cut off at the edges of the picture."""
        return ""

    def _over_plot(self) -> str:
        """Return SVG that is drawn on all else."""
        return ""

    def _paint(self, draw: ImageDraw, font: FreeTypeFont) -> None:
        """Draw the same on the PNG."""

    def _draw_rows(self, axes: Axes) -> None:
        """Draw the rows and the shape with matplotlib."""
        picture = self.picture
        extent = (picture.low[0], picture.high[0], picture.low[1], picture.high[1])
        inks = LIGHT.shown(INKS) / 255
        on_white = 1 - inks[:, 3:] * (1 - inks[:, :3])  # the rows bring a ground on which the faintest can be seen
        axes.imshow(on_white[picture.pixels], extent=extent, aspect="auto", interpolation="nearest")
        if self.selection is not None and self.selection.corners is not None:
            axes.fill(*self.selection.corners.T, fill=False, color="black", lw=1, ls="--")
        axes.set(xlim=extent[:2], ylim=extent[2:], title=plain(self.line()))
        axes.set(xlabel=plain(picture.names[0]), ylabel=plain(picture.names[1]))
        axes.title.set_fontsize(9)

    @property
    def _rows_used(self) -> str:
        """The used rows and the features, ``"1,000 of 9,000 rows x 5"``."""
        rows = f"{self.points:,}" + (f" of {self.n_samples:,}" if self.points < self.n_samples else "")
        return f"{rows} rows x {self.n_features}"


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return round numbers between two values, each with its label."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [(float(v), f"{v:.8g}") for v in values if low <= v <= high]


def _address(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _label(snapshot: PlaneSnapshot) -> Html:
    across, up = snapshot.picture.names
    return escape(f"{snapshot.line()}. Across: {across}, up: {up}.")


def in_pixels(picture: Picture, places: np.ndarray) -> np.ndarray:
    """Convert places (.., 2) in the units of the features to pixels from the upper left corner."""
    lines, columns = picture.counts.shape[1:]
    low, high = np.array(picture.low), np.array(picture.high)
    shares = (places - low) / (high - low)
    shares[..., 1] = 1 - shares[..., 1]
    return shares * (columns, lines)


def _corners(snapshot: PlaneSnapshot) -> np.ndarray | None:
    """Return the corners of the user's shape in pixels, with the first one again at the end."""
    if snapshot.selection is None or snapshot.selection.corners is None:
        return None
    return in_pixels(snapshot.picture, np.vstack([snapshot.selection.corners, snapshot.selection.corners[:1]]))


def _plot(snapshot: PlaneSnapshot, image: str) -> str:
    """Draw the plot as SVG: the rows are an image; axes and what is on them are shapes, which are sharp at any size."""
    picture = snapshot.picture
    lines, columns = picture.counts.shape[1:]
    names = [escape(plain(name)) for name in picture.names]
    number = f"{zlib.crc32(snapshot.line().encode()):08x}"
    filters, use = "", ""
    for name, ground in (("light", LIGHT), ("dark", DARK)):
        filters += _filter(f"xpu-{name}-{number}", ground)
        use += f"--xpu-{name}:url(#xpu-{name}-{number});"
    corners = _corners(snapshot)
    shape = "" if corners is None else polyline("xpu-halo", corners) + polyline("xpu-lasso", corners)
    view = " ".join(f"{number:.9g}" for number in (LEFT, TOP, columns, lines, *picture.low, *picture.high))
    return (
        f'<svg class="xpu-plot" role="img" aria-label="{_label(snapshot)}" data-view="{view}" '
        f'viewBox="0 0 {LEFT + columns + _RIGHT} {TOP + lines + _BOTTOM}">'
        f"{filters}"
        f"{_grid(picture, columns, lines)}"
        f'<svg x="{LEFT}" y="{TOP}" width="{columns}" height="{lines}">'
        f'<image style="{use}" width="{columns}" height="{lines}" href="{image}"/>'
        f"{shape}{snapshot._in_plot()}</svg>{snapshot._over_plot()}"
        f'<text x="{LEFT + columns / 2}" y="{TOP + lines + 34}" text-anchor="middle">{names[0]}</text>'
        f'<text transform="translate(12,{TOP + lines / 2}) rotate(-90)" text-anchor="middle">{names[1]}</text></svg>'
    )


def _filter(name: str, ground: Ground) -> str:
    """Return an SVG filter that does what `Ground.shown` does."""
    linear = f'type="linear" slope="{ground.slope:g}" intercept="{ground.lift:g}"'
    opacities = " ".join(f"{each:g}" for each in ground.opacities)
    parts = "".join(f"<feFunc{channel} {linear}/>" for channel in "RGB")
    return (
        f'<filter id="{name}" color-interpolation-filters="sRGB"><feComponentTransfer>{parts}'
        f'<feFuncA type="table" tableValues="{opacities}"/></feComponentTransfer></filter>'
    )


def _marks(picture: Picture) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Return the ticks of both axes: positions in pixels from the upper left corner, and labels."""
    lines, columns = picture.counts.shape[1:]
    (left, bottom), (right, top) = picture.low, picture.high
    across = [(columns * (value - left) / (right - left), text) for value, text in _ticks(left, right)]
    up = [(lines * (1 - (value - bottom) / (top - bottom)), text) for value, text in _ticks(bottom, top)]
    return across, up


def _painted(snapshot: PlaneSnapshot) -> bytes:
    """Draw the plot as PNG, for front ends without SVG. matplotlib would take thirty times as long."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    picture = snapshot.picture
    lines, columns = picture.counts.shape[1:]
    image = Image.new("RGB", (LEFT + columns + _RIGHT, TOP + lines + _BOTTOM), WHITE)
    draw = ImageDraw.Draw(image)
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), 11)
    across, up = _marks(picture)
    for x, text in across:
        draw.line([(LEFT + x, TOP), (LEFT + x, TOP + lines)], _GRID)
        draw.text((LEFT + x, TOP + lines + 5), text, INK, font, anchor="mt")
    for y, text in up:
        draw.line([(LEFT, TOP + y), (LEFT + columns, TOP + y)], _GRID)
        draw.text((LEFT - 6, TOP + y), text, INK, font, anchor="rm")
    draw.rectangle([LEFT, TOP, LEFT + columns, TOP + lines], outline=INK)
    rows = Image.fromarray(LIGHT.shown(INKS)[picture.pixels], "RGBA")
    image.paste(rows, (LEFT, TOP), rows)
    if (corners := _corners(snapshot)) is not None:
        drawn = np.clip(corners, 0, (columns, lines)) + np.array([LEFT, TOP])
        draw.line([(float(x), float(y)) for x, y in drawn], INK, 2)
    snapshot._paint(draw, font)
    draw.text((LEFT + columns / 2, TOP + lines + 24), plain(picture.names[0]), INK, font, anchor="mt")
    name = Image.new("RGB", (lines, 14), WHITE)
    ImageDraw.Draw(name).text((lines / 2, 7), plain(picture.names[1]), INK, font, anchor="mm")
    image.paste(name.rotate(90, expand=True), (2, TOP))
    file = io.BytesIO()
    image.quantize(128, method=Image.Quantize.FASTOCTREE).save(file, "PNG", compress_level=6)
    return file.getvalue()


def _grid(picture: Picture, columns: int, lines: int) -> str:
    frame = f'x="{LEFT}" y="{TOP}" width="{columns}" height="{lines}"'
    pieces = [f'<rect class="xpu-ground" {frame}/><rect class="xpu-axis" {frame}/>']
    across, up = _marks(picture)
    for x, text in across:
        pieces.append(f'<path class="xpu-faint" d="M{LEFT + x:.1f} {TOP}v{lines}"/>')
        pieces.append(f'<text x="{LEFT + x:.1f}" y="{TOP + lines + 16}" text-anchor="middle">{text}</text>')
    for y, text in up:
        pieces.append(f'<path class="xpu-faint" d="M{LEFT} {TOP + y:.1f}h{columns}"/>')
        pieces.append(f'<text x="{LEFT - 6}" y="{TOP + y + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(pieces)
