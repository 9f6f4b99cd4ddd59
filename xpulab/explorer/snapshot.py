"""The state of an explorer of iterations at one moment, as HTML, as text, or as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from xpulab.explorer.picture import LIGHT, ink_on
from xpulab.explorer.plane_snapshot import INK, LEFT, TOP, WHITE, PlaneSnapshot, in_pixels
from xpulab.report.curves import polyline, small_curve
from xpulab.report.figure import for_any_ground
from xpulab.report.rendering import Html, counted, format_number, table_html, table_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

__all__ = ["Snapshot"]

_DEVIATIONS = 2.0  # from the mean of a component to its ellipse


@dataclass(frozen=True, eq=False)
class Snapshot(PlaneSnapshot):
    """The state of an explorer of iterations at one moment. A notebook shows it as HTML, a terminal as text.

    Attributes
    ----------
    picture : Picture
        The clusters in the plane of two features.
    points, n_samples, n_features : int
        Numbers of used rows, of all rows, and of features.
    k : int
        Number of clusters.
    random_state : int
        Random state of the initial centres.
    trails : numpy.ndarray of float64 of shape (n_iterations + 1, k, 2)
        The initial centres, and the centres after each iteration, in the two features of the picture.
    inertias : tuple of float
        Inertia for each element of `trails`, or what `measure` says.
    elbows : dict of int to float
        Number of clusters -> inertia.
    converged : bool
        Whether `KMeans` would end after the last iteration.
    past : tuple of float
        The inertias of the trails before, which are shown until there is an iteration from these centres.
    selection : Selection, optional
        The rows inside of a shape.
    method : str
        What the explorer shows, ``"k-means"`` or ``"Gaussian mixture"``.
    measure : str
        The quantity in `inertias` and `past`: ``"inertia"`` or ``"lower bound"``.
    covariances : numpy.ndarray of shape (m, k, 2, 2), optional
        Covariances of the components of a mixture in the two features, after the last two iterations at most.
    """

    k: int
    random_state: int
    trails: np.ndarray
    inertias: tuple[float, ...]
    elbows: dict[int, float]
    converged: bool
    past: tuple[float, ...] = ()
    method: str = field(default="k-means", kw_only=True)
    measure: str = "inertia"
    covariances: np.ndarray | None = None

    def line(self) -> str:
        """Return a summary on one line."""
        n = len(self.inertias) - 1
        turns = counted(n, "iteration") + (", converged" if self.converged else "")
        return (
            f"{self.method} of {self._rows_used}, k={self.k}, start {self.random_state}: {turns}, "
            f"{self.measure} {format_number(self.inertias[-1])}"
        )

    def __str__(self) -> str:
        lines = [self.line(), table_text(self._header(), self._rows(), "rrrr")]
        lines += [f"  {self.selection}"] if self.selection else []
        return "\n".join(lines + ([f"  {self._found()}"] if self.elbows else []))

    def table(self) -> Html:
        """Return the centres as a folded table."""
        rows = [
            (Html(f'<i class="xpu-key xpu-hue" style="--xpu-hue:{self.picture.colours[j]}"></i>{j}'), *cells)
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

    def _curves(self) -> str:
        title, inertias = f"{self.measure.capitalize()} by iteration", self.inertias
        if len(inertias) < 2 and self.past:
            title, inertias = f"{title}, before the last move", self.past
        points = list(enumerate(inertias))
        # k-means++ gives each component one row, and a bound that is so low that all others would look the same.
        first = 1 if self.covariances is not None and len(inertias) > 2 else 0
        elbows = small_curve("Inertia by number of clusters", list(self.elbows.items()), self.k)
        return small_curve(title, points[first:]) + elbows

    def _words(self) -> str:
        return super()._words() + (f"<div>{self._found()}</div>" if self.elbows else "")

    def _in_plot(self) -> str:
        """Draw ellipses and trails."""
        shapes = ""
        for since, edge in self._ellipses():
            shapes += polyline("xpu-halo", edge) + polyline("xpu-before" if since else "xpu-trail", edge)
        return shapes + "".join(_trail(places) for places in self._places().swapaxes(0, 1))

    def _over_plot(self) -> str:
        """Draw the centres."""
        places = self._places()[-1] + (LEFT, TOP)
        return "".join(_center(j, self.picture.colours[j], *place) for j, place in enumerate(places))

    def _paint(self, draw: ImageDraw, font: FreeTypeFont) -> None:
        margin, (lines, columns) = np.array([LEFT, TOP]), self.picture.counts.shape[1:]
        places = self._places() + margin
        for ink, width in ((WHITE, 5), (INK, 2)):
            for j in range(self.k if len(places) > 1 else 0):
                draw.line([(float(x), float(y)) for x, y in places[:, j]], ink, width)
        for edge in [edge for since, edge in self._ellipses() if not since]:
            draw.line([(float(x), float(y)) for x, y in np.clip(edge, 0, (columns, lines)) + margin], INK, 2)
        for j, (x, y) in enumerate(places[-1]):
            red, green, blue = LIGHT.shown(np.array([*bytes.fromhex(self.picture.colours[j][1:]), 255]))[:3].tolist()
            hue = f"#{red:02x}{green:02x}{blue:02x}"
            draw.ellipse([x - 12, y - 12, x + 12, y + 12], INK)
            draw.ellipse([x - 11, y - 11, x + 11, y + 11], hue, WHITE, 2)
            draw.text((x, y), str(j), ink_on(hue), font, anchor="mm")

    def _draw_rows(self, axes: Axes) -> None:
        from matplotlib.patheffects import withStroke

        super()._draw_rows(axes)
        halo, (lines, columns) = [withStroke(linewidth=3, foreground="w")], self.picture.counts.shape[1:]
        (left, bottom), (right, top) = self.picture.low, self.picture.high
        for since, edge in self._ellipses():
            x, y = edge.T / np.array([[columns], [lines]])
            axes.plot(
                left + x * (right - left), top - y * (top - bottom), color="black", lw=1.2, ls="--" if since else "-",
                path_effects=halo,
            )  # fmt: skip
        for j, (x, y) in enumerate(self.trails[-1]):
            axes.plot(*self.trails[:, j].T, color="black", lw=1.2, path_effects=halo)
            axes.text(
                x, y, str(j), color=ink_on(self.picture.colours[j]), ha="center", va="center", weight="bold", size=8,
                bbox={"boxstyle": "circle", "facecolor": self.picture.colours[j], "edgecolor": "w"},
            )  # fmt: skip

    def _places(self) -> np.ndarray:
        """Return the trails in pixels from the upper left corner; points outside of the picture are at its edge."""
        lines, columns = self.picture.counts.shape[1:]
        return np.clip(in_pixels(self.picture, self.trails), 0, (columns, lines))

    def _ellipses(self) -> list[tuple[int, np.ndarray]]:
        """Return the ellipses of a mixture in pixels, (49, 2), each with the number of iterations since."""
        if self.covariances is None:
            return []
        angles = np.linspace(0, 2 * np.pi, 49)
        circle = _DEVIATIONS * np.column_stack([np.cos(angles), np.sin(angles)])
        values, vectors = np.linalg.eigh(self.covariances)
        roots = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
        means = self.trails[-len(roots) :]
        drawn = means[:, :, None] + circle @ roots.swapaxes(-1, -2)
        since = [len(roots) - 1 - i for i in range(len(roots)) for _ in range(self.k)]
        return list(zip(since, in_pixels(self.picture, drawn).reshape(-1, *circle.shape), strict=True))

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (str(j), format_number(x, 4), format_number(y, 4), f"{size:,}")
            for j, ((x, y), size) in enumerate(zip(self.trails[-1], self.picture.sizes, strict=True))
        ]


def _trail(places: np.ndarray) -> str:
    if len(places) < 2:
        return ""
    return polyline("xpu-halo", places) + polyline("xpu-trail", places)


def _center(j: int, colour: str, x: float, y: float) -> str:
    """Draw a disc with a dark and a light ring, so that one of the rings is visible on any background."""
    return (
        f'<g class="xpu-center" data-center="{j}" transform="translate({x:.1f},{y:.1f})">'
        f'<circle class="xpu-ring" r="12"/><circle class="xpu-hue" r="10" style="--xpu-hue:{colour}"/>'
        f'<text y="4" style="fill:{ink_on(colour)}">{j}</text></g>'
    )


def _figure(snapshot: Snapshot, axes: Sequence[Axes] | None) -> Figure:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    given = axes is not None
    if axes is None:
        figure, places = plt.subplot_mosaic(
            [["rows", "inertia"], ["rows", "elbow"]], figsize=(11, 5.5), layout="constrained", width_ratios=(2, 1)
        )
        axes = [places[name] for name in ("rows", "inertia", "elbow")]
        if "inline" in matplotlib.get_backend():
            plt.close(figure)  # otherwise the inline backend shows it, in addition to IPython
    rows, inertia, elbow = axes
    snapshot._draw_rows(rows)
    first = 1 if snapshot.covariances is not None and len(snapshot.inertias) > 2 else 0  # as in `Snapshot._curves`
    inertia.plot(range(first, len(snapshot.inertias)), snapshot.inertias[first:], marker=".")
    inertia.set(xlabel="iteration", ylabel=snapshot.measure)
    elbow.plot(list(snapshot.elbows), list(snapshot.elbows.values()), marker=".")
    elbow.set(xlabel="number of clusters", ylabel="inertia")
    elbow.set_visible(bool(snapshot.elbows))
    for each in (inertia, elbow):
        each.xaxis.set_major_locator(MaxNLocator(integer=True))
        each.grid(alpha=0.3)
    figure = rows.figure.get_figure(root=True)
    assert figure is not None
    if not given:
        for_any_ground(figure)
    return figure
