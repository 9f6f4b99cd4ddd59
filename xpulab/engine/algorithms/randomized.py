"""Randomized truncated singular value decompositions, and quadratic forms of the rows.

Each power iteration multiplies by all rows. If there are few columns, the products of all columns are computed once,
and the iterations multiply by these products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.passes import may_be_precise, moments, products
from xpulab.engine.algorithms.qr import triangle_of, triangular
from xpulab.engine.algorithms.sparse_rows.svd import inverse_root, of_sparse_rows, signs_of
from xpulab.engine.algorithms.wide_rows import WideRows, few_rows
from xpulab.engine.algorithms.wide_svd import randomized_components
from xpulab.engine.dataset import Data, data_of, give_rows, kind_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.products import cross
from xpulab.kernels.project import project, projected
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import OwnRows, Singular
from xpulab.sharing.sources import Handle, Source, Target

__all__ = ["Range", "with_unit_columns"]

_WELL = 100.0  # up to this condition number, columns times an inverse triangle are orthonormal up to rounding
_LONG = 1 << 20  # numbers of a matrix from which on the products of its columns are used
_DEPENDENT = 1e-10  # squares of the singular values of a matrix with columns that are nearly dependent


class Range:
    """The matrix A of the rows minus a mean, which randomized SVD multiplies from both sides [1]_.

    Tall matrices, with n_samples rows, are rows on the devices. Matrices with n_features rows are NumPy arrays of
    float64, which are the same on all ranks.

    Parameters
    ----------
    task : Task
    rows : Rows
    mean : numpy.ndarray of shape (n_features,)
        Subtracted from each row.

    References
    ----------
    .. [1] N. Halko, P.-G. Martinsson, J. A. Tropp, "Finding structure with randomness", SIAM Review 53 (2011), 217-288.
    """

    def __init__(self, task: Task, rows: Rows, mean: np.ndarray) -> None:
        self._task = task
        self._rows = rows
        self._dtype, self._n_features = rows.dtype, rows.n_features
        self._shift = mean.astype(rows.dtype)
        self._away = self._shift - mean  # the rounding error of the mean in the dtype of the rows

    def times(self, matrix: np.ndarray) -> Rows:
        """Compute ``A @ matrix``, of shape (n_samples, k)."""
        self._task.check()
        return projected(self._rows, matrix, self._shift, self._away @ matrix)

    def transposed_times(self, tall: Rows, sums: np.ndarray | None = None) -> np.ndarray:
        """Compute ``A.T @ tall``, of shape (n_features, k). `sums` are the sums of `tall` by column; None for zeros."""
        self._task.check()
        found = self._task.comm.allreduce(cross(self._rows, tall, self._shift))
        return found if sums is None else found + np.outer(self._away, sums)

    def orthonormal(self, tall: Rows) -> Rows:
        """Compute an orthonormal basis of the columns of `tall`; it has fewer columns if `tall` has a smaller rank."""
        for _ in range(2):  # two passes make the columns orthonormal up to rounding
            triangle = triangular(self._task, tall)
            # One rank decides, because another CPU may round differently, and keep another number of columns.
            matrix, condition = self._task.comm.bcast(inverse_root(triangle, tall.dtype))
            tall = projected(tall, matrix)
            if condition < _WELL:
                break
        return tall

    def svd(
        self, start: np.ndarray, n_components: int, n_iter: int, bounds: list[int]
    ) -> tuple[np.ndarray, np.ndarray, Callable[[], Rows]]:
        """Compute singular values and vectors of A.

        The entry of largest magnitude in each right singular vector is positive, as in scikit-learn.

        Parameters
        ----------
        start : numpy.ndarray of shape (min(n_samples, n_features), k)
            Random matrix.
        n_components : int
        n_iter : int
            Number of power iterations.
        bounds : list of int
            Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].

        Returns
        -------
        singular_values : numpy.ndarray of shape (n_components,)
        right : numpy.ndarray of shape (n_components, n_features)
        left : callable
            Returns the left singular vectors as rows on the devices.
        """
        if bounds[-1] >= self._n_features:
            basis = start
            for _ in range(n_iter):
                basis = with_unit_columns(self.transposed_times(self.orthonormal(self.times(basis))))
            tall = self.orthonormal(self.times(basis))
            found = self.transposed_times(tall).T
            missing = max(n_components - len(found), 0)
            found = np.concatenate([found, np.zeros((missing, found.shape[1]))])
            left, singular, right = np.linalg.svd(found, full_matrices=False)
            left = left[: tall.n_features]
        else:
            mine = start[bounds[self._task.comm.rank] : bounds[self._task.comm.rank + 1]]
            tall, sums = Rows.upload(self._task.device, mine.astype(self._dtype)), start.sum(axis=0)
            for _ in range(n_iter):
                basis = with_unit_columns(self.transposed_times(tall, sums))
                tall, sums = self.orthonormal(self.times(basis)), None
            basis = self.transposed_times(tall, sums)
            missing = max(n_components - basis.shape[1], 0)
            basis = np.linalg.qr(np.concatenate([basis, np.zeros((len(basis), missing))], axis=1))[0]
            tall = self.times(basis)
            _, singular, turn = np.linalg.svd(triangular(self._task, tall), full_matrices=False)
            left = np.divide(turn.T, singular, out=np.zeros_like(turn.T), where=singular > 0)
            right = turn @ basis.T
        singular, right, left = singular[:n_components], right[:n_components], left[:, :n_components]
        signs = signs_of(right)
        return singular, right * signs[:, None], lambda: projected(tall, left * signs)


def with_unit_columns(tall: np.ndarray) -> np.ndarray:
    """Return orthonormal columns that span those of a matrix (n_features, k).

    Of long columns, their products make them orthonormal, twice for precision: 0.1 s for 100,000 x 60 on one core, and
    LAPACK's QR decomposition 0.6 s. This is taken for columns so nearly dependent that products are not precise.
    """
    if tall.size < _LONG:
        return np.linalg.qr(tall)[0]
    made = tall
    for _ in range(2):
        squares, turn = np.linalg.eigh(made.T @ made)
        if not squares[0] > _DEPENDENT * squares[-1]:
            return np.linalg.qr(tall)[0]
        made = made @ (turn / np.sqrt(squares))
    return made


def _gram_pays(data: Data, k: int, n_iter: int) -> bool:
    """Return whether one pass for the products of all columns takes less time than two passes per power iteration.

    Only float32 rows use the products. They are summed in float64, so that the squares lose none of float32's digits.
    """
    return data.n_features <= min(2 * k * (2 * n_iter + 2), data.n_samples)


def _svd_of_gram(
    gram: np.ndarray, start: np.ndarray, n_components: int, n_iter: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute singular values and right vectors of A as `Range.svd`, and a matrix B: the left vectors are ``A @ B``.

    A power iteration is a product with ``A.T @ A``, which is `gram`. The singular values of A times a basis follow from
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
    signs = signs_of(right)
    return singular, right * signs[:, None], by @ (left * signs)


def _svd_of_triangle(
    triangle: np.ndarray, start: np.ndarray, n_components: int, n_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute singular values and right vectors of A as `Range.svd`, from a triangle R of its QR decomposition.

    The orthonormal bases of A times a matrix are Q times those of R times the matrix.
    """
    basis = start.astype(np.float64)
    for _ in range(n_iter):
        basis = np.linalg.qr(triangle.T @ np.linalg.qr(triangle @ basis)[0])[0]
    _, singular, right = np.linalg.svd(np.linalg.qr(triangle @ basis)[0].T @ triangle, full_matrices=False)
    singular, right = singular[:n_components], right[:n_components]
    return singular, right * signs_of(right)[:, None]


