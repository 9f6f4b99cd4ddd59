"""Turns counts of rows by cluster and pixel into an image: a colour per cluster, more opaque where rows are denser."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["INKS", "MOST_CELLS", "PALETTE", "Picture", "colour", "encode", "hues", "ink_on"]

#: Colours of clusters. With more than twelve clusters some share a colour, see `hues`. A search found these colours:
#: readers who do not see red, green or blue can distinguish them, most easily the first ones, and they are visible on
#: white and on black.
PALETTE = (
    "#3cb4ff", "#3c5a2d", "#960096", "#2d3cff", "#e196a5", "#96b41e",
    "#5a960f", "#e10fb4", "#786969", "#1e87ff", "#c37878", "#2d7800",
)  # fmt: skip

#: Largest number of counters of a picture, one for each cluster and pixel, because kernels use indices of 32 bits.
MOST_CELLS = (1 << 31) - 32

_LEVELS = 21  # levels of opacity: twelve colours at 21 levels, and transparent, fit into a byte
_FAINTEST = 0.4  # opacity of a pixel with one row
_FEW = 0.02  # if fewer than this share of all pixels have rows, these are drawn larger, and opaque
_DISC = [(y, x) for y in range(-2, 3) for x in range(-2, 3) if x * x + y * y <= 5]


def hues(counts: np.ndarray) -> list[int]:
    """Return the index of each cluster's colour in `PALETTE`.

    Each of the first twelve clusters has its own colour. Each further cluster gets the colour whose clusters are
    farthest from it, so that neighbours have different colours.

    Parameters
    ----------
    counts : numpy.ndarray of int of shape (n_clusters, lines, columns)
        Number of rows by cluster and pixel.

    Returns
    -------
    list of int
    """
    k, lines, columns = counts.shape
    n = len(PALETTE)
    found = list(range(min(k, n)))
    if k <= n:
        return found
    sizes = np.maximum(1, counts.sum(axis=(1, 2)))[:, None]
    middles = np.hstack(
        [counts.sum(axis=2) @ np.arange(lines)[:, None], counts.sum(axis=1) @ np.arange(columns)[:, None]]
    )
    middles = middles / sizes
    for j in range(n, k):
        away = np.linalg.norm(middles[:j] - middles[j], axis=1)
        order = [(j + step) % n for step in range(n)]  # if several are equally far, the next one in turn
        found.append(max(order, key=lambda hue: away[np.array(found) == hue].min()))
    return found


def ink_on(colour: str) -> str:
    """Black or white, whichever has more contrast to a colour; the contrast is at least 4.5:1."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return "#000000" if float(linear @ (0.2126, 0.7152, 0.0722)) > 0.179 else "#ffffff"


def colour(counts: np.ndarray) -> np.ndarray:
    """Colour each pixel by the cluster that has most rows in it. More rows make it more opaque.

    Parameters
    ----------
    counts : numpy.ndarray of int of shape (n_clusters, lines, columns)
        Number of rows by cluster and pixel. The first line is at the bottom.

    Returns
    -------
    numpy.ndarray of uint8 of shape (lines, columns)
        Indices into `INKS`; the first line is at the top. Colours are not mixed, because a mixed colour could be that
        of another cluster.
    """
    cluster, most, total = np.zeros(counts.shape[1:], np.uint8), counts[0], counts[0].copy()
    for j, hue in list(enumerate(hues(counts)))[1:]:
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
    return np.vstack([np.zeros((1, 4), np.uint8), inks])


#: Red, green, blue and opacity for each value of a pixel: transparent, or a colour at a level of opacity.
INKS = _inks()


def encode(pixels: np.ndarray) -> bytes:
    """Encode indices into `INKS` (lines, columns) as PNG, with a byte per pixel and fast compression."""
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
    """

    counts: np.ndarray
    names: tuple[str, str]
    low: tuple[float, float]
    high: tuple[float, float]

    @functools.cached_property
    def png(self) -> bytes:
        """The image as PNG. Pixels without rows are transparent."""
        return encode(self.pixels)

    @functools.cached_property
    def pixels(self) -> np.ndarray:
        """Indices into `INKS`, see `colour`."""
        return colour(self.counts)

    @functools.cached_property
    def colours(self) -> list[str]:
        """The colour of each cluster, as ``"#rrggbb"``."""
        return [PALETTE[hue] for hue in hues(self.counts)]

    def _repr_png_(self) -> bytes:
        return self.png

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Number of rows of each cluster in the picture: shape (n_clusters,)."""
        return self.counts.sum(axis=(1, 2), dtype=np.int64)
