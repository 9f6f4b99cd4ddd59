"""Least squares with a penalty on squared coefficients, for sparse rows of all ranks, by conjugate gradients [1]_.

An iteration multiplies the rows of all ranks by a direction, and their transpose by the result: their zeros stay zeros,
also where the columns are centred, because the mean is subtracted from the products.

References
----------
.. [1] A. Bjorck, "Numerical Methods for Least Squares Problems", SIAM, 1996, section 7.4: CGLS, with
   the diagonal as its preconditioner.
"""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.linear.of_classes import any_data_of_classes
from xpulab.engine.dataset import PassedRows, on_host
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.sparse_rows import SparseRows, stored_values
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse_products import HostMatrix
from xpulab.sharing.answers import SparseSolution
from xpulab.sharing.linear_models import OfClasses
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["sparse_score"]

_EXACT = 1e-13  # of the first gradient: what is left of it when the fit ends
_ROUNDINGS = 8  # of the residuals, in which a gradient cannot be told from 0
_HIDDEN = 1e-6  # of the residuals: a larger gradient, divided by the columns' lengths, has not converged
_UNEVEN = 1e3  # times the length of the shortest column: longer ones hide its gradient
_LEAST = 1e-13  # of a column's squares about zero: those about its mean are rounding below this
_MOST = 20  # iterations for each column or row, whichever are fewer; rounding makes more of them necessary


def _means(
    task: Task, matrix: HostMatrix, weights: np.ndarray, y: np.ndarray, centre: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the means of columns and targets (zeros without `centre`), and the sum of the weights, of all ranks."""
    of_columns = matrix.transposed_times(weights[:, None])[:, 0]
    sums = task.comm.allreduce(np.concatenate([of_columns, weights @ y, [weights.sum()]]))
    means = sums[:-1] / sums[-1] if centre else np.zeros(len(sums) - 1)
    return means[: len(of_columns)], means[len(of_columns) :], float(sums[-1])


def _squares(task: Task, rows: SparseRows, mean: np.ndarray, weight: float) -> np.ndarray:
    """Sum the squared differences of each column from its mean, with weights, over all ranks; at least rounding."""
    mine = np.zeros(rows.n_features)
    with task.device.computing():
        for columns, values, weights in stored_values(rows):
            mine += np.bincount(columns, weights * np.square(values), minlength=rows.n_features)
    about_zero = task.comm.allreduce(mine)
    return np.maximum(about_zero - weight * np.square(mean), _LEAST * about_zero)


@task("sparse_least_squares")
def _least_squares(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    centre: bool,
    penalties: np.ndarray,
    of_classes: OfClasses | None = None,
) -> SparseSolution:
    """Return coefficients (n_features, n_targets), means of columns and targets, and whether the iterations converged.

    If columns are of very different sizes, gradients are divided by the diagonal of the normal equations. Otherwise,
    and without a penalty, they are not: of solutions that are equally good up to rounding, this gives the least one.
    """
    rows, given = any_data_of_classes(task, source, weights, targets, of_classes)
    assert isinstance(rows, SparseRows)
    matrix, y, weight = HostMatrix(rows), on_host(given, np.float64), rows.weights_on_cpu()
    mean, target_mean, total = _means(task, matrix, weight, y, centre)
    roots = np.sqrt(weight)[:, None]
    squares = _squares(task, rows, mean, total)[:, None]
    squares[squares == 0] = 1  # of a column of zeros, whose gradient is 0
    uneven = squares.max() > _UNEVEN**2 * squares.min()
    diagonal = np.where(uneven & (penalties > 0), squares + penalties, 1.0)
    of_rounding = (_ROUNDINGS * np.finfo(np.float64).eps) ** 2 * (squares / diagonal).sum(axis=0)

    def transposed_times(tall: np.ndarray) -> np.ndarray:
        tall = roots * tall
        sums = task.comm.allreduce(np.vstack([matrix.transposed_times(tall), tall.sum(axis=0)]))
        return sums[:-1] - np.outer(mean, sums[-1])

    residual = roots * (y - target_mean)
    coef = np.zeros((rows.n_features, residual.shape[1]))
    gradient = transposed_times(residual)
    direction = gradient / diagonal
    size = (gradient * direction).sum(axis=0)
    enough, converged = size * _EXACT**2, False
    for iteration in range(_MOST * min(rows.n_features, source.bounds[-1])):
        task.check()
        task.show(iteration=iteration)
        along = roots * (matrix.exact_times(direction) - mean @ direction)
        curvature, left = task.comm.allreduce(np.stack([np.square(along).sum(axis=0), np.square(residual).sum(axis=0)]))
        curvature += penalties * np.square(direction).sum(axis=0)
        # One rank decides, because another CPU may round differently.
        going = task.comm.bcast((size > np.maximum(enough, of_rounding * left)) & (curvature > 0))
        if not going.any():
            # Where they are not divided, the gradients of small columns may be hidden by those of large ones.
            converged = bool(((np.square(gradient) / squares).sum(axis=0) <= _HIDDEN**2 * left).all())
            break
        step = np.divide(size, curvature, out=np.zeros_like(size), where=going)
        coef = coef + step * direction
        residual = residual - step * along
        gradient = transposed_times(residual) - penalties * coef
        scaled = gradient / diagonal
        before, size = size, (gradient * scaled).sum(axis=0)
        direction = scaled + np.divide(size, before, out=np.zeros_like(size), where=going) * direction
    return {"rows": rows.n_samples, "coef": coef, "mean": mean, "target_mean": target_mean, "converged": converged}


def sparse_score(
    task: Task, rows: SparseRows, targets: Rows, coef: np.ndarray, intercept: np.ndarray
) -> dict[str, np.ndarray]:
    """Sum squared residuals, and squared differences from the mean, with weights, for each target."""
    matrix, y, weights = HostMatrix(rows), on_host(targets, np.float64), rows.weights_on_cpu()
    total, weight = task.comm.allreduce(np.stack([weights @ y, np.full(y.shape[1], weights.sum())]))
    mean = np.divide(total, weight, out=np.zeros_like(total), where=weight != 0)
    left = y - (matrix.exact_times(coef) + intercept)
    residual, squares = task.comm.allreduce(np.stack([weights @ np.square(left), weights @ np.square(y - mean)]))
    return {"residual": residual, "squares": squares, "weight": weight[:1]}