@task("randomized_svd")
def _randomized_svd(
    task: Task,
    source: Source,
    weights: None,
    start: np.ndarray,
    n_components: int,
    n_iter: int,
    centre: bool,
    whiten: bool = False,
    target: Target | None = None,
    kept: Handle | None = None,
) -> Singular:
    """Compute singular values, right vectors, and the sums of squares about the mean that the components explain.

    With `target` or `kept`, also the transformed rows: the left vectors times the singular values, or, with `whiten`,
    scaled to unit variance.
    """
    transformed = target is not None or kept is not None
    if kind_of(task, source)[0] is sparse:
        return of_sparse_rows(task, source, lambda matrix: matrix.randomized(start, n_components, n_iter), target, kept)
    data = data_of(task, source) if transformed else Data(task, source)
    if centre and few_rows(data):
        rows = WideRows.of(task, data, True)
        of_few = randomized_components(rows, start, n_components, n_iter)
        if of_few is not None:
            if transformed:
                stretch = np.sqrt(data.n_samples - 1) if whiten else of_few[0]
                made = task.comm.bcast(of_few[2] * stretch)[slice(*data.bounds[task.comm.rank : task.comm.rank + 2])]
                uploaded = Rows.upload(task.device, made.astype(data.dtype))
                give_rows(task, uploaded, source.bounds, target, kept)
            mean, squares = rows.mean, rows.squares()
            return {
                "rows": data.n_own,
                "singular": of_few[0],
                "right": of_few[1],
                "mean": mean,
                "squares": squares,
                "explained": None,
            }
    left: Callable[[], Rows] | None = None
    if _gram_pays(data, start.shape[1], n_iter) and may_be_precise(task, data.dtype):
        sums = products(task, data, True, precise=True)
        mean, whole = sums.mean, sums.gram if centre else sums.gram + sums.weight * np.outer(sums.mean, sums.mean)
        singular, right, by = task.comm.bcast(_svd_of_gram(whole, start, n_components, n_iter, data.dtype))
        squares, explained = np.diag(sums.gram), None if centre else np.einsum("ij,jk,ik->i", right, sums.gram, right)
        left = lambda: Range(task, data.rows, mean if centre else np.zeros_like(mean)).times(by)  # noqa: E731
    elif data.in_passes and data.n_samples >= data.n_features:
        triangle = triangle_of(task, data, True)
        mean, squares = triangle.mean, np.square(triangle.r).sum(axis=0)
        about = triangle.r if centre else np.vstack([np.sqrt(data.n_samples) * mean, triangle.r])
        singular, right = task.comm.bcast(_svd_of_triangle(about, start, n_components, n_iter))
        explained = None if centre else np.square(triangle.r @ right.T).sum(axis=0)
    else:
        columns = moments(task, data.rows)
        mean, squares = columns.mean, columns.squares
        matrix = Range(task, data.rows, mean if centre else np.zeros_like(mean))
        singular, right, left = matrix.svd(start, n_components, n_iter, data.bounds)
        explained = None if centre else moments(task, projected(data.rows, right.T)).squares
    if left is not None and transformed:
        stretch = np.full(len(singular), np.sqrt(data.n_samples - 1)) if whiten else singular
        give_rows(task, projected(left(), np.diag(stretch)), source.bounds, target, kept)
    return {
        "rows": data.n_own,
        "singular": singular,
        "right": right,
        "mean": mean,
        "squares": squares,
        "explained": explained,
    }


@task("quadratic_forms")
def _quadratic_forms(
    task: Task,
    source: Source,
    weights: None,
    shift: np.ndarray,
    matrix: np.ndarray,
    factors: np.ndarray,
    constant: float,
    target: Target,
) -> OwnRows:
    """Compute ``sum(factors * ((x - shift) @ matrix)**2) + constant`` for each row x."""
    rows = data_of(task, source).rows

    def forms() -> Iterator[np.ndarray]:
        for piece in project(rows, matrix, shift):
            yield np.square(piece, dtype=np.float64) @ factors + constant

    write_block(task, target, source.bounds, forms())
    return {"rows": rows.n_samples}
