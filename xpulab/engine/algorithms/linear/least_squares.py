"""Least squares over the rows of all ranks, with or without a penalty on squared coefficients.

The fast method solves the normal equations of the centred, scaled columns, and corrects the solution with the residuals
of the rows. The condition number of the normal equations is the square of that of the columns, so this method is used
only if it is exact enough. The exact method is the QR factorization of [X y], whose small triangle is then solved by
its singular value decomposition. Of more columns than rows, there are equations of the rows; see `wide`.

References
----------
.. [1] A. Bjorck, "Numerical Methods for Least Squares Problems", SIAM, 1996, section 6.6: corrected semi-normal
   equations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.linear.of_classes import data_of_classes
from xpulab.engine.algorithms.linear.sparse_least_squares import sparse_score
from xpulab.engine.algorithms.linear.wide import by_rows
from xpulab.engine.algorithms.passes import any_data, moments, products, rough_mean, whole_rows
from xpulab.engine.algorithms.qr import triangle_of
from xpulab.engine.algorithms.wide_rows import WideRows, few_rows
from xpulab.engine.dataset import Data, PassedRows, kind_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.moments import column_facts
from xpulab.kernels.products import cross
from xpulab.kernels.project import project, projected
from xpulab.kernels.rows import Rows, weighted
from xpulab.kernels.scaling import centred
from xpulab.kernels.streamed import changed, parts_of
from xpulab.sharing.answers import OwnRows, Products
from xpulab.sharing.linear_models import OfClasses
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["Solution", "least_squares"]

#: Item size of the rows' dtype in bytes -> relative error of the coefficients that needs no correction.
_ENOUGH = {4: 1e-5, 8: 1e-11}
#: If the ratio of the smallest to the largest eigenvalue of the Gram matrix is above this, the eigenvalues give the
#: squared singular values to seven digits or more.
_EXACT = 1e-8
_MOST_STEPS = 1  # refinements (passes over the rows); where two are needed, small singular values would be inexact


@dataclass(frozen=True)
class Solution:
    """Coefficients, or the triangle from which the proxy computes them; all arrays are float64.

    Attributes
    ----------
    coef : numpy.ndarray of shape (n_features, n_targets) or None
        None if the products are not exact enough; the triangle is then that of the rows.
    mean : numpy.ndarray of shape (n_features,)
        Weighted means of the columns; zeros if the columns were not centred.
    target_mean : numpy.ndarray of shape (n_targets,)
        Weighted means of the targets; zeros if they were not centred.
    triangle : numpy.ndarray of shape (k, n_features)
        Upper triangle R, where ``R.T @ R`` is the Gram matrix. Empty for coefficients with penalties.
    rotated : numpy.ndarray of shape (k, n_targets)
        The triangle times the coefficients of least squares.
    singular : numpy.ndarray of shape (n_features,) or None
        Singular values of the columns in descending order, if `coef` was computed without penalties.
    weight : float
        Sum of the sample weights; for refinement.
    steps : int
        Number of refinement steps.
    by_rows : bool
        Whether there was an equation for each row in place of one for each column.
    rank : int or None
        Number of singular values that do not count as zero; None for all.
    exact : bool
        Whether no products were used, and a triangle in their place.
    """

    coef: np.ndarray | None
    mean: np.ndarray
    target_mean: np.ndarray
    triangle: np.ndarray
    rotated: np.ndarray
    singular: np.ndarray | None = None
    weight: float = 0.0
    steps: int = 0
    by_rows: bool = False
    rank: int | None = None
    exact: bool = False


def least_squares(
    task: Task, data: Data, centre: bool, penalties: np.ndarray, cutoff: float, refine: bool, exact: bool
) -> Solution:
    """Compute, for each target, the coefficients that minimise the squared residuals plus the penalty on their squares.

    Parameters
    ----------
    task : Task
    data : Data
        Rows with targets.
    centre : bool
        Whether there is an intercept.
    penalties : numpy.ndarray of shape (n_targets,)
        The penalty of each target, not negative.
    cutoff : float
        Singular values up to this share of the largest count as zero.
    refine : bool
        Whether passes over the rows may correct the coefficients. If not, the products must be exact enough.
    exact : bool
        Whether to use the exact method in any case.

    Returns
    -------
    Solution
    """
    if refine and few_rows(data):
        found = by_rows(WideRows.of(task, data, centre), penalties, cutoff, exact)
        if found is not None:
            none = np.empty((0, 0))
            return Solution(
                found.coef,
                found.mean,
                found.target_mean,
                none,
                none,
                found.singular,
                by_rows=True,
                rank=found.rank,
                exact=found.exact,
            )
    solution: Solution | None = None
    gram = np.empty((0, 0))
    if not exact and data.n_samples - centre >= data.n_features:  # of wide rows, the triangle is smaller
        sums = products(task, data, centre)
        gram = sums.gram
        if task.comm.rank == 0 and not sums.lost:  # one rank decides for all, because other ranks may round differently
            most = _MOST_STEPS if refine else 0
            solution = _by_products(sums, penalties, cutoff, data.dtype, most)
        solution = task.comm.bcast(solution)
    if solution is None:
        return _by_triangle(task, data, centre)
    for _ in range(solution.steps):
        solution = _refined(task, data, solution, gram, penalties)
    return solution


def _by_products(
    found: Products, penalties: np.ndarray, cutoff: float, dtype: np.dtype[Any], most_steps: int
) -> Solution | None:
    """Solve the normal equations; return None if their condition number is too large, or a column is constant."""
    eps, enough = float(np.finfo(dtype).eps), _ENOUGH[dtype.itemsize]
    if (found.gram.diagonal() <= found.weight * np.square(eps * found.mean)).any():
        return None
    error = 0.0
    for penalty in np.unique(penalties):
        scaled, _ = _scaled(found.gram, penalty)
        values = np.linalg.eigvalsh(scaled)
        if not values[0] > 0:
            return None
        error = max(error, eps * float(values[-1] / values[0]))
    steps = next((steps for steps in range(most_steps + 1) if error <= enough ** (1 / (steps + 1))), None)
    if steps is None:
        return None
    coef = _solved(found.gram, penalties, found.cross)
    triangle = rotated = np.empty((0, 0))
    singular = None
    if not penalties.any():
        scaled, scale = _scaled(found.gram, 0.0)
        triangle = np.linalg.cholesky(scaled).T / scale
        rotated = triangle @ coef
        squares = np.linalg.eigvalsh(found.gram)
        if squares[0] > _EXACT * squares[-1]:
            singular = np.sqrt(squares[::-1])
        else:
            singular = np.linalg.svd(triangle, compute_uv=False)
        if singular[-1] <= cutoff * singular[0]:
            return None
    return Solution(coef, found.mean, found.target_mean, triangle, rotated, singular, found.weight, steps)


def _by_triangle(task: Task, data: Data, centre: bool) -> Solution:
    """Return the triangle of X, and the part of the targets that X can fit."""
    found, n = triangle_of(task, data, centre), data.n_features
    # Rows of the triangle of [X y] after the first n belong to the targets only.
    return Solution(None, found.mean, found.target_mean, found.r[:n, :n], found.r[:n, n:])


def _scaled(gram: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix of the normal equations, scaled so that its diagonal is 1, and the scales."""
    matrix = gram + penalty * np.eye(len(gram))
    diagonal = matrix.diagonal()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1)), 1.0)
    return matrix * np.outer(scale, scale), scale


