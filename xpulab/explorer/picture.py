"""Turns counts of rows by cluster and pixel into an image: a colour per cluster, more opaque where rows are denser."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xpulab.explorer.counting import LARGEST

__all__ = [
    "DARK",
    "FAMILIES",
    "INKS",
    "LIGHT",
    "PALETTE",
    "DensityPicture",
    "Ground",
    "Picture",
    "colour",
    "encode",
    "hues",
    "ink_on",
    "neighbours",
]

#: Colours of clusters. With more than twelve clusters some share a colour, see `hues`. A search found these colours:
#: readers who do not see red, green or blue can distinguish them, most easily the first ones, and they are visible on
#: white and on black.
PALETTE = (
    "#3cb4ff", "#3c5a2d", "#960096", "#2d3cff", "#e196a5", "#96b41e",
    "#5a960f", "#e10fb4", "#786969", "#1e87ff", "#c37878", "#2d7800",
)  # fmt: skip


class Ground(NamedTuple):
    """How colours are changed on a light or a dark ground, where even the faintest have a contrast of at least 3:1.

    Attributes
    ----------
    slope, lift : float
        A part of a colour is multiplied by `slope`, and `lift` is added.
    opacities : tuple of float
        The opacity of what had an opacity of 0, 0.2, 0.4, 0.6, 0.8 and 1; in between it is interpolated.
    """

    slope: float
    lift: float
    opacities: tuple[float, ...]

    def shown(self, inks: np.ndarray) -> np.ndarray:
        """Return colours, uint8 of shape (.., 4), as they are on this ground."""
        parts = inks / 255
        rgb = np.clip(self.slope * parts[..., :3] + self.lift, 0, 1)
        opacity = np.interp(parts[..., 3:], np.linspace(0, 1, len(self.opacities)), self.opacities)
        return np.round(255 * np.concatenate([rgb, opacity], axis=-1)).astype(np.uint8)


#: Where it is not known whether the ground is light or dark, the plot has a light one of its own. The numbers are in
#: explorer.css, too: 68 % of a colour with black, and 55 % with white.
LIGHT = Ground(0.68, 0.0, (0, 0.6, 0.8, 0.87, 0.93, 1))
DARK = Ground(0.55, 0.45, (0, 0.5, 0.75, 0.85, 0.93, 1))

#: For each colour its family: colours of one family are neighbouring hues (blue, green, purple, red), or grey.
FAMILIES = (0, 1, 2, 0, 3, 1, 1, 2, 4, 0, 3, 1)

#: With more clusters than this, clusters get colours one by one, without a look at those that come later.
_MOST_ARRANGED = 100

#: The colours of the largest clusters of DBSCAN, and the grey of all smaller ones.
_OF_LARGEST = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 8)
_BORDER = 2  # level of opacity of border rows

_LEVELS = 21  # levels of opacity: twelve colours at 21 levels, and transparent, fit into a byte
_FAINTEST = 0.4  # opacity of a pixel with one row
_FEW = 0.02  # if fewer than this share of all pixels have rows, these are drawn larger, and opaque
_DISC = [(y, x) for y in range(-2, 3) for x in range(-2, 3) if x * x + y * y <= 5]
_RING = [(y, x) for y, x in _DISC if x * x + y * y >= 4]
_CROSS = [(y, x) for y in range(-2, 3) for x in range(-2, 3) if abs(x) == abs(y)]


def hues(counts: np.ndarray, before: Sequence[int] = ()) -> list[int]:
    """Return the index of each cluster's colour in `PALETTE`.

    Each of up to twelve clusters has its own colour. Of more clusters, no two `neighbours` have colours of one family,
    as far as five families allow, and clusters of the same colour are far from each other.

    Parameters
    ----------
    counts : numpy.ndarray of int of shape (n_clusters, lines, columns)
        Number of rows by cluster and pixel.
    before : sequence of int, optional
        The colours that the clusters had before they moved: a cluster keeps its colour, unless a neighbour now has
        a colour of its family.

    Returns
    -------
    list of int
    """
    k, lines, columns = counts.shape
    n = len(PALETTE)
    if k <= n:
        return list(range(k))
    sizes = np.maximum(1, counts.sum(axis=(1, 2)))[:, None]
    middles = np.hstack(
        [counts.sum(axis=2) @ np.arange(lines)[:, None], counts.sum(axis=1) @ np.arange(columns)[:, None]]
    )
    middles = middles / sizes
    families = _families(middles, [FAMILIES[hue] for hue in before]) if k <= _MOST_ARRANGED else [-1] * k
    found: list[int] = []
    for j, family in enumerate(families):
        if len(before) == k and FAMILIES[before[j]] == family:
            found.append(before[j])
            continue
        away = np.linalg.norm(middles[:j] - middles[j], axis=1)
        order = [(j + step) % n for step in range(n)]  # if several are equally far, the next one in turn
        order = [hue for hue in order if family in (-1, FAMILIES[hue])]
        found.append(max(order, key=lambda hue: away[np.array(found, int) == hue].min(initial=np.inf)))
    return found


def neighbours(middles: np.ndarray) -> np.ndarray:
    """Return which points are neighbours: no third point is in the circle whose diameter is between them.

    Parameters
    ----------
    middles : numpy.ndarray of shape (n, 2)

    Returns
    -------
    numpy.ndarray of bool of shape (n, n)
    """
    squares = np.square(middles[:, None] - middles).sum(axis=2)
    through = squares[:, None, :] + squares[None, :, :]  # from i to a third point to j; smaller inside of the circle
    each = np.arange(len(middles))
    through[each, :, each] = through[:, each, each] = np.inf
    return (through.min(axis=2) >= squares) & ~np.eye(len(middles), dtype=bool)


def _families(middles: np.ndarray, before: list[int]) -> list[int]:
    """Return a family of colours for each point, different for neighbours; if possible those that they had before."""
    near = neighbours(middles)
    found = before if len(before) == len(middles) else [-1] * len(middles)
    found = [-1 if found[j] in {found[i] for i in np.flatnonzero(near[j, :j])} else found[j] for j in range(len(near))]
    most = [FAMILIES.count(family) for family in range(1 + max(FAMILIES))]
    while -1 in found:
        # The point whose neighbours leave the fewest families is next; of those, the one with most neighbours.
        taken = {j: {found[i] for i in np.flatnonzero(near[j])} - {-1} for j, family in enumerate(found) if family < 0}
        j = max(taken, key=lambda point: (len(taken[point]), int(near[point].sum())))
        used = [found.count(family) / most[family] for family in range(len(most))]
        found[j] = min(range(len(most)), key=lambda family: (family in taken[j], used[family]))
    return found


def ink_on(colour: str) -> str:
    """Return black or white, whichever has more contrast to a colour. The contrast is at least 4.5:1.

    Parameters
    ----------
    colour : str
        As ``"#rrggbb"``.

    Returns
    -------
    str
    """
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return "#000000" if float(linear @ (0.2126, 0.7152, 0.0722)) > 0.179 else "#ffffff"


def colour(counts: np.ndarray, of_clusters: Sequence[int]) -> np.ndarray:
    """Colour each pixel by the cluster that has most rows in it. More rows make it more opaque.

    Parameters
    ----------
    counts : numpy.ndarray of int of shape (n_clusters, lines, columns)
        Number of rows by cluster and pixel. The first line is at the bottom.
    of_clusters : sequence of int
        The index of each cluster's colour in `PALETTE`, see `hues`.

    Returns
    -------
    numpy.ndarray of uint8 of shape (lines, columns)
        Indices into `INKS`; the first line is at the top. Colours are not mixed, because a mixed colour could be that
        of another cluster.
    """
    cluster, most, total = np.full(counts.shape[1:], of_clusters[0], np.uint8), counts[0], counts[0].copy()
    for j, hue in list(enumerate(of_clusters))[1:]:
        np.copyto(cluster, hue, where=counts[j] > most)
        most = np.maximum(most, counts[j])
        total += counts[j]
    levels: Any = np.uint8(_LEVELS - 1)
    if np.count_nonzero(total) < _FEW * total.size:
        cluster, total = _enlarged(cluster, total)
    else:
        levels = _levels(total)
    inks = 1 + cluster * np.uint8(_LEVELS) + levels
    inks[total == 0] = 0
    return inks[::-1]


def _levels(total: np.ndarray) -> np.ndarray:
    """Turn numbers of rows into levels of opacity by logarithm. The fullest 0.5 % of the pixels have the last level."""
    top = max(2, int(np.quantile(total[total > 0], 0.995)))
    scale = np.log(np.maximum(np.arange(top + 1), 1)) / np.log(top)
    return np.round((_LEVELS - 1) * scale).astype(np.uint8)[np.minimum(total, top)]


def _enlarged(cluster: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw each pixel that has rows as a small disc. The disc with the most rows is on top."""
    lines, columns = total.shape
    y, x = np.nonzero(total)
    order = np.argsort(total[y, x], kind="stable")
    y, x = y[order], x[order]
    larger_cluster, larger_total = np.zeros_like(cluster), np.zeros_like(total)
    for down, right in _DISC:
        to_y, to_x = np.clip(y + down, 0, lines - 1), np.clip(x + right, 0, columns - 1)
        over = total[y, x] >= larger_total[to_y, to_x]
        larger_cluster[to_y[over], to_x[over]] = cluster[y[over], x[over]]
        larger_total[to_y[over], to_x[over]] = total[y[over], x[over]]
    return larger_cluster, larger_total


