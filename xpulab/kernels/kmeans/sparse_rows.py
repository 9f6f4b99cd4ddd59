"""Rows in CSR form on a device.

No shift is subtracted from these rows, because their zeros would be lost; nor does scikit-learn subtract one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.language import Kernel, fma, index, kernel
from xpulab.kernels.on_cpu.host import add_columns
from xpulab.kernels.rows import SPAN
from xpulab.kernels.runtime.device import Array, Device
from xpulab.kernels.runtime.launch import launch

__all__ = [
    "ITEMS",
    "SparseRows",
    "by_feature",
    "column_sums",
    "consecutive",
    "divided",
    "every_kernel",
    "find_nonfinite",
    "reach",
    "shift_for",
    "squares_kernel",
    "stored_values",
    "take",
    "weighted",
    "with_values",
]

ITEMS = 16  # work-items of a work-group, and centres side by side
_STAGE_BYTES = 32 << 20
_STAGED = 1 << 20  # values that `stored_values` yields at a time


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Sparse rows on a device. They never change.

    Attributes
    ----------
    device : Device
    data : Array of float32 or float64 of shape (nnz,)
        Stored values, row by row.
    indices : Array of int32 of shape (nnz,)
        Columns of the stored values. A row must not have a column twice.
    indptr : Array of int64 of shape (n_samples + 1,)
        Row i has the stored values from indptr[i] up to, not including, indptr[i + 1].
    squares : Array of shape (n_samples,)
        Squared norms of the rows.
    n_samples, n_features : int
        Numbers of rows and of columns.
    sample_weight : Array of shape (n_samples,) or None
        Weights in the dtype of the rows; None if all are 1.
    """

    device: Device
    data: Array
    indices: Array
    indptr: Array
    squares: Array
    n_samples: int
    n_features: int
    sample_weight: Array | None

    @classmethod
    def upload(
        cls,
        device: Device,
        data: npt.NDArray[Any],
        indices: npt.NDArray[Any],
        indptr: npt.NDArray[Any],
        n_features: int,
        sample_weight: npt.NDArray[Any] | None = None,
    ) -> SparseRows:
        """Copy rows to the device.

        Parameters
        ----------
        device : Device
        data : numpy.ndarray of shape (nnz,), float32 or float64
        indices : numpy.ndarray of int of shape (nnz,)
        indptr : numpy.ndarray of int of shape (n_samples + 1,)
            Its first element may be different from zero: it is the index of the first element of `data`.
        n_features : int
            Number of columns.
        sample_weight : numpy.ndarray of shape (n_samples,) or None
            Converted to the dtype of the rows.

        Returns
        -------
        SparseRows

        Raises
        ------
        DeviceError
            If the device does not support the dtype, or if its memory is full.
        """
        device.check_dtype(data.dtype)
        starts = indptr.astype(np.int64) - int(indptr[0])
        n = len(starts) - 1
        rows = cls(
            device,
            device.array(data),
            device.array(indices.astype(np.int32, copy=False)),
            device.array(starts),
            device.empty(n, data.dtype),
            n,
            n_features,
            None,
        )
        _square(rows)
        return rows if sample_weight is None else weighted(rows, sample_weight)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self.data.dtype

    @property
    def n_stored(self) -> int:
        """Number of stored values."""
        return int(self.device.fetch(self.indptr, self.n_samples, self.n_samples + 1)[0])

    @property
    def n_spans(self) -> int:
        """Number of partial sums."""
        return -(-self.n_samples // SPAN)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        arrays = [self.data, self.indices, self.indptr, self.squares, self.sample_weight]
        return sum(array.nbytes for array in arrays if array is not None)

    def weights_on_cpu(self) -> npt.NDArray[np.float64]:
        """Return the weights (n_samples,) in float64, which are ones if the rows have no weights."""
        if self.sample_weight is None:
            return np.ones(self.n_samples)
        return self.device.fetch(self.sample_weight, stop=self.n_samples, copied=False).astype(np.float64)


def weighted(rows: SparseRows, sample_weight: npt.NDArray[Any]) -> SparseRows:
    """Return the same rows, not copied, with other weights (n_samples,)."""
    return replace(rows, sample_weight=rows.device.array(sample_weight.astype(rows.dtype)))


def divided(rows: SparseRows, unit: float) -> SparseRows:
    """Divide all numbers by a power of two; return the same rows, not copied, for 1."""
    if unit == 1:
        return rows
    return with_values(rows, rows.device.fetch(rows.data, copied=False) / rows.dtype.type(unit))


def with_values(rows: SparseRows, values: npt.NDArray[Any]) -> SparseRows:
    """Return rows with other stored values (nnz,) in the same places, which are not copied."""
    device = rows.device
    made = replace(rows, data=device.array(values), squares=device.empty(rows.n_samples, rows.dtype))
    _square(made)
    return made


def reach(rows: SparseRows) -> float:
    """Return the largest magnitude of all numbers; 0 if there are none."""
    return float(np.abs(rows.device.fetch(rows.data, copied=False)).max(initial=0.0))


def _square(rows: SparseRows) -> None:
    """Compute the squared norms of the rows."""
    n = rows.n_samples
    if n:
        squares = squares_kernel(rows.dtype)
        launch(rows.device, squares, -(-n // ITEMS), ITEMS, rows.data, rows.indptr, np.int64(n), rows.squares)
    rows.device.wait()


def shift_for(rows: SparseRows, mean: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the shift that is subtracted from each row: zeros."""
    return np.zeros(rows.n_features, rows.dtype)


@cache
def squares_kernel(dtype: np.dtype[Any]) -> Kernel:
    zero = dtype.type(0)  # data[0] - data[0] would fail for rows without stored values

    @kernel("T[] i8* i8 T*", dtype)
    def squares(item, data, indptr, n, out):  # type: ignore[no-untyped-def]
        row = item.get_global_id(0)
        if row < n:
            total = zero
            for i in range(indptr[index(row)], indptr[index(row + 1)]):
                total = fma(data[index(i)], data[index(i)], total)
            out[index(row)] = total

    return squares


def take(rows: SparseRows, chosen: npt.ArrayLike, shift: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Copy some rows to the CPU's memory, as a dense array of shape (len(chosen), n_features)."""
    positions = np.asarray(chosen, np.int64)
    out = np.zeros((len(positions), rows.n_features), rows.dtype)
    for i, row in enumerate(positions):
        if not 0 <= row < rows.n_samples:
            raise IndexError(f"row {row} was asked for, of {rows.n_samples}")
        first, last = (int(p) for p in rows.device.fetch(rows.indptr, int(row), int(row) + 2))
        if last > first:
            out[i, rows.device.fetch(rows.indices, first, last)] = rows.device.fetch(rows.data, first, last)
    return out


def consecutive(rows: SparseRows, first: int, last: int) -> npt.NDArray[Any]:
    """Copy the rows from `first` up to, not including, `last` to the CPU's memory, as a dense array."""
    out = np.zeros((max(last - first, 0), rows.n_features), rows.dtype)
    if len(out):
        bounds = rows.device.fetch(rows.indptr, first, last + 1)
        stored = int(bounds[0]), int(bounds[-1])
        if stored[1] > stored[0]:
            row_of = np.repeat(np.arange(len(out)), np.diff(bounds))
            out[row_of, rows.device.fetch(rows.indices, *stored)] = rows.device.fetch(rows.data, *stored)
    return out


def find_nonfinite(rows: SparseRows) -> int:
    """Return the index on this rank of the first row with NaN or infinity, or -1 if there is none."""
    starts = rows.device.fetch(rows.indptr, 0, rows.n_samples + 1)
    stored = int(starts[-1])
    for first in range(0, stored, _STAGED):
        bad = ~np.isfinite(rows.device.fetch(rows.data, first, min(first + _STAGED, stored), copied=False))
        if bad.any():
            return int(np.searchsorted(starts, first + bad.argmax(), side="right")) - 1
    return -1


def column_sums(
    rows: SparseRows, shift: npt.NDArray[Any] | None = None, squared: bool = False
) -> npt.NDArray[np.float64]:
    """Sum ``x - shift``, or its square, by column, in float64 on the CPU. Weights are not used."""
    d, n = rows.n_features, rows.n_samples
    middle = np.zeros(d) if shift is None else shift.astype(np.float64)
    stored = int(rows.device.fetch(rows.indptr, n, n + 1)[0])
    totals = n * middle**2 if squared else -n * middle
    for first in range(0, stored, _STAGE_BYTES // 8):
        part = first, min(first + _STAGE_BYTES // 8, stored)
        add_columns(
            rows.device.fetch(rows.indices, *part), rows.device.fetch(rows.data, *part), middle, squared, totals
        )
    return totals


def stored_values(
    rows: SparseRows,
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Yield columns, values and weights of the stored values on the host, some at a time."""
    device, starts = rows.device, rows.device.fetch(rows.indptr, 0, rows.n_samples + 1)
    weights = None if rows.sample_weight is None else rows.weights_on_cpu()
    stored = int(starts[-1])
    for first in range(0, stored, _STAGED):
        last = min(first + _STAGED, stored)
        values = device.fetch(rows.data, first, last, copied=False).astype(np.float64)
        if weights is None:
            of_rows = np.ones(len(values))
        else:
            of_rows = weights[np.searchsorted(starts, np.arange(first, last), side="right") - 1]
        yield device.fetch(rows.indices, first, last, copied=False), values, of_rows


def by_feature(centers: npt.NDArray[Any], dtype: np.dtype[Any], multiple: int) -> npt.NDArray[Any]:
    """Return squared norms, padded with infinity, and -2 * centres by feature: a flat array (1 + d, padded)."""
    k, d = centers.shape
    padded = -(-k // multiple) * multiple
    packed = np.zeros((1 + d, padded), dtype)
    packed[0] = np.inf
    packed[0, :k] = np.einsum("ij,ij->i", centers, centers, dtype=np.float64)
    packed[1:, :k] = -2 * centers.T
    return packed.ravel()


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from (squares_kernel(np.dtype(dtype)) for dtype in (np.float32, np.float64))