def _solved(gram: np.ndarray, penalties: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve the normal equations; the solutions have the shape (n_features, n_targets)."""
    solution = np.empty_like(right)
    for penalty in np.unique(penalties):
        scaled, scale = _scaled(gram, penalty)
        mine = penalties == penalty
        solution[:, mine] = scale[:, None] * np.linalg.solve(scaled, scale[:, None] * right[:, mine])
    return solution


def _refined(task: Task, data: Data, solution: Solution, gram: np.ndarray, penalties: np.ndarray) -> Solution:
    """Return the solution after one step of corrected semi-normal equations [1]_, which is a pass over the rows.

    The device computes the residuals of coefficients that are rounded to the dtype of the rows.
    """
    task.check()
    dtype = data.dtype
    shift, target_shift = solution.mean.astype(dtype), solution.target_mean.astype(dtype)
    assert solution.coef is not None
    coef = solution.coef.astype(dtype)
    gradient = np.zeros(coef.shape)
    for rows, targets in data.parts() if data.in_passes else [(data.rows, data.targets)]:
        assert targets is not None
        residual = projected(rows, coef, shift, None, minus=centred(targets, target_shift, None))
        gradient += cross(rows, residual, shift, None)
    away, target_away = solution.mean - shift, solution.target_mean - target_shift
    gradient = task.comm.allreduce(gradient)
    coef = coef.astype(np.float64)
    # The device subtracts rounded means, so the columns and the residuals still contain a small part of the means.
    gradient -= solution.weight * np.outer(away, away @ coef - target_away)
    better = None
    if task.comm.rank == 0:
        better = coef - _solved(gram, penalties, gradient + penalties * coef)
    return replace(solution, coef=task.comm.bcast(better))


def _score(task: Task, data: Data, coef: np.ndarray, intercept: np.ndarray) -> dict[str, np.ndarray]:
    """Compute weighted sums for each target, of squared residuals and of squared differences from the mean."""
    rows, dtype, targets = data.block, data.dtype, data.targets
    assert targets is not None
    if data.sample_weight is not None:
        targets = weighted(targets, data.sample_weight)
    about = moments(task, targets)
    # A number near the mean is subtracted from predictions and targets, because both may be far from 0, and close to
    # each other.
    shift, target_shift = rough_mean(task, rows), about.mean.astype(dtype)
    coef = coef.astype(dtype)
    offset = intercept + shift.astype(np.float64) @ coef.astype(np.float64) - target_shift

    def residual_of(first: int, part: Rows) -> Rows:
        right = centred(targets.part(first, part.n_samples), target_shift, None)
        return projected(part, coef, shift, offset, minus=right)

    residual = changed(rows, residual_of, targets.n_features)
    own = (column_facts(part).squares for _, part in parts_of(residual))
    left = task.comm.allreduce(sum(own, np.zeros(targets.n_features)))
    data.require_finite()
    limits = np.finfo(dtype)
    if not ((left > limits.tiny / limits.eps) & (left < limits.max * limits.eps)).all():  # squares may be inexact
        found = moments(task, residual)
        left = found.squares + found.weight * np.square(found.mean)
    return {"residual": left, "squares": about.squares, "weight": about.weight[:1]}


@task("least_squares")
def _least_squares(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    centre: bool,
    penalties: np.ndarray,
    cutoff: float,
    refine: bool = True,
    exact: bool = False,
    of_classes: OfClasses | None = None,
) -> dict[str, Any]:
    """Return the `Solution` of all targets, from rank 0."""
    data = data_of_classes(task, source, weights, targets, of_classes)
    solution = least_squares(task, data, centre, penalties, cutoff, refine, exact)
    return {"rows": data.n_own, **({"solution": vars(solution)} if task.comm.rank == 0 else {})}


@task("linear_score")
def _linear_score(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    coef: np.ndarray,
    intercept: np.ndarray,
) -> dict[str, Any]:
    """Return the sums from which the proxy computes r2 scores."""
    if kind_of(task, source)[0] is sparse:
        rows, of_rows = any_data(task, source, weights, targets)
        assert isinstance(rows, SparseRows)
        return {"rows": rows.n_samples, **sparse_score(task, rows, of_rows, coef, intercept)}
    data = Data(task, source, weights, targets)
    return {"rows": data.n_own, **_score(task, data, coef, intercept)}


@task("linear_spread")
def _linear_spread(
    task: Task, source: Source, weights: None, target: Target, shift: np.ndarray, covariance: np.ndarray, noise: float
) -> OwnRows:
    """Write the standard deviation of the prediction of each row, for a covariance of the coefficients."""
    values, vectors = np.linalg.eigh(covariance)
    half = vectors * np.sqrt(np.maximum(values, 0))
    rows = whole_rows(task, source)
    made = (np.sqrt(np.square(part).sum(axis=1) + noise) for part in project(rows, half, shift))
    write_block(task, target, source.bounds, made)
    return {"rows": rows.n_samples}
