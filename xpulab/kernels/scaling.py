"""Shifts and scales the columns of rows, compares numbers with a threshold, and copies rows to the CPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.moments import column_facts
from xpulab.kernels.row_passes import consecutive
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.launch import launch

if TYPE_CHECKING:
    from xpulab.kernels.runtime.device import Array

__all__ = ["binarised", "centred", "divided", "every_kernel", "pieces_on_cpu", "reach", "stretched"]

_LANES = 16
_PIECE_BYTES = 4 << 20


@cache
def _centred_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)
    parts = BLOCK // _LANES

    @kernel("T[] i8 i8 T* T* T*", dtype)
    def centre(item, data, d, n, shift, scale, out):  # type: ignore[no-untyped-def]
        block = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = np.int32(min(n - block * BLOCK, BLOCK))
        for f in range(d):
            for part in range(parts):
                at = (block * d + f) * BLOCK + part * _LANES + lane
                z = (data[index(at)] - shift[index(f)]) / scale[index(f)]
                out[index(at)] = z if np.int32(part * _LANES + lane) < there else zero

    return centre


@cache
def _stretched_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)
    parts = BLOCK // _LANES

    @kernel("T[] i8 i8 T* T* T T T*", dtype)
    def stretch(item, data, d, n, factor, offset, low, high, out):  # type: ignore[no-untyped-def]
        block = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = np.int32(min(n - block * BLOCK, BLOCK))
        for f in range(d):
            for part in range(parts):
                at = (block * d + f) * BLOCK + part * _LANES + lane
                z = data[index(at)] * factor[index(f)] + offset[index(f)]  # two roundings: no `language.fma`
                z = low if z < low else z
                z = high if z > high else z
                out[index(at)] = z if np.int32(part * _LANES + lane) < there else zero

    return stretch


@cache
def _binarised_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero, one = dtype.type(0), dtype.type(1)
    parts = BLOCK // _LANES

    @kernel("T[] i8 i8 T T*", dtype)
    def binarise(item, data, d, n, threshold, out):  # type: ignore[no-untyped-def]
        block = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        there = np.int32(min(n - block * BLOCK, BLOCK))
        for f in range(d):
            for part in range(parts):
                at = (block * d + f) * BLOCK + part * _LANES + lane
                x = one if data[index(at)] > threshold else zero
                out[index(at)] = x if np.int32(part * _LANES + lane) < there else zero

    return binarise


def binarised(rows: Rows, threshold: float) -> Rows:
    """Return 1 for each number above the threshold and 0 for the others, as rows with the same weights.

    As in scikit-learn, the threshold is rounded to the dtype of the rows.
    """
    return _made(rows, _binarised_kernel(rows.dtype), rows.dtype.type(threshold))


def centred(rows: Rows, shift: npt.NDArray[Any] | None, scale: npt.NDArray[Any] | None) -> Rows:
    """Compute ``(x - shift) / scale`` of each row, as rows on the device with the same weights.

    Parameters
    ----------
    rows : Rows
    shift, scale : numpy.ndarray of shape (n_features,) or None
        Converted to the dtype of the rows.

    Returns
    -------
    Rows
    """
    device = rows.device
    middle = device.array(rows.shift_or_zero(shift))
    divisor = device.array(_filled(rows, 1 if scale is None else scale))
    return _made(rows, _centred_kernel(rows.dtype), middle, divisor)


def divided(rows: Rows, unit: float) -> Rows:
    """Divide all numbers by a power of two; return the same rows, not copied, for 1."""
    return rows if unit == 1 else centred(rows, None, np.full(rows.n_features, unit))


def reach(rows: Rows) -> float:
    """Return the largest magnitude of all numbers; 0 if there are none."""
    facts = column_facts(rows)
    return float(np.maximum(facts.maximum, -facts.minimum).max(initial=0.0))


def stretched(
    rows: Rows,
    factor: npt.NDArray[Any],
    offset: npt.NDArray[Any],
    low: float | None = None,
    high: float | None = None,
) -> Rows:
    """Compute ``x * factor + offset`` of each row, clipped to `low` and `high`, as rows with the same weights.

    Product and sum are rounded separately, as in NumPy. NaN stays NaN.

    Parameters
    ----------
    rows : Rows
    factor, offset : numpy.ndarray of shape (n_features,)
        Converted to the dtype of the rows.
    low, high : float or None
        Bounds of the result; None for no bound.

    Returns
    -------
    Rows
    """
    device, number = rows.device, rows.dtype.type
    bounds = number(-np.inf if low is None else low), number(np.inf if high is None else high)
    factors, offsets = device.array(_filled(rows, factor)), device.array(_filled(rows, offset))
    return _made(rows, _stretched_kernel(rows.dtype), factors, offsets, *bounds)


def _filled(rows: Rows, values: npt.ArrayLike) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.broadcast_to(values, rows.n_features), rows.dtype)


def _made(rows: Rows, kernel: Kernel, *arguments: Array | np.generic) -> Rows:
    out = rows.device.empty(rows.n_blocks * rows.n_features * BLOCK, rows.dtype)
    if rows.n_samples:
        launch(
            rows.device, kernel, rows.n_blocks, _LANES,
            rows.data, np.int64(rows.n_features), np.int64(rows.n_samples), *arguments, out,
        )  # fmt: skip
    return replace(rows, data=out)


def pieces_on_cpu(rows: Rows) -> Iterator[npt.NDArray[Any]]:
    """Copy the rows to the CPU's memory, a part at a time.

    Yields
    ------
    numpy.ndarray of shape (m, n_features), in the dtype of the rows
        The next m rows.
    """
    step = max(1, _PIECE_BYTES // (BLOCK * rows.n_features * rows.dtype.itemsize)) * BLOCK
    for first in range(0, rows.n_samples, step):
        yield consecutive(rows, first, min(first + step, rows.n_samples))


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    for dtype in map(np.dtype, (np.float32, np.float64)):
        yield from (_binarised_kernel(dtype), _centred_kernel(dtype), _stretched_kernel(dtype))
