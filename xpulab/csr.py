"""Sparse rows: their form on the way to the engines, and the handle for those that stay there."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from xpulab.data import Outgoing, ShardedArray
from xpulab.report.rendering import format_size
from xpulab.sharing.sources import CSRRows, Handle

__all__ = ["ShardedCSR", "as_sent", "is_sparse", "nbytes_of", "require_dense", "sent_csr"]

_MOST_COLUMNS = 1 << 31  # the engines number columns with 32 bits


def is_sparse(X: object) -> bool:
    """Return whether rows are sparse, in this process or on the engines."""
    scipy_sparse = sys.modules.get("scipy.sparse")  # without which there are no sparse rows in this process
    return isinstance(X, ShardedCSR) or (scipy_sparse is not None and scipy_sparse.issparse(X))


def _instead(X: Any) -> str:
    from xpulab.checks import instead_of_sparse  # the start of a cluster does not wait for scikit-learn

    return instead_of_sparse(X)


def require_dense(X: object, name: str = "X") -> None:
    """Raise TypeError, with the memory that the dense rows would take, if X is sparse."""
    if is_sparse(X):
        raise TypeError(f"Sparse data was passed for {name}, but dense data is required. {_instead(X)}")


def as_sent(X: Any) -> Any:
    """Return a CSR matrix with sorted columns, none of which is twice in a row, and with indices of the smallest size.

    X itself is not changed.

    Raises
    ------
    ValueError
        If X has more columns than the engines can number.
    """
    if X.shape[1] >= _MOST_COLUMNS:
        raise ValueError(
            f"X has {X.shape[1]:,} columns, and sparse rows on engines have at most {_MOST_COLUMNS - 1:,}; hash the "
            "columns to fewer, for example with sklearn.feature_extraction.FeatureHasher"
        )
    if X.indices.dtype != np.int32 and X.nnz < 1 << 31:
        X = type(X)((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def nbytes_of(X: Any) -> int:
    """Return the bytes of sparse rows on the engines."""
    return X.nbytes if isinstance(X, ShardedCSR) else X.data.nbytes + X.indices.nbytes + 8 * len(X.indptr)


def sent_csr(outgoing: Outgoing, X: Any, bounds: list[int]) -> CSRRows:
    """Copy a CSR matrix of the form of `as_sent` into shared memory, and return where it is."""
    data, indices, indptr = (outgoing.send(part) for part in (X.data, X.indices, X.indptr))
    return CSRRows(X.shape, X.dtype, bounds, data, indices, indptr)


class ShardedCSR(ShardedArray):
    """A handle for sparse rows that stay on the engines of a cluster, in CSR form, one contiguous block per rank.

    `XPUCluster.scatter` returns one for a sparse matrix or array of SciPy, and so do estimators whose results for such
    a handle are sparse. Estimators that take sparse rows accept it in place of a CSR matrix, and then send no rows.
    What needs dense rows refuses it, and says how much memory these would take.

    Attributes
    ----------
    stored : tuple of int
        Numbers of stored values of each rank.
    nnz : int
        Number of stored values, explicit zeros among them.
    """

    _internal = ShardedArray._internal | {"stored"}

    def __init__(self, *args: Any, stored: Sequence[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stored = tuple(int(n) for n in stored)

    @property
    def handle(self) -> Handle:
        """Tells the ranks to keep rows under this handle."""
        made = super().handle
        return replace(made, description=replace(made.description, stored=self.stored))

    @property
    def nnz(self) -> int:
        """Number of stored values."""
        return sum(self.stored)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows on the engines: values, columns, where each row begins, and the squares of its norm."""
        n, size = self.shape[0], self.dtype.itemsize
        return self.nnz * (size + 4) + (n + len(self.stored)) * 8 + n * size

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> NoReturn:
        """Refuse functions of single numbers, as a conversion to an array: their results need not be sparse."""
        self.__array__()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        """Refuse the conversion to a NumPy array.

        Raises
        ------
        TypeError
            Always; the message says what to pass.
        """
        raise TypeError(
            f"{self!r} was given, whose rows are sparse and on the engines; expected an array in this process. "
            f"X.gather() is a CSR matrix in this process. {_instead(self)}"
        )

    def gather(self) -> Any:
        """Copy the rows into this process.

        Returns
        -------
        scipy.sparse.csr_matrix of the handle's shape and dtype
            Its columns are sorted in each row.

        Raises
        ------
        HandleError
            If the engines no longer have the rows, because the cluster was stopped or restarted.
        """
        source, nnz, n = self.source(self.cluster), self.nnz, self.shape[0]
        index = np.int32 if nnz < 1 << 31 else np.int64
        with self.cluster.outgoing() as outgoing:
            # An empty array has no shared memory, so each has one entry more than is needed.
            shapes = ((nnz + 1, self.dtype), (nnz + 1, index), (n + 1, index))
            targets, arrays = zip(*(outgoing.receive((size,), dtype) for size, dtype in shapes), strict=True)
            data, indices, indptr = arrays
            bounds = list(itertools.accumulate(self.stored, initial=0))
            self.cluster.call("gather_csr", {"source": source, "stored": bounds, "targets": list(targets)})
        indptr[-1] = nnz
        from scipy import sparse

        return sparse.csr_matrix((data[:-1], indices[:-1], indptr), self.shape, copy=False)

    def cast(self, dtype: npt.DTypeLike) -> ShardedArray:
        """Return these rows with stored values of another dtype, to which the engines copy them."""
        if self.dtype == dtype:
            return self
        made: ShardedArray = self.cluster.made_handle(
            self.shape, dtype, self.bounds, self.columns, nan=self.nan, stored=self.stored
        )
        self.cluster.call("cast_stored", {"source": self.source(self.cluster), "kept": made.handle})
        return made

    def _joined(self, parts: Sequence[ShardedArray]) -> NoReturn:
        raise TypeError(f"a handle of sparse rows has no columns to put beside others. {_instead(self)}")

    def __repr__(self) -> str:
        share = self.nnz / max(1, self.shape[0] * self.shape[1])
        return (
            f"ShardedCSR(shape={self.shape}, dtype={self.dtype}, {self.nnz:,} stored values ({share:.2%}), "
            f"{format_size(self.nbytes)}, rows by rank: {', '.join(map(str, self.counts))})"
        )
