"""Where rows are in the plane of two features: the first row in each pixel of a picture, and the rows in a shape.

References
----------
.. [1] M. Shimrat, "Algorithm 112: position of point relative to polygon", Communications of the ACM 5 (1962), 434.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xpulab.kernels.project import project
from xpulab.kernels.rows import Rows

__all__ = ["first_rows", "nearest_pixel", "rows_inside"]

_CELLS = 256  # of a shape's box, along each of its sides


def _coordinates(rows: Rows, features: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield two columns of the rows, (m, 2), a part of the rows at a time."""
    choice = np.zeros((rows.n_features, 2))
    choice[features, (0, 1)] = 1
    return project(rows, choice) if rows.n_samples else iter(())


def first_rows(
    rows: Rows, features: tuple[int, int], low: tuple[float, float], high: tuple[float, float], shape: tuple[int, int]
) -> np.ndarray:
    """Return the index of the first row in each pixel of a picture, as `count_pixels` counts the rows.

    Parameters
    ----------
    rows : Rows
    features : tuple of two ints
        The columns for the horizontal and the vertical axis.
    low, high : tuple of two floats
        Limits of these columns.
    shape : tuple of two ints
        (lines, columns) of the picture; the first line is at `low`.

    Returns
    -------
    numpy.ndarray of int64 of shape (lines, columns)
        -1 for a pixel without rows.
    """
    lines, columns = shape
    low_, high_ = np.array(low, rows.dtype), np.array(high, rows.dtype)
    pixels = np.array([columns, lines], rows.dtype)
    scale = pixels / (high_ - low_)
    found = np.full(lines * columns, -1, np.int64)
    begin = 0
    for part in _coordinates(rows, features):
        places = (part - low_) * scale
        # Backwards: of several rows in a pixel, NumPy assigns the last one.
        here = np.flatnonzero(((places >= 0) & (places < pixels)).all(axis=1))[::-1]
        x, y = places[here].astype(np.int64).T
        pixel = y * columns + x
        empty = found[pixel] < 0
        found[pixel[empty]] = begin + here[empty]
        begin += len(part)
    return found.reshape(shape)


def nearest_pixel(first: np.ndarray, x: float, y: float, reach: float) -> tuple[float, int, int] | None:
    """Return the nearest pixel with rows: the square of its distance, its line and its column; None if all are far.

    Parameters
    ----------
    first : numpy.ndarray of shape (lines, columns)
        As `first_rows` returns it.
    x, y : float
        The place, in pixels from the lower left corner.
    reach : float
        The largest distance from the place to the middle of the pixel.
    """
    left, bottom = max(0, int(x - reach)), max(0, int(y - reach))
    near = first[bottom : max(0, int(y + reach) + 1), left : max(0, int(x + reach) + 1)]
    lines, columns = np.nonzero(near >= 0)
    squares = (lines + (bottom + 0.5 - y)) ** 2 + (columns + (left + 0.5 - x)) ** 2
    if not len(squares) or squares.min() > reach**2:
        return None
    best = int(squares.argmin())
    return float(squares[best]), bottom + int(lines[best]), left + int(columns[best])


def rows_inside(rows: Rows, features: tuple[int, int], corners: np.ndarray) -> np.ndarray:
    """Return which rows are inside of a shape in the plane of two features, by the even-odd rule [1]_.

    Only rows near to the border are compared with its sides; for the others a cell of the shape's box has the answer.

    Parameters
    ----------
    rows : Rows
    features : tuple of two ints
        The columns for the horizontal and the vertical axis.
    corners : numpy.ndarray of float64 of shape (n_corners, 2)
        In order; the last one is joined to the first.

    Returns
    -------
    numpy.ndarray of bool of shape (n_samples,)
    """
    low, high = corners.min(axis=0), corners.max(axis=0)
    scale = _CELLS / np.where(high > low, high - low, 1.0)
    middles = (np.indices((_CELLS, _CELLS)).reshape(2, -1).T[:, ::-1] + 0.5) / scale + low
    within = _crossings(middles, corners).reshape(_CELLS, _CELLS)
    crossed = _crossed((corners - low) * scale)
    found, begin = np.zeros(rows.n_samples, bool), 0
    for part in _coordinates(rows, features):
        places = np.floor((part.astype(np.float64) - low) * scale)
        here = np.flatnonzero(((places >= 0) & (places <= _CELLS)).all(axis=1))
        x, y = np.minimum(places[here], _CELLS - 1).astype(np.int64).T
        inside, unsure = within[y, x], crossed[y, x]
        inside[unsure] = _crossings(part[here[unsure]].astype(np.float64), corners)
        found[begin + here] = inside
        begin += len(part)
    return found


def _crossings(places: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return for each place whether a line from it to the right crosses the border an odd number of times."""
    odd = np.zeros(len(places), bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 != y1:
            beside = np.flatnonzero((places[:, 1] < y0) != (places[:, 1] < y1))
            x, y = places[beside].T
            odd[beside] ^= x < x0 + (x1 - x0) * ((y - y0) / (y1 - y0))
    return odd


def _crossed(corners: np.ndarray) -> np.ndarray:
    """Return the cells, (_CELLS, _CELLS) by line, that the border may cross; corners are in cells."""
    crossed = np.zeros((_CELLS + 2, _CELLS + 2), bool)
    for begin, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        # Places half a cell apart: each point of the side is in the cell of one of them, or in a cell beside it.
        steps = 2 + int(2 * np.abs(end - begin).max())
        x, y = np.minimum(np.linspace(begin, end, steps), _CELLS - 1).astype(np.int64).T
        for right in range(3):
            for up in range(3):
                crossed[y + up, x + right] = True
    return crossed[1:-1, 1:-1]
