"""Simple passes over rows: selections, sums of columns, and the search for NaN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, index, kernel
from xpulab.kernels.layout import BLOCK, in_c_order
from xpulab.kernels.rows import SPAN, Rows
from xpulab.kernels.runtime.device import Array
from xpulab.kernels.runtime.launch import launch

__all__ = [
    "column_kernels",
    "column_sums",
    "consecutive",
    "every_kernel",
    "find_nonfinite",
    "in_order",
    "take",
]

_LANES = 16  # work-items of a work-group that adds up columns of a span
_PARTIAL_BYTES = 8 << 20  # of the sums of spans that are on the device at a time
_FEW = 64  # up to this many rows, a copy by the CPU takes less time than the launch of a kernel


@cache
def _take_kernel(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] i8 i8* i8 T* T*", dtype)
    def take_rows(item, data, n_features, chosen, n, shift, out):  # type: ignore[no-untyped-def]
        i = item.get_global_id(0)
        if i < n:
            row = chosen[index(i)]
            at = row // BLOCK * (BLOCK * n_features) + row % BLOCK
            for f in range(n_features):
                out[index(i * n_features + f)] = data[index(at + f * BLOCK)] - shift[index(f)]

    return take_rows


def take(rows: Rows, index: npt.ArrayLike, shift: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Copy some rows to the CPU's memory.

    Parameters
    ----------
    rows : Rows
    index : array-like of int of shape (m,)
        Indices of the rows, from 0 to n_samples - 1.
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.

    Returns
    -------
    numpy.ndarray of shape (m, n_features), in the dtype of the rows

    Raises
    ------
    IndexError
        If an index is out of range.
    """
    positions = np.asarray(index, np.int64)
    m = len(positions)
    if m == 0:
        return np.empty((0, rows.n_features), rows.dtype)
    if positions.min() < 0 or positions.max() >= rows.n_samples:
        raise IndexError(f"rows {positions.min()} to {positions.max()} were asked for, of {rows.n_samples}")
    device = rows.device
    if rows.data.host is not None and m <= _FEW:
        device.wait()
        blocks = rows.data.host[: rows.n_blocks * rows.n_features * BLOCK].reshape(-1, rows.n_features, BLOCK)
        return blocks[positions // BLOCK, :, positions % BLOCK] - rows.shift_or_zero(shift)
    out = device.empty(m * rows.n_features, rows.dtype)
    launch(
        device, _take_kernel(rows.dtype), -(-m // BLOCK), BLOCK,
        rows.data, np.int64(rows.n_features), device.array(positions), np.int64(m),
        device.array(rows.shift_or_zero(shift)), out,
    )  # fmt: skip
    return device.fetch(out).reshape(m, rows.n_features)


def consecutive(rows: Rows, first: int, last: int, copied: bool = True) -> npt.NDArray[Any]:
    """Copy the rows from `first` up to, not including, `last` to the CPU's memory.

    Parameters
    ----------
    rows : Rows
    first, last : int
        From 0 to n_samples.
    copied : bool
        If False, the result may be memory that the next launch of a kernel changes.

    Returns
    -------
    numpy.ndarray of shape (last - first, n_features), in the dtype of the rows
    """
    device, d, begin = rows.device, rows.n_features, first // BLOCK
    n = last - begin * BLOCK
    if last <= first:
        return np.empty((0, d), rows.dtype)
    if rows.are_few():
        return np.ascontiguousarray(rows.columns_of_few().T[first:last])
    out = device.scratch("rows in C order", n * d, rows.dtype)
    in_c_order(device, rows.data, out, begin, n, d)
    return device.fetch(out, (first - begin * BLOCK) * d, n * d, copied).reshape(last - first, d)


def in_order(rows: Rows, n: int) -> Array:
    """Return the rows one after the other on the device, as (n, n_features), and zeros after them."""
    device, d = rows.device, rows.n_features
    out = device.recycled(n * d, rows.dtype)
    if rows.n_samples:
        in_c_order(device, rows.data, out, 0, rows.n_samples, d)
    device.store(np.zeros((n - rows.n_samples) * d, rows.dtype), out, rows.n_samples * d)
    device.wait()  # the rows may go now
    return out


@cache
def _column_kernel(dtype: np.dtype[Any], squared: bool) -> Kernel:
    blocks_of_span = SPAN // BLOCK
    zero = dtype.type(0)

    @kernel("T[] i8 i8 i8 T* T*", dtype)
    def column(item, data, n_features, n, first, shift, partial):  # type: ignore[no-untyped-def]
        # A work-group reads a span in the order of memory. partial: for each span and feature, a sum for each lane.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        mine = group * n_features * _LANES + lane
        for f in range(n_features):
            partial[index(mine + f * _LANES)] = zero
        begin = (first + group) * blocks_of_span
        for block in range(begin, min(begin + blocks_of_span, (n + (BLOCK - 1)) // BLOCK)):
            for f in range(n_features):
                middle = shift[index(f)]
                total = zero
                for part in range(BLOCK // _LANES):
                    x = data[index((block * n_features + f) * BLOCK + part * _LANES + lane)] - middle
                    x = x if block * BLOCK + part * _LANES + lane < n else zero
                    if squared:
                        total += x * x
                    else:
                        total += x
                partial[index(mine + f * _LANES)] += total

    return column


def column_kernels(dtype: np.dtype[Any]) -> tuple[Kernel, Kernel]:
    """Return the kernels of `column_sums`."""
    return _column_kernel(dtype, False), _column_kernel(dtype, True)


def column_sums(rows: Rows, shift: npt.NDArray[Any] | None = None, squared: bool = False) -> npt.NDArray[np.float64]:
    """Sum ``x - shift``, or its square, over the rows for each column. Weights are not used.

    Parameters
    ----------
    rows : Rows
    shift : numpy.ndarray of shape (n_features,) or None
        Subtracted from each row.
    squared : bool
        Whether to sum the squares.

    Returns
    -------
    numpy.ndarray of float64 of shape (n_features,)
    """
    d, middle = rows.n_features, rows.shift_or_zero(shift)
    sums = np.zeros(d)
    if rows.n_samples == 0:
        return sums
    if rows.are_few():
        with rows.device.computing(), np.errstate(over="ignore", invalid="ignore"):
            away = rows.columns_of_few() - middle[:, None]
            return (away * away if squared else away).sum(axis=1, dtype=np.float64)
    step = min(rows.n_spans, max(1, _PARTIAL_BYTES // (d * _LANES * rows.dtype.itemsize)))
    partial = rows.device.empty(step * d * _LANES, rows.dtype)
    shifts = rows.device.array(middle)
    for first in range(0, rows.n_spans, step):
        n_spans = min(step, rows.n_spans - first)
        launch(
            rows.device, _column_kernel(rows.dtype, squared), n_spans, _LANES,
            rows.data, np.int64(d), np.int64(rows.n_samples), np.int64(first), shifts, partial,
        )  # fmt: skip
        found = rows.device.fetch(partial, stop=n_spans * d * _LANES, copied=False)
        sums += found.reshape(n_spans, d, _LANES).sum(axis=(0, 2), dtype=np.float64)
    return sums


@cache
def _finite_kernel(dtype: np.dtype[Any]) -> Kernel:
    @kernel("T[] i8 T i4*", dtype)
    def finite(item, data, n_features, zero, bad):  # type: ignore[no-untyped-def]
        block = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        total = zero
        for f in range(n_features):
            total += data[index((block * n_features + f) * BLOCK + lane)] * zero  # 0 * inf is NaN
        bad[index(block * BLOCK + lane)] = 0 if total == zero else 1

    return finite


def find_nonfinite(rows: Rows) -> int:
    """Return the index on this rank of the first row with NaN or infinity, or -1 if there is none."""
    if rows.n_samples == 0:
        return -1
    bad = rows.device.empty(rows.n_blocks * BLOCK, np.int32)
    launch(
        rows.device, _finite_kernel(rows.dtype), rows.n_blocks, BLOCK,
        rows.data, np.int64(rows.n_features), rows.dtype.type(0), bad,
    )  # fmt: skip
    flags = rows.device.fetch(bad)
    first = int(flags.argmax())
    return first if flags[first] else -1


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_column_kernel(dtype, squared) for squared in (False, True))
        yield from (_take_kernel(dtype), _finite_kernel(dtype))
