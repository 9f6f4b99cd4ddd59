"""Truncated singular value decompositions by random starts, and quadratic forms of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.passes import moments
from xpulab.engine.algorithms.qr import triangular
from xpulab.engine.dataset import data_of, give_rows, write_block
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
        self._away = self._shift - mean  # what the rounding of the mean leaves

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
    ) -> tuple[np.ndarray, np.ndarray, Rows]:
        """Singular values (n_components,), right vectors (n_components, n_features) and left ones of A.

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
        greatest = np.abs(right).argmax(axis=1)
        signs = np.where(right[np.arange(len(right)), greatest] < 0, -1.0, 1.0)
        return singular, right * signs[:, None], projected(tall, left * signs)


def _inverse_root(triangle: np.ndarray, dtype: Any) -> tuple[np.ndarray, float]:
    """What makes the columns of a triangle orthonormal, (k, rank), and the condition of those that are left."""
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
    columns = moments(task, data.rows)
    matrix = Range(task, data.rows, columns.mean if centre else np.zeros(data.rows.n_features))
    singular, right, left = matrix.svd(start, n_components, n_iter, data.bounds)
    if target is not None or kept is not None:
        stretch = np.full(len(singular), np.sqrt(data.n_samples - 1)) if whiten else singular
        give_rows(task, projected(left, np.diag(stretch)), source["bounds"], target, kept)
    explained = None if centre else moments(task, projected(data.rows, right.T)).squares
    return {
        "rows": data.rows.n_samples,
        "singular": singular,
        "right": right,
        "mean": columns.mean,
        "squares": columns.squares,
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