def _inks() -> np.ndarray:
    opacities = np.round(255 * np.linspace(_FAINTEST, 1, _LEVELS)).astype(np.uint8)
    rgb = np.array([tuple(bytes.fromhex(colour[1:])) for colour in PALETTE], np.uint8)
    inks = np.column_stack([np.repeat(rgb, _LEVELS, axis=0), np.tile(opacities, len(PALETTE))])
    return np.vstack([np.zeros((1, 4), np.uint8), inks, np.array([[128, 128, 128, 255]], np.uint8)])


#: Red, green, blue and opacity for each value of a pixel: transparent, a colour at a level of opacity, or noise's grey.
INKS = _inks()


def encode(pixels: np.ndarray) -> bytes:
    """Encode indices into `INKS`, uint8 of shape (lines, columns), as PNG with fast compression."""
    from PIL import Image

    image = Image.fromarray(pixels, "P")
    image.putpalette(INKS[:, :3].tobytes())
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1, transparency=INKS[:, 3].tobytes())
    return file.getvalue()


@dataclass(frozen=True, eq=False)
class Picture:
    """The rows of each cluster in the plane of two features.

    Attributes
    ----------
    counts : numpy.ndarray of int of shape (n_clusters, lines, columns)
        Number of rows by cluster and pixel; the first line is at the bottom.
    names : tuple of two str
        Names of the features on the horizontal and the vertical axis.
    low, high : tuple of two floats
        Lower and upper limits of these features.
    before : tuple of int
        The colours of the clusters in the picture before, see `hues`.
    """

    counts: np.ndarray
    names: tuple[str, str]
    low: tuple[float, float]
    high: tuple[float, float]
    before: tuple[int, ...] = ()

    @functools.cached_property
    def png(self) -> bytes:
        """The image as PNG. Pixels without rows are transparent."""
        return encode(self.pixels)

    @functools.cached_property
    def pixels(self) -> np.ndarray:
        """Indices into `INKS`, see `colour`."""
        return colour(self.counts, self.hues)

    @functools.cached_property
    def hues(self) -> tuple[int, ...]:
        """The index of each cluster's colour in `PALETTE`."""
        return tuple(hues(self.counts, self.before))

    @functools.cached_property
    def colours(self) -> list[str]:
        """The colour of each cluster, as ``"#rrggbb"``."""
        return [PALETTE[hue] for hue in self.hues]

    def _repr_png_(self) -> bytes:
        return self.png

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Number of rows of each cluster in the picture: shape (n_clusters,)."""
        return self.counts.sum(axis=(1, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DensityPicture(Picture):
    """The rows of DBSCAN's clusters in the plane of two features.

    `counts` has the cores of each of the `LARGEST` clusters and of all smaller ones, then their border rows in the same
    order, and then noise. Cores are opaque, border rows are paler, and noise is grey. If there are few rows, a core is
    a disc, a border row a ring, and noise a cross.
    """

    @functools.cached_property
    def pixels(self) -> np.ndarray:
        """Indices into `INKS`; the first line is at the top."""
        counts, n = self.counts, LARGEST + 1
        base = 1 + np.array(_OF_LARGEST) * _LEVELS
        inks = np.concatenate([base + _LEVELS - 1, base + _BORDER, [len(INKS) - 1]]).astype(np.uint8)
        kind, total = counts.argmax(axis=0), counts.sum(axis=0)
        drawn = np.zeros(total.shape, np.uint8)
        if np.count_nonzero(total) >= _FEW * total.size:
            np.copyto(drawn, inks[kind], where=total > 0)
            return drawn[::-1]
        inks[n : 2 * n] = inks[:n]
        lines, columns = total.shape
        for kinds, form in (((2 * n, 2 * n), _CROSS), ((n, 2 * n - 1), _RING), ((0, n - 1), _DISC)):
            y, x = np.nonzero((total > 0) & (kind >= kinds[0]) & (kind <= kinds[1]))
            for down, right in form:
                drawn[np.clip(y + down, 0, lines - 1), np.clip(x + right, 0, columns - 1)] = inks[kind[y, x]]
        return drawn[::-1]

    @functools.cached_property
    def hues(self) -> tuple[int, ...]:
        """The index of the colour of each of the largest clusters, and of all others, in `PALETTE`."""
        return _OF_LARGEST
