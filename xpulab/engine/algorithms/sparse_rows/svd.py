"""Truncated singular value decompositions of sparse rows, by random matrices or by ARPACK.

A is the matrix of all ranks' rows. Each rank multiplies with its own rows. *Tall* matrices have n_samples rows, and a
rank has the rows that stand beside its own rows of A. *Wide* matrices have n_features rows, of which each rank computes
an equal share; the product with A needs all of them. A wide matrix is filled up with rows of zeros, so that the shares
are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xpulab.engine.algorithms.qr import triangular
from xpulab.engine.dataset import give_rows, rows_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.sparse_rows import SparseRows, column_sums
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.sharing.answers import Singular
from xpulab.sharing.sources import Handle, Source, Target

__all__ = ["SparseSVD", "inverse_root", "of_sparse_rows", "signs_of"]

_WELL = 100.0  # up to this condition number, columns times an inverse root are orthonormal up to rounding
_DEPENDENT = 1e-10  # squares of the singular values of nearly dependent columns, compared with the largest
_TOLD = 1e-13  # squares that products in float64 still tell from zero


class SparseSVD:
    """The matrix A of sparse rows, from which no mean is subtracted: that would fill their zeros.

    Parameters
    ----------
    task : Task
    rows : SparseRows
        This rank's rows.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    """

    def __init__(self, task: Task, rows: SparseRows, bounds: list[int]) -> None:
        self._task, self._bounds = task, bounds
        self._dtype, self._n_features = rows.dtype, rows.n_features
        self._share = -(-rows.n_features // task.comm.size)  # rows of a wide matrix that a rank has
        self._matrix = HostMatrix(rows, self._share * task.comm.size)

    def times(self, wide: np.ndarray) -> np.ndarray:
        """Compute this rank's rows of ``A @ wide``, where `wide` is whole, in the dtype of the rows."""
        self._task.check()
        return self._matrix.times(self._filled(wide))

    def transposed_times(self, tall: np.ndarray, exact: bool = False) -> np.ndarray:
        """Compute this rank's share of ``A.T @ tall``, in the dtype of the rows, or `exact` in float64."""
        self._task.check()
        if exact:
            return self._task.comm.sum_of_share(self._matrix.transposed_times(tall))
        return self._task.comm.sum_of_share(self._matrix.quick_transposed_times(tall))

    def whole(self, share: np.ndarray) -> np.ndarray:
        """Collect a wide matrix from the shares of all ranks, in the dtype of the rows."""
        every = self._task.comm.allgather_arrays(share.astype(self._dtype, copy=False).ravel())
        return every.reshape(-1, share.shape[1])

    def _filled(self, wide: np.ndarray) -> np.ndarray:
        """Fill up a whole wide matrix with rows of zeros."""
        missing = self._share * self._task.comm.size - len(wide)
        return np.concatenate([wide, np.zeros((missing, wide.shape[1]), wide.dtype)]) if missing else wide

    def orthonormal(self, own: np.ndarray) -> np.ndarray:
        """Compute an orthonormal basis of the columns of a matrix of which each rank has some rows.

        It has fewer columns if the matrix has a smaller rank. It follows from the products of the columns in float64,
        or, if the columns are nearly dependent, from the triangle of their QR decomposition.
        """
        for _ in range(2):  # two passes make the columns orthonormal up to rounding
            precise, comm = own.astype(np.float64, copy=False), self._task.comm
            products = comm.allreduce(precise.T @ precise)
            # One rank decides, because another CPU may round differently, and keep another number of columns.
            found: Any = comm.bcast(_root_of_products(products, own.dtype) if comm.rank == 0 else None)
            if found is None:
                triangle = triangular(self._task, Rows.upload(self._task.device, own))
                found = comm.bcast(inverse_root(triangle, own.dtype) if comm.rank == 0 else None)
            matrix, condition = found
            own = own @ matrix.astype(own.dtype)
            if condition < _WELL:
                break
        return own

    def randomized(self, start: np.ndarray, n_components: int, n_iter: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute singular values and right vectors of A, as `Range.svd`.

        Parameters
        ----------
        start : numpy.ndarray of shape (min(n_samples, n_features), k)
            Random matrix.
        n_components : int
        n_iter : int
            Number of power iterations.

        Returns
        -------
        singular_values : numpy.ndarray of shape (n_components,)
        right : numpy.ndarray of shape (n_features, n_components)
            Right singular vectors, in the dtype of the rows.
        """
        comm = self._task.comm
        if self._bounds[-1] >= self._n_features:
            basis = start
            for _ in range(n_iter):
                tall = self.orthonormal(self.times(basis))
                basis = self.whole(self.orthonormal(self.transposed_times(tall)))
            wide = self.transposed_times(self.orthonormal(self.times(basis)), exact=True)
            unit = self.orthonormal(wide)
            small = comm.allreduce(unit.T @ wide).T  # A is nearly Q @ small @ unit.T, where Q has orthonormal columns
        else:
            tall = start[self._bounds[comm.rank] : self._bounds[comm.rank + 1]].astype(self._dtype, copy=False)
            for _ in range(n_iter):
                basis = self.whole(self.orthonormal(self.transposed_times(tall)))
                tall = self.orthonormal(self.times(basis))
            unit = self.orthonormal(self.transposed_times(tall, exact=True))
            small = triangular(self._task, Rows.upload(self._task.device, self.times(self.whole(unit))))
        # One rank decides on the signs.
        parts: Any = np.linalg.svd(small, full_matrices=False) if comm.rank == 0 else None
        _, singular, turn = comm.bcast(parts)
        missing = max(n_components - len(singular), 0)
        singular = np.concatenate([singular, np.zeros(missing)])[:n_components]
        right = self.whole(unit @ turn.T)[: self._n_features]
        if missing:
            right = np.linalg.qr(np.concatenate([right, np.zeros((len(right), missing))], axis=1))[0]
        return singular, right[:, :n_components].astype(self._dtype)

    def largest(self, start: np.ndarray, k: int, tol: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute the k largest singular values and their right vectors by ARPACK, which rank 0 runs."""
        task, d = self._task, self._n_features

        def multiply(vector: np.ndarray) -> np.ndarray:
            found = self._matrix.transposed_times(self.times(vector.reshape(d, 1)))
            return task.comm.allreduce(found)[:d, 0]

        def ask(vector: np.ndarray) -> np.ndarray:
            return multiply(task.comm.bcast(vector))

        vectors: Any = None
        if task.comm.rank == 0:
            from scipy.sparse.linalg import LinearOperator, eigsh  # it takes a third of a second

            vectors = eigsh(LinearOperator((d, d), ask, dtype=np.float64), k, v0=start, tol=tol)[1]
            task.comm.bcast(None)
        else:
            while (vector := task.comm.bcast(None)) is not None:
                multiply(vector)
        basis = task.comm.bcast(vectors)
        made = Rows.upload(task.device, self.times(basis))
        _, singular, turn = task.comm.bcast(np.linalg.svd(triangular(task, made), full_matrices=False))
        return singular, basis @ turn.T


def _root_of_products(products: np.ndarray, dtype: Any) -> tuple[np.ndarray, float] | None:
    """Return `inverse_root` from the products of all columns; None if float64 products are not precise enough."""
    squares, turn = np.linalg.eigh(products)
    least = (len(squares) * np.finfo(dtype).eps) ** 2
    if not squares[-1] > 0 or (least < _TOLD and squares[0] < _DEPENDENT * squares[-1]):
        return None
    kept = squares > least * squares[-1]
    return turn[:, kept] / np.sqrt(squares[kept]), float(np.sqrt(squares[-1] / squares[kept][0]))


def of_sparse_rows(
    task: Task,
    source: Source,
    svd: Callable[[SparseSVD], tuple[np.ndarray, np.ndarray]],
    target: Target | None = None,
    kept: Handle | None = None,
) -> Singular:
    """Return singular values and vectors of sparse rows, which are not centred, and what they explain.

    With `target` or `kept`, the rows are also projected on the right vectors, which only rank 0 returns.
    """
    rows, n_samples = rows_of(task, source), source.bounds[-1]
    assert isinstance(rows, SparseRows)
    mean = task.comm.allreduce(column_sums(rows)) / n_samples
    squares = task.comm.allreduce(column_sums(rows, mean, squared=True))
    matrix = SparseSVD(task, rows, source.bounds)
    singular, right = svd(matrix)
    right *= signs_of(right.T)
    projected = matrix.times(right)
    away = projected - mean @ right
    sums = task.comm.allreduce(np.stack([away.sum(axis=0), np.square(away).sum(axis=0)]))
    if target is not None or kept is not None:
        give_rows(task, Rows.upload(task.device, projected), source.bounds, target, kept)
    return {
        "rows": rows.n_samples,
        "singular": singular,
        "right": right.T if task.comm.rank == 0 else right.T[:, :0],
        "mean": mean,
        "squares": squares,
        "explained": sums[1] - np.square(sums[0]) / n_samples,
    }


@task("sparse_svd")
def _sparse_svd(
    task: Task,
    source: Source,
    weights: None,
    start: np.ndarray,
    k: int,
    tol: float,
    target: Target | None = None,
    kept: Handle | None = None,
) -> Singular:
    """Compute the k largest singular values of sparse rows, and their right vectors, by ARPACK."""
    return of_sparse_rows(task, source, lambda matrix: matrix.largest(start, k, tol), target, kept)


def inverse_root(triangle: np.ndarray, dtype: Any) -> tuple[np.ndarray, float]:
    """Return the matrix (k, rank) that makes a triangle's columns orthonormal, and their condition number."""
    _, singular, right = np.linalg.svd(triangle, full_matrices=False)
    kept = singular > len(right.T) * np.finfo(dtype).eps * singular[0]
    if not kept.any():
        return np.zeros((triangle.shape[1], 1)), 1.0
    return right[kept].T / singular[kept], float(singular[0] / singular[kept][-1])


def signs_of(right: np.ndarray) -> np.ndarray:
    """Return signs that make the entry of largest magnitude in each right singular vector positive."""
    greatest = np.abs(right).argmax(axis=1)
    return np.where(right[np.arange(len(right)), greatest] < 0, -1.0, 1.0)
