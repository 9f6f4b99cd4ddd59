"""Products of sparse rows with dense matrices, on the host, each rank with its own rows.

SciPy multiplies with few columns. Products with more columns are computed by machine code of the catalogue, and those
of ``X.T`` from a copy of the rows by column: with 3 million stored values of float32 and 60 columns they take 12 to
21 ms on a core of an EPYC (Zen 5), and 57 to 63 ms in SciPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.on_cpu.host import at, functions
from xpulab.kernels.on_cpu.sparse_functions import VECTOR
from xpulab.kernels.on_cpu.trees import in_threads

if TYPE_CHECKING:
    from scipy import sparse

__all__ = ["HostMatrix", "products"]

_PIECE_BYTES = 32 << 20  # of a product that is on the host at a time
_FEW = 8  # columns below which SciPy multiplies
_ROWS = 4096  # that a thread multiplies at a time
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


class HostMatrix:
    """Sparse rows as matrices of SciPy, for the time of a fit.

    Parameters
    ----------
    rows : SparseRows
    n_columns : int, optional
        At least n_features: empty columns come after those of the rows.

    Attributes
    ----------
    as_given : scipy.sparse.csr_matrix of shape (n_samples, n_columns)
        In the dtype of the rows, and on a CPU device in its memory.
    exact : scipy.sparse.csr_matrix of shape (n_samples, n_columns)
        In float64, in which the sums over rows are added up; a copy if the rows are float32.
    """

    def __init__(self, rows: SparseRows, n_columns: int | None = None) -> None:
        self._rows, self._n_columns = rows, n_columns or rows.n_features

    @cached_property
    def as_given(self) -> sparse.csr_matrix:
        """The rows in their dtype."""
        from scipy import sparse  # a start does not wait for it

        rows, device, n = self._rows, self._rows.device, self._rows.n_samples
        indptr = device.fetch(rows.indptr, 0, n + 1)
        stored = int(indptr[-1])
        if stored < 1 << 31:
            indptr = indptr.astype(np.int32)  # the dtype of the columns: SciPy would otherwise copy these
        data, columns = (device.fetch(part, 0, stored, copied=False) for part in (rows.data, rows.indices))
        return sparse.csr_matrix((data, columns, indptr), (n, self._n_columns), copy=False)

    @cached_property
    def exact(self) -> sparse.csr_matrix:
        """The rows in float64."""
        return _in_float64(self.as_given)

    @cached_property
    def _by_column(self) -> sparse.csr_matrix:
        """The columns in their dtype, as rows in CSR form."""
        return self.as_given.T.tocsr()

    @cached_property
    def _exact_by_column(self) -> sparse.csr_matrix:
        """The columns in float64, as rows in CSR form."""
        return _in_float64(self._by_column)

    def some_columns(self, columns: npt.NDArray[np.intp]) -> HostMatrix:
        """Return the same rows with some of the columns, and no others."""
        some = HostMatrix(self._rows)
        some.as_given = self.as_given[:, columns]
        return some

    def times(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Compute ``X @ matrix``, of shape (n_samples, k), in the dtype of the rows."""
        with self._rows.device.computing():
            return _product(self.as_given, np.ascontiguousarray(matrix, self._rows.dtype))

    def exact_times(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Compute ``X @ matrix``, of shape (n_samples, k), in float64."""
        with self._rows.device.computing():
            return _product(self.exact, np.ascontiguousarray(matrix, np.float64))

    def transposed_times(self, tall: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Compute ``X.T @ tall``, of shape (n_features, k), in float64."""
        with self._rows.device.computing():
            factor = np.ascontiguousarray(tall, np.float64)
            if factor.ndim == 1 or factor.shape[1] < _FEW:
                found: npt.NDArray[np.float64] = self.exact.T @ factor
                return found
            return _product(self._exact_by_column, factor)

    def quick_transposed_times(self, tall: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Compute ``X.T @ tall``, of shape (n_columns, k), in the dtype of the rows."""
        with self._rows.device.computing():
            return _product(self._by_column, np.ascontiguousarray(tall, self._rows.dtype))

    def weighted_gram(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Compute ``X.T @ diag(weights) @ X``, of shape (n_features, n_features), in float64."""
        with self._rows.device.computing():
            found: npt.NDArray[np.float64] = (self.exact.T @ self.exact.multiply(weights[:, None]).tocsr()).toarray()
        return found


def _in_float64(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return a matrix in float64, whose columns and starts are not copied."""
    from scipy import sparse

    data = matrix.data.astype(np.float64, copy=False)
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), matrix.shape, copy=False)


def _product(whole: sparse.csr_matrix, factor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Compute ``whole @ factor``; both have one dtype, and `factor` is in C order."""
    if factor.ndim == 1 or factor.shape[1] < _FEW or whole.indices.dtype != _INT32:
        by_scipy: npt.NDArray[Any] = whole @ factor
        return by_scipy
    (d, k), n, dtype = factor.shape, whole.shape[0], factor.dtype
    if k < VECTOR:
        return np.ascontiguousarray(_product(whole, np.hstack([factor, np.zeros((d, VECTOR - k), dtype)]))[:, :k])
    found, starts = np.empty((n, k), dtype), whole.indptr.astype(np.int64)
    rows = at(whole.data, dtype), at(whole.indices, _INT32), at(starts, _INT64)

    def multiply(first: int) -> None:
        last = min(first + _ROWS, n)
        functions(dtype).sparse_times(*rows, first, last, at(factor, dtype), k, at(found, dtype))

    in_threads(range(0, n, _ROWS), multiply, lambda done: None)
    return found


def products(
    rows: SparseRows, matrix: npt.NDArray[Any], offset: npt.NDArray[Any] | None = None
) -> Iterator[npt.NDArray[Any]]:
    """Yield ``X @ matrix + offset``, some rows at a time, in the dtype of the rows.

    Parameters
    ----------
    rows : SparseRows
    matrix : numpy.ndarray of shape (n_features, k)
    offset : numpy.ndarray of shape (k,), optional
    """
    whole, factor = HostMatrix(rows).as_given, np.ascontiguousarray(matrix, rows.dtype)
    step = max(1, _PIECE_BYTES // max(1, factor.shape[1] * factor.itemsize))
    for first in range(0, rows.n_samples, step):
        with rows.device.computing():
            part = whole if step >= rows.n_samples else whole[first : first + step]
            found = _product(part, factor)
        yield found if offset is None else found + offset.astype(rows.dtype)
