"""Truncated singular value decompositions by random starts, and quadratic forms of the rows.

Power iterations multiply by all rows again and again. Where there are few columns, the products of all columns are
computed once, and the iterations multiply by these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.passes import may_be_precise, moments, products
from xpulab.engine.algorithms.qr import triangular
from xpulab.engine.dataset import Data, data_of, give_rows, write_block
from xpulab.engine.engine import Task, task
from xpulab.kernels.products import cross
from xpulab.kernels.project import project, projected
from xpulab.kernels.rows import Rows

__all__ = ["Range"]

_WELL = 100.0  # condition up to which rounding leaves columns orthonormal that were multiplied by an inverse


class Range:
    """The rows less a mean as a matrix A that is multiplied from both sides, as in randomized SVD [1]_.

    Tall matrices, of a row for each row of A, are rows on the devices; those of a row for each column of A are NumPy
    arrays of float64, the same on all ranks.

    Parameters
    ----------
    task : Task
    rows : Rows
    mean : numpy.ndarray of shape (n_features,)

    References
    ----------
    .. [1] N. Halko, P.-G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Review 53 (2011), 217-288.
    """

    def __init__(self, task: Task, rows: Rows, mean: np.ndarray) -> None:
        self._task = task
        self._rows = rows
        self._shift = mean.astype(rows.dtype)
        self._away = self._shift - mean  # the part of the mean that rounding leaves

    def times(self, matrix: np.ndarray) -> Rows:
        """A @ matrix, (n_samples, k)."""
        self._task.check()
        return projected(self._rows, matrix, self._shift, self._away @ matrix)

    def transposed_times(self, tall: Rows, sums: np.ndarray | None = None) -> np.ndarray:
        """A.T @ tall, (n_features, k); `sums` are those of the columns of tall over all ranks, None for zeros."""
        self._task.check()
        found = self._task.comm.allreduce(cross(self._rows, tall, self._shift))
        return found if sums is None else found + np.outer(self._away, sums)

    def orthonormal(self, tall: Rows) -> Rows:
        """Orthonormal columns that span those of tall; fewer where its rank is less."""
        for _ in range(2):  # twice is enough
            triangle = triangular(self._task, tall)
            # From one rank: on another CPU a number at the limit could be another, and so the number of columns.
            matrix, condition = self._task.comm.bcast(_inverse_root(triangle, tall.dtype))
            tall = projected(tall, matrix)
            if condition < _WELL:
                break
        return tall

    def svd(
        self, start: np.ndarray, n_components: int, n_iter: int, bounds: list[int]
    ) -> tuple[np.ndarray, np.ndarray, Callable[[], Rows]]:
        """Singular values (n_components,), right vectors (n_components, n_features) and how to get the left ones of A.

        The greatest number of each right vector is positive, as scikit-learn has it.

        Parameters
        ----------
        start : numpy.ndarray of shape (min(n_samples, n_features), k)
        n_components : int
        n_iter : int
            Power iterations.
        bounds : list of int
        """
        if bounds[-1] >= self._rows.n_features:
            basis = start
            for _ in range(n_iter):
                basis = np.linalg.qr(self.transposed_times(self.orthonormal(self.times(basis))))[0]
            tall = self.orthonormal(self.times(basis))
            found = self.transposed_times(tall).T
            missing = max(n_components - len(found), 0)
            found = np.concatenate([found, np.zeros((missing, found.shape[1]))])
            left, singular, right = np.linalg.svd(found, full_matrices=False)
            left = left[: tall.n_features]
        else:
            mine = start[bounds[self._task.comm.rank] : bounds[self._task.comm.rank + 1]]
            tall, sums = Rows.upload(self._task.device, mine.astype(self._rows.dtype)), start.sum(axis=0)
            for _ in range(n_iter):
                basis = np.linalg.qr(self.transposed_times(tall, sums))[0]
                tall, sums = self.orthonormal(self.times(basis)), None
            basis = self.transposed_times(tall, sums)
            missing = max(n_components - basis.shape[1], 0)
            basis = np.linalg.qr(np.concatenate([basis, np.zeros((len(basis), missing))], axis=1))[0]
            tall = self.times(basis)
            _, singular, turn = np.linalg.svd(triangular(self._task, tall), full_matrices=False)
            left = np.divide(turn.T, singular, out=np.zeros_like(turn.T), where=singular > 0)
            right = turn @ basis.T
        singular, right, left = singular[:n_components], right[:n_components], left[:, :n_components]
        signs = _signs(right)
        return singular, right * signs[:, None], lambda: projected(tall, left * signs)


def _signs(right: np.ndarray) -> np.ndarray:
    """What makes the greatest number of each right vector positive."""
    greatest = np.abs(right).argmax(axis=1)
    return np.where(right[np.arange(len(right)), greatest] < 0, -1.0, 1.0)


def _gram_pays(data: Data, k: int, n_iter: int) -> bool:
    """Whether one pass for the products of all columns takes less time than two for each power iteration.

    It needs products in float64, of rows of float32, so that their squares lose nothing that float32 has.
    """
    return data.rows.n_features <= min(2 * k * (2 * n_iter + 2), data.n_samples)


def _svd_of_gram(
    gram: np.ndarray, start: np.ndarray, n_components: int, n_iter: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular values and right vectors of A as `Range.svd` finds them, and by what A is multiplied for the left ones.

    All of a power iteration is a product with ``A.T @ A``, which is `gram`; what A does to a basis is known from
    ``basis.T @ gram @ basis``.
    """
    basis = start.astype(np.float64)
    for _ in range(n_iter):
        basis = np.linalg.qr(gram @ basis)[0]
    squares, turn = np.linalg.eigh(basis.T @ gram @ basis)
    lengths = np.sqrt(np.maximum(squares, 0.0))
    kept = lengths > len(lengths) * np.finfo(dtype).eps * lengths[-1]
    by = basis @ (turn[:, kept] / lengths[kept])  # the columns of A @ by are orthonormal
    found = (gram @ by).T
    left, singular, right = np.linalg.svd(
        np.concatenate([found, np.zeros((max(n_components - len(found), 0), found.shape[1]))]), full_matrices=False
    )
    singular, right, left = singular[:n_components], right[:n_components], left[: len(found), :n_components]
    signs = _signs(right)
    return singular, right * signs[:, None], by @ (left * signs)


