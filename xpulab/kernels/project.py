"""Multiplies rows by a matrix. The result goes to the CPU's memory, or stays on the device as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.language import Kernel, PrivateArray, fma, index, kernel
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Array
from xpulab.kernels.runtime.launch import launch
from xpulab.kernels.sparse_products import products

__all__ = ["every_kernel", "project", "projected"]

_LANES = 16  # work-items of a work-group; with fewer, a CPU's compiler uses no vectors
_COLUMNS = 5  # columns of the result that are computed together
_STAGE_BYTES = 8 << 20


def _rows(dtype: np.dtype[Any]) -> int:
    """Return the rows of a work-item: so few that a CPU keeps all values in registers, with 20 vectors of sums."""
    return 16 // dtype.itemsize


@cache
def _project_kernel(dtype: np.dtype[Any]) -> Kernel:
    number = dtype.type
    zero = number(0)
    lanes, n_rows, n_columns = _LANES, _rows(dtype), _COLUMNS
    n_sums = n_rows * n_columns
    parts = BLOCK // (lanes * n_rows)

    @kernel("T[] i8 i8 i8 T* T* T* i8 T* i4 T*", dtype)
    def project(  # type: ignore[no-untyped-def]
        item, data, d, n, first, shift, matrix, offset, k, minus, subtracting, out
    ):  # fmt: skip
        # matrix: (k / n_columns, d, n_columns), padded with zeros, as is offset. out and minus are in blocks: minus
        # begins with block 0, and out with block `first`.
        group = item.get_group().get_group_id(0)
        lane = item.get_local_id(0)
        block = first + group // parts
        in_block = group % parts * (lanes * n_rows) + lane
        left = n - block * BLOCK
        sums = PrivateArray(n_sums, number)
        x = PrivateArray(n_rows, number)
        for c in range((k + (n_columns - 1)) // n_columns):
            for j in range(n_columns):
                for r in range(n_rows):
                    sums[j * n_rows + r] = offset[index(c * n_columns + j)]
            for f in range(d):
                for r in range(n_rows):
                    x[r] = data[index((block * d + f) * BLOCK + in_block + r * lanes)] - shift[index(f)]
                for j in range(n_columns):
                    y = matrix[index((c * d + f) * n_columns + j)]
                    for r in range(n_rows):
                        sums[j * n_rows + r] = fma(x[r], y, sums[j * n_rows + r])
            for j in range(n_columns):
                column = c * n_columns + j
                if column < k:
                    for r in range(n_rows):
                        total = sums[j * n_rows + r]
                        if subtracting != 0:
                            total -= minus[index((block * k + column) * BLOCK + in_block + r * lanes)]
                        total = total if in_block + r * lanes < left else zero
                        out[index(((block - first) * k + column) * BLOCK + in_block + r * lanes)] = total

    return project


class _Projection:
    """A matrix on the device, in the order in which the kernel reads it."""

    def __init__(
        self, rows: Rows, matrix: npt.NDArray[Any], shift: npt.NDArray[Any] | None, offset: npt.NDArray[Any] | None
    ) -> None:
        d, self.k = matrix.shape
        if d != rows.n_features:
            raise ValueError(f"a matrix of shape {matrix.shape} was given for rows of {rows.n_features} features")
        self.rows = rows
        device, tiles = rows.device, -(-self.k // _COLUMNS)
        padded = np.zeros((d, tiles * _COLUMNS), rows.dtype)
        padded[:, : self.k] = matrix
        constants = np.zeros(tiles * _COLUMNS, rows.dtype)
        constants[: self.k] = 0 if offset is None else offset
        self.matrix = device.array(np.ascontiguousarray(padded.reshape(d, tiles, _COLUMNS).swapaxes(0, 1)))
        self.offset, self.shift = device.array(constants), device.array(rows.shift_or_zero(shift))

    def into(self, out: Array, first: int, n_blocks: int, minus: Array | None = None) -> None:
        """Write `n_blocks` blocks of the product, from block `first` on, to the start of `out`."""
        rows = self.rows
        launch(
            rows.device, _project_kernel(rows.dtype), n_blocks * (BLOCK // (_LANES * _rows(rows.dtype))), _LANES,
            rows.data, np.int64(rows.n_features), np.int64(rows.n_samples), np.int64(first),
            self.shift, self.matrix, self.offset, np.int64(self.k), minus or out, np.int32(minus is not None), out,
        )  # fmt: skip


def project(
    rows: Rows | SparseRows,
    matrix: npt.NDArray[Any],
    shift: npt.NDArray[Any] | None = None,
    offset: npt.NDArray[Any] | None = None,
) -> Iterator[npt.NDArray[Any]]:
    """Compute ``(x - shift) @ matrix + offset`` of each row, in the CPU's memory, a part of the rows at a time.

    Parameters
    ----------
    rows : Rows or SparseRows
    matrix : numpy.ndarray of shape (n_features, k)
    shift : numpy.ndarray of shape (n_features,) or None
        None for sparse rows, whose zeros it would fill.
    offset : numpy.ndarray of shape (k,) or None
        Matrix, shift and offset are converted to the dtype of the rows.

    Yields
    ------
    numpy.ndarray of shape (m, k), in the dtype of the rows
        The result for the next m rows.

    Raises
    ------
    ValueError
        If the matrix has another number of rows than `rows` has columns.
    """
    if isinstance(rows, SparseRows):
        assert shift is None
        yield from products(rows, matrix, offset)
        return
    projection, device = _Projection(rows, matrix, shift, offset), rows.device
    k = projection.k
    blocks = max(1, min(rows.n_blocks, _STAGE_BYTES // (BLOCK * k * rows.dtype.itemsize)))
    stage = device.empty(blocks * BLOCK * k, rows.dtype)
    for first in range(0, rows.n_blocks, blocks):
        n_blocks = min(blocks, rows.n_blocks - first)
        projection.into(stage, first, n_blocks)
        found = device.fetch(stage, stop=n_blocks * BLOCK * k, copied=False).reshape(n_blocks, k, BLOCK)
        by_row = np.array(found.swapaxes(1, 2), order="C")  # a copy, because the stage is used again
        yield by_row.reshape(-1, k)[: rows.n_samples - first * BLOCK]


def projected(
    rows: Rows,
    matrix: npt.NDArray[Any],
    shift: npt.NDArray[Any] | None = None,
    offset: npt.NDArray[Any] | None = None,
    minus: Rows | None = None,
) -> Rows:
    """Compute ``(x - shift) @ matrix + offset - minus`` of each row, as rows on the device with the same weights.

    Parameters
    ----------
    rows : Rows
    matrix : numpy.ndarray of shape (n_features, k)
    shift : numpy.ndarray of shape (n_features,) or None
    offset : numpy.ndarray of shape (k,) or None
    minus : Rows or None
        As many rows, with k columns of the same dtype.

    Returns
    -------
    Rows

    Raises
    ------
    ValueError
        If the shape or the dtype of `matrix` or `minus` does not fit the rows.
    """
    projection = _Projection(rows, matrix, shift, offset)
    if minus is not None:
        given = minus.n_samples, minus.n_features, minus.dtype
        expected = rows.n_samples, projection.k, rows.dtype
        if given != expected:
            raise ValueError(
                "{} rows of {} features in {} were given to subtract, {} of {} in {} expected".format(*given, *expected)
            )
    out = rows.device.empty(rows.n_blocks * projection.k * BLOCK, rows.dtype)
    if rows.n_samples:
        projection.into(out, 0, rows.n_blocks, None if minus is None else minus.data)
    return replace(rows, data=out, n_features=projection.k)


def every_kernel() -> Iterator[Kernel]:
    """Yield all kernels of this module, for the catalogue."""
    yield from (_project_kernel(np.dtype(dtype)) for dtype in (np.float32, np.float64))
