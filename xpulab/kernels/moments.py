"""Finds number, sums, minimum and maximum of the values of each column, in one pass over the rows.

The rows are on the device, or are read for this pass only. Their pieces then stay in the caches, and are not written to
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import DeviceFunction, Kernel, device_function, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.passing import facts_in_passing
from xpulab.kernels.rows import SPAN, Fill, Rows, read_pieces
from xpulab.kernels.runtime.device import Device, lanes_of
from xpulab.kernels.runtime.launch import launch

__all__ = ["ColumnFacts", "column_facts", "every_kernel", "streamed_column_facts"]

_STEP = 8  # blocks in which one column is added up before the next column
_MOST_ADDED = SPAN // 4  # numbers of a column that a work-item adds up
_STAGE_BYTES = 8 << 20
_MOST_PIECES = 16  # whose sums the device adds up before the CPU adds them


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

    def together(self, other: ColumnFacts) -> ColumnFacts:
        """Return the facts of these rows and of others, with the same shift."""
        return ColumnFacts(
            count=self.count + other.count,
            weight=self.weight + other.weight,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )


def _store_facts(weighted: bool, extremes: bool) -> DeviceFunction:
    """Make the function that writes the facts of a column to `partial`, or adds them to those that are there.

    `partial` has count, total, squares, weight, minimum and maximum; each has `size` numbers.
    """

    @device_function
    def store(partial, to, size, anew, count, total, squares, weight, least, most):  # type: ignore[no-untyped-def]
        if anew:
            partial[index(to)] = count
            partial[index(to + size)] = total
            partial[index(to + 2 * size)] = squares
            if weighted:
                partial[index(to + 3 * size)] = weight
            if extremes:
                partial[index(to + 4 * size)] = least
                partial[index(to + 5 * size)] = most
        else:
            partial[index(to)] += count
            partial[index(to + size)] += total
            partial[index(to + 2 * size)] += squares
            if weighted:
                partial[index(to + 3 * size)] += weight
            if extremes:
                before = partial[index(to + 4 * size)]
                partial[index(to + 4 * size)] = least if least < before else before
                before = partial[index(to + 5 * size)]
                partial[index(to + 5 * size)] = most if most > before else before

    return store


@cache
def _facts_kernel(dtype: np.dtype[Any], lanes: int, weighted: bool, extremes: bool, complete: bool) -> Kernel:
    """Return the kernel of `column_facts`.

    With `complete` it takes two thirds of the time, and NaN makes the sums NaN.
    """
    number = dtype.type
    zero, one, infinity = number(0), number(1), number(np.inf)
    parts = BLOCK // lanes
    store = _store_facts(weighted, extremes)

    @kernel("T[] i8 i8 i8 i8 T* T* i8 T*", dtype)
    def facts(item, data, d, n, first, n_blocks, shift, weights, size, partial):  # type: ignore[no-untyped-def]
        # partial: see `_store_facts`; each has `size` numbers (groups, d, lanes).
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
                    first_part = 0
                    if complete and there == BLOCK:
                        first_part = parts
                        count += number(parts)
                        for part in range(parts):
                            x = data[index(at + part * lanes)]
                            z = x - middle
                            if weighted:
                                w = weights[index(block * BLOCK + part * lanes + lane)]
                                weight += w
                                total = fma(w, z, total)
                                squares = fma(w * z, z, squares)
                            else:
                                total += z
                                squares = fma(z, z, squares)
                            if extremes:
                                least = x if x < least else least
                                most = x if x > most else most
                    for part in range(first_part, parts):
                        x = data[index(at + part * lanes)]
                        valid = (complete or x == x) and np.int32(part * lanes + lane) < there
                        z = x - middle if valid else zero
                        count += one if valid else zero
                        if weighted:
                            w = weights[index(block * BLOCK + part * lanes + lane)]
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
                to = (group * d + f) * lanes + lane
                store(partial, to, size, start == begin, count, total, squares, weight, least, most)

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
    if rows.are_few():
        return _facts_of_few(rows, shift, extremes)
    found = _facts(rows, shift, extremes, complete=True)
    return found if np.isfinite(found.total).all() else _facts(rows, shift, extremes, complete=False)


def _facts_of_few(rows: Rows, shift: npt.NDArray[Any] | None, extremes: bool) -> ColumnFacts:
    """Compute `column_facts` in float64 on the CPU, without a launch."""
    with rows.device.computing(), np.errstate(over="ignore", invalid="ignore"):
        columns = rows.columns_of_few().astype(np.float64)
        away = columns - rows.shift_or_zero(shift)[:, None]
        known = ~np.isnan(columns)
        if not known.all():
            away[~known] = 0
        count = known.sum(axis=1, dtype=np.float64)
        if rows.sample_weight is None:
            weight, weighted = count.copy(), away
        else:
            weights = rows.weights_on_cpu()
            weight, weighted = (known * weights).sum(axis=1, dtype=np.float64), away * weights
        total, squares = (sums.sum(axis=1, dtype=np.float64) for sums in (weighted, weighted * away))
        low, high = np.full(len(count), np.inf), np.full(len(count), -np.inf)
        if extremes:
            np.copyto(low, np.fmin.reduce(columns, axis=1), where=count > 0)
            np.copyto(high, np.fmax.reduce(columns, axis=1), where=count > 0)
    return ColumnFacts(count, weight, total, squares, low, high)


def _facts(rows: Rows, shift: npt.NDArray[Any] | None, extremes: bool, complete: bool) -> ColumnFacts:
    d, device, lanes = rows.n_features, rows.device, rows.device.lanes
    sums = np.zeros((4, d))
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    weighted = rows.sample_weight is not None
    n_blocks = max(_STEP, min(_MOST_ADDED * lanes // BLOCK, rows.n_blocks // (8 * device.compute_units)))
    n_groups = -(-rows.n_blocks // n_blocks)
    step = max(1, min(n_groups, _STAGE_BYTES // (6 * d * lanes * rows.dtype.itemsize)))
    size = step * d * lanes
    partial = device.empty(6 * size, rows.dtype)
    middle = device.array(rows.shift_or_zero(shift))
    for first in range(0, n_groups, step):
        groups = min(step, n_groups - first)
        launch(
            device, _facts_kernel(rows.dtype, lanes, weighted, extremes, complete), groups, lanes,
            rows.data, np.int64(d), np.int64(rows.n_samples), np.int64(first * n_blocks), np.int64(n_blocks), middle,
            rows.weights_or(middle)[0], np.int64(size), partial,
        )  # fmt: skip
        found = device.fetch(partial, copied=False).reshape(6, step, d, lanes)[:, :groups]
        sums[: 3 + weighted] += found[: 3 + weighted].sum(axis=(1, 3), dtype=np.float64)
        if extremes:
            low = np.minimum(low, found[4].min(axis=(0, 2)))
            high = np.maximum(high, found[5].max(axis=(0, 2)))
    count, total, squares, weight = sums
    return ColumnFacts(count, weight if weighted else count.copy(), total, squares, low, high)


@cache
def _streamed_kernel(dtype: np.dtype[Any], lanes: int, weighted: bool) -> Kernel:
    zero, infinity = dtype.type(0), dtype.type(np.inf)

    @kernel("T[] i8 i8 i8 T* T* i8 i4 i8 T*", dtype)
    def streamed_facts(  # type: ignore[no-untyped-def]
        item, data, d, n, n_rows, shift, weights, first, anew, size, partial
    ):  # fmt: skip
        # A work-item passes over n_rows of the rows in C order with one column. partial: total, squares, minimum,
        # maximum and weight; each has `size` numbers (parts, padded columns).
        group = item.get_group().get_group_id(0)
        tiles = (d + (lanes - 1)) // lanes
        f = group % tiles * lanes + item.get_local_id(0)
        begin = group // tiles * n_rows
        middle = shift[index(f)]
        total = zero
        squares = zero
        weight = zero
        least = infinity
        most = -infinity
        for row in range(begin, min(begin + n_rows, n)):
            x = data[index(row * d + f)]  # after the last column, that of another row, whose results are not used
            z = x - middle
            if weighted:
                w = weights[index(first + row)]
                weight += w
                total = fma(w, z, total)
                squares = fma(w * z, z, squares)
            else:
                total += z
                squares = fma(z, z, squares)
            least = x if x < least else least
            most = x if x > most else most
        to = group // tiles * (tiles * lanes) + f
        if anew == 0:
            total += partial[index(to)]
            squares += partial[index(to + size)]
            before = partial[index(to + 2 * size)]
            least = least if least < before else before
            before = partial[index(to + 3 * size)]
            most = most if most > before else before
            if weighted:
                weight += partial[index(to + 4 * size)]
        partial[index(to)] = total
        partial[index(to + size)] = squares
        partial[index(to + 2 * size)] = least
        partial[index(to + 3 * size)] = most
        partial[index(to + 4 * size)] = weight

    return streamed_facts


def streamed_column_facts(
    device: Device,
    shape: tuple[int, int],
    dtype: npt.DTypeLike,
    fill: Fill,
    shift: npt.NDArray[Any],
    sample_weight: npt.NDArray[Any] | None = None,
) -> ColumnFacts | None:
    """Find the counts, sums and extremes of each column of rows that are read for this pass only.

    Parameters
    ----------
    device : Device
    shape : tuple of two ints
        (n_samples, n_features).
    dtype : numpy.dtype
        float32 or float64.
    fill : callable
        Called in several threads, as by `Rows.read`.
    shift : numpy.ndarray of shape (n_features,)
        As for `column_facts`.
    sample_weight : numpy.ndarray of shape (n_samples,) or None
        Converted to the dtype of the rows.

    Returns
    -------
    ColumnFacts or None
        None if there may be NaN or infinity: a sum of large numbers is infinite, too.
    """
    dtype, lanes, (n, d) = device.check_dtype(dtype), device.lanes, shape
    if sample_weight is None and (sums := facts_in_passing(device, shape, dtype, fill, shift)) is not None:
        count = np.full(d, float(n))
        return ColumnFacts(count, count.copy(), *sums) if np.isfinite(sums[0]).all() else None
    tiles = -(-d // lanes)
    padded = np.zeros(tiles * lanes, dtype)
    padded[:d] = shift
    middle = device.array(padded)
    weights = middle if sample_weight is None else device.array(np.ascontiguousarray(sample_weight, dtype))
    facts_kernel = _streamed_kernel(dtype, lanes, sample_weight is not None)
    total, squares, weight = np.zeros((3, d))
    low, high = np.full(d, np.inf), np.full(d, -np.inf)
    partial, parts, pieces = None, 0, 0

    def add_up() -> None:
        nonlocal total, squares, weight, low, high
        assert partial is not None
        found = device.fetch(partial, copied=False).reshape(5, -1, tiles * lanes)[:, :parts, :d]
        added = found[[0, 1, 4]].sum(axis=1, dtype=np.float64)
        total, squares, weight = total + added[0], squares + added[1], weight + added[2]
        low, high = np.minimum(low, found[2].min(axis=0)), np.maximum(high, found[3].max(axis=0))

    for stage, first, there, _ in read_pieces(device, (n, d), dtype, fill, find_nonfinite=False):
        if partial is None:
            size = -(-there // _MOST_ADDED) * tiles * lanes
            partial = device.empty(5 * size, dtype)
        now = -(-there // _MOST_ADDED)
        launch(
            device, facts_kernel, now * tiles, lanes,
            stage, np.int64(d), np.int64(there), np.int64(_MOST_ADDED), middle, weights, np.int64(first),
            np.int32(pieces == 0), np.int64(size), partial,
        )  # fmt: skip
        parts, pieces = max(parts, now), pieces + 1
        if pieces == _MOST_PIECES:
            add_up()
            parts = pieces = 0
            if not np.isfinite(total).all():
                return None
    if pieces:
        add_up()
    if not np.isfinite(total).all():
        return None
    count = np.full(d, float(n))
    return ColumnFacts(count, count.copy() if sample_weight is None else weight, total, squares, low, high)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    flags = (False, True)
    for dtype, wide, weighted in itertools.product(map(np.dtype, (np.float32, np.float64)), flags, flags):
        yield _streamed_kernel(dtype, lanes_of(wide), weighted)
        for extremes, complete in itertools.product(flags, flags):
            yield _facts_kernel(dtype, lanes_of(wide), weighted, extremes, complete)