def _inverse_root(triangle: np.ndarray, dtype: Any) -> tuple[np.ndarray, float]:
    """The matrix (k, rank) that makes a triangle's columns orthonormal, and the condition of the columns it keeps."""
    _, singular, right = np.linalg.svd(triangle, full_matrices=False)
    kept = singular > len(right.T) * np.finfo(dtype).eps * singular[0]
    if not kept.any():
        return np.zeros((triangle.shape[1], 1)), 1.0
    return right[kept].T / singular[kept], float(singular[0] / singular[kept][-1])


@task("randomized_svd")
def _randomized_svd(
    task: Task,
    source: dict[str, Any],
    weights: None,
    start: np.ndarray,
    n_components: int,
    n_iter: int,
    centre: bool,
    whiten: bool = False,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Singular values and right vectors of all rows, and the sums of squares about the mean that they explain.

    If they are asked for, the rows get the left vectors times the singular values, or of unit variance.
    """
    data = data_of(task, source)
    left: Callable[[], Rows]
    if _gram_pays(data, start.shape[1], n_iter) and may_be_precise(task, data.rows):
        sums = products(task, data, True, precise=True)
        mean, whole = sums.mean, sums.gram if centre else sums.gram + sums.weight * np.outer(sums.mean, sums.mean)
        singular, right, by = task.comm.bcast(_svd_of_gram(whole, start, n_components, n_iter, data.rows.dtype))
        squares, explained = np.diag(sums.gram), None if centre else np.einsum("ij,jk,ik->i", right, sums.gram, right)
        matrix = Range(task, data.rows, mean if centre else np.zeros_like(mean))
        left = functools.partial(matrix.times, by)
    else:
        columns = moments(task, data.rows)
        mean, squares = columns.mean, columns.squares
        matrix = Range(task, data.rows, mean if centre else np.zeros_like(mean))
        singular, right, left = matrix.svd(start, n_components, n_iter, data.bounds)
        explained = None if centre else moments(task, projected(data.rows, right.T)).squares
    if target is not None or kept is not None:
        stretch = np.full(len(singular), np.sqrt(data.n_samples - 1)) if whiten else singular
        give_rows(task, projected(left(), np.diag(stretch)), source["bounds"], target, kept)
    return {
        "rows": data.rows.n_samples,
        "singular": singular,
        "right": right,
        "mean": mean,
        "squares": squares,
        "explained": explained,
    }


@task("quadratic_forms")
def _quadratic_forms(
    task: Task,
    source: dict[str, Any],
    weights: None,
    shift: np.ndarray,
    matrix: np.ndarray,
    factors: np.ndarray,
    constant: float,
    target: dict[str, Any],
) -> dict[str, Any]:
    """Of each row x, the sum of factors times ``((x - shift) @ matrix)**2``, plus a constant."""
    rows = data_of(task, source).rows

    def forms() -> Iterator[np.ndarray]:
        for piece in project(rows, matrix, shift):
            yield np.square(piece, dtype=np.float64) @ factors + constant

    write_block(task, target, source["bounds"], forms())
    return {"rows": rows.n_samples}
