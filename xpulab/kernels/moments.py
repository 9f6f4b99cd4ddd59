"""Finds number, sums, minimum and maximum of the values of each column, in one pass over the rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, index, kernel
from xpulab.kernels.launch import launch
from xpulab.kernels.rows import BLOCK, SPAN, Rows

__all__ = ["ColumnFacts", "column_facts", "every_kernel"]

_LANES = 16  # work-items of a work-group
_STEP = 4  # blocks in which one column is added up before the next column
_MOST_BLOCKS = 4 * SPAN // BLOCK  # blocks of a work-group, so that a work-item adds SPAN // 4 numbers of a column
_STAGE_BYTES = 8 << 20


@dataclass(frozen=True)
class ColumnFacts:
    """Counts, sums and extremes of each column. NaN is ignored.

    Attributes
    ----------
    count : numpy.ndarray of float64 of shape (n_features,)
        Number of values.
    weight : numpy.ndarray of float64 of shape (n_features,)
        Sum of the weights ``w`` of the values; equal to `count` for rows without weights.
    total, squares : numpy.ndarray of float64 of shape (n_features,)
        Sum of ``w * (x - shift)`` and of ``w * (x - shift)**2``.
    minimum, maximum : numpy.ndarray of float64 of shape (n_features,)
        Infinity and minus infinity for a column without values, or without `extremes`.
    """

    count: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]
    minimum: npt.NDArray[np.float64]
    maximum: npt.NDArray[np.float64]


@cache
def _facts_kernel(dtype: np.dtype[Any], weighted: bool, extremes: bool) -> Kernel:
    """Return the kernel of `column_facts`.

    Without extremes it takes a tenth less time, and without weights a twentieth less.
    """
    number = dtype.type
    zero, one, infinity = number(0), number(1), number(np.inf)
    parts = BLOCK // _LANES

    @kernel("T[] i8 i8 i8 i8 T* T* i8 T*", dtype)
    def facts(item, data, d, n, first, n_blocks, shift, weights, size, partial):  # type: ignore[no-untyped-def]
        # partial: count, total, squares, weight, minimum and maximum; each has `size` numbers (groups, d, lanes).
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        begin = first + group * n_blocks
        end = min(begin + n_blocks, (n + (BLOCK - 1)) // BLOCK)
        for start in range(begin, end, _STEP):
            stop = min(start + _STEP, end)
            for f in range(d):
                middle = shift[index(f)]
                count = zero
                total = zero
                squares = zero
                weight = zero
                least = infinity
                most = -infinity
                for block in range(start, stop):
                    at = (block * d + f) * BLOCK + lane
                    there = np.int32(min(n - block * BLOCK, BLOCK))
                    for part in range(parts):
                        x = data[index(at + part * _LANES)]
                        valid = x == x and np.int32(part * _LANES + lane) < there
                        z = x - middle if valid else zero
                        count += one if valid else zero
                        if weighted:
                            w = weights[index(block * BLOCK + part * _LANES + lane)]
                            w = w if valid else zero
                            weight += w
                            total += w * z
                            squares += w * z * z
                        else:
                            total += z
                            squares += z * z
                        if extremes:
                            low = x if valid else infinity
                            high = x if valid else -infinity
                            least = low if low < least else least
                            most = high if high > most else most
                place = (group * d + f) * _LANES + lane
                if start == begin:
                    partial[index(place)] = count
                    partial[index(place + size)] = total
                    partial[index(place + 2 * size)] = squares
                    if weighted:
                        partial[index(place + 3 * size)] = weight
                    if extremes:
                        partial[index(place + 4 * size)] = least
                        partial[index(place + 5 * size)] = most
                else:
                    partial[index(place)] += count
                    partial[index(place + size)] += total
                    partial[index(place + 2 * size)] += squares
                    if weighted:
                        partial[index(place + 3 * size)] += weight
                    if extremes:
                        before = partial[index(place + 4 * size)]
                        partial[index(place + 4 * size)] = least if least < before else before
                        before = partial[index(place + 5 * size)]
                        partial[index(place + 5 * size)] = most if most > before else before

    return facts


def column_facts(rows: Rows, shift: npt.NDArray[Any] | None = None, extremes: bool = True) -> ColumnFacts:
    """Find the counts, sums and extremes of each column in one pass.

    Parameters
    ----------
    rows : Rows
        The rows; NaN is ignored.
    shift : numpy.ndarray of shape (n_features,) or None
        Converted to the dtype of the rows, and subtracted from them. A shift near the mean makes the sums precise.
    extremes : bool
        Whether to find the minimum and maximum.

    Returns
    -------
    ColumnFacts
    """
    d, device = rows.n_features, rows.device
    sums = np.zeros((4, d))
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    weighted = rows.sample_weight is not None
    n_blocks = max(_STEP, min(_MOST_BLOCKS, rows.n_blocks // (8 * device.compute_units)))
    n_groups = -(-rows.n_blocks // n_blocks)
    step = max(1, min(n_groups, _STAGE_BYTES // (6 * d * _LANES * rows.dtype.itemsize)))
    size = step * d * _LANES
    partial = device.empty(6 * size, rows.dtype)
    middle = device.array(rows.shift_or_zero(shift))
    for first in range(0, n_groups, step):
        groups = min(step, n_groups - first)
        launch(
            device, _facts_kernel(rows.dtype, weighted, extremes), groups, _LANES,
            rows.data, np.int64(d), np.int64(rows.n_samples), np.int64(first * n_blocks), np.int64(n_blocks), middle,
            rows.weights_or(middle)[0], np.int64(size), partial,
        )  # fmt: skip
        found = device.fetch(partial, copied=False).reshape(6, step, d, _LANES)[:, :groups]
        sums[: 3 + weighted] += found[: 3 + weighted].sum(axis=(1, 3), dtype=np.float64)
        if extremes:
            low = np.minimum(low, found[4].min(axis=(0, 2)))
            high = np.maximum(high, found[5].max(axis=(0, 2)))
    count, total, squares, weight = sums
    return ColumnFacts(count, weight if weighted else count.copy(), total, squares, low, high)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_facts_kernel(dtype, *flags) for flags in itertools.product((False, True), repeat=2))
