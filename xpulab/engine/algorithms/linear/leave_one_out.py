"""Leave-one-out errors of ridge regression for several penalties, in two passes over the rows.

The columns may differ in size by many orders of magnitude, and so may the penalties and the products of columns. The
columns are therefore scaled to unit length, and the penalties with them; a generalised decomposition of both gives a
basis in which all penalties are diagonal. It is computed from the products of columns. If these are not exact enough,
because they have the square of the condition number of the columns, it is computed from the triangle of a QR
decomposition of the rows. Of more columns than rows, the errors follow from the equations of the rows; see `wide`.

References
----------
.. [1] R. Rifkin, R. Lippert, "Notes on Regularized Least Squares", MIT-CSAIL-TR-2007-025 (2007): the error of a row
   that is left out is its residual divided by (1 - its leverage).
.. [2] C. F. Van Loan, "Generalizing the Singular Value Decomposition", SIAM J. Numer. Anal. 13 (1976), 76-83.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.linear.of_classes import data_of_classes
from xpulab.engine.algorithms.linear.wide import LeftOut, left_out
from xpulab.engine.algorithms.passes import products
from xpulab.engine.algorithms.qr import triangle_of
from xpulab.engine.algorithms.wide_rows import WideRows, few_rows
from xpulab.engine.dataset import Data, PassedRows, on_host, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.project import project
from xpulab.kernels.row_passes import consecutive
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import RowsInParts, on_cpu, parts_of
from xpulab.sharing.linear_models import OfClasses
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["leave_one_out"]

#: Relative error of coefficients that the rounding of the products of columns may cause.
_ENOUGH = 1e-11

_Facts = dict[str, Any]
#: A basis of the columns, as the columns of a matrix; for each of these and each penalty the inverse of the penalised
#: product; the products of the basis and the targets; and the coefficients.
_Basis = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def leave_one_out(
    task: Task, data: Data, centre: bool, penalties: np.ndarray, predictions: bool, exact: bool
) -> tuple[_Facts, Iterator[np.ndarray]]:
    """Compute the coefficients for each penalty, and the leave-one-out errors of the rows [1]_.

    Parameters
    ----------
    task : Task
    data : Data
        Rows with targets.
    centre : bool
        Whether there is an intercept.
    penalties : numpy.ndarray of shape (n_penalties,)
        All positive.
    predictions : bool
        Whether `parts` has predictions for the rows that are left out, instead of weighted squared errors.
    exact : bool
        Whether to use the triangle of the rows in any case.

    Returns
    -------
    facts : dict
        Arrays of float64: ``coef`` of shape (n_penalties, n_features, n_targets), ``mean``, ``target_mean``, and
        ``squared`` of shape (n_targets, n_penalties). ``squared`` has the sums of this rank's squared errors after the
        iterator has ended. ``exact`` is whether a triangle was used, and ``by_rows`` whether the equations of the rows
        were. Then rank 0 alone has ``coef`` and ``mean``.
    parts : iterator of numpy.ndarray of shape (m, n_targets * n_penalties)
        Errors or predictions of the next m rows.
    """
    weights = data.sample_weight
    if few_rows(data) and not (predictions and weights is not None and task.comm.allreduce(_zeros(weights))[0]):
        found = left_out(WideRows.of(task, data, centre), penalties, exact)
        if found is not None:
            return _of_rows(task, data, found, predictions)
    basis: _Basis | None = None
    # One rank computes the decomposition for all, because other ranks may round differently.
    wide = data.n_samples < data.n_features  # the triangle is then smaller than the products
    if data.dtype == np.float64 and not exact and not wide:
        sums = products(task, data, centre)
        mean, target_mean, weight = sums.mean, sums.target_mean, sums.weight
        if not sums.lost:
            basis = task.comm.bcast(_of_products(sums.gram, sums.cross, penalties) if task.comm.rank == 0 else None)
    exact = basis is None
    if basis is None:  # also for all float32 rows: scikit-learn computes in float64, too
        whole, n = triangle_of(task, data, centre), data.n_features
        mean, target_mean, weight = whole.mean, whole.target_mean, whole.weight
        basis = task.comm.bcast(
            _of_triangle(whole.r[:, :n], whole.r[:, n:], penalties) if task.comm.rank == 0 else None
        )
    assert basis is not None
    vectors, inverse, along, coef = basis
    rotated = inverse[:, None, :] * along[:, :, None]  # basis, targets, penalties
    squared = np.zeros(rotated.shape[1:])
    facts: _Facts = {"coef": coef, "mean": mean, "target_mean": target_mean, "squared": squared}
    facts |= {"exact": exact, "by_rows": False}
    return facts, _parts(data, facts, vectors, inverse, rotated, weight if centre else np.inf, predictions)


def _zeros(weights: np.ndarray) -> np.ndarray:
    """Return the number of rows without weight, of which the equations of the rows know nothing."""
    return np.array([(weights == 0).sum()], np.int64)


def _of_rows(task: Task, data: Data, found: LeftOut, predictions: bool) -> tuple[_Facts, Iterator[np.ndarray]]:
    """Return what `leave_one_out` does, from the residuals of all rows."""
    facts: _Facts = {"coef": found.coef, "mean": found.mean, "target_mean": found.target_mean}
    mine = slice(*data.bounds[task.comm.rank : task.comm.rank + 2])
    residual, weights, targets = found.residual[mine], data.sample_weight, data.targets
    assert targets is not None
    errors = np.square(residual)
    if weights is not None:
        errors *= weights.astype(data.dtype).astype(np.float64)[:, None, None]
    facts |= {"squared": errors.sum(axis=0), "exact": found.exact, "by_rows": True}
    made = on_host(targets, np.float64)[:, :, None] - residual if predictions else errors
    return facts, iter([made.reshape(len(made), math.prod(made.shape[1:]))])


def _of_products(gram: np.ndarray, cross: np.ndarray, penalties: np.ndarray) -> _Basis | None:
    """Return the basis for the products of columns, and of columns and targets; None if they are not exact enough."""
    size, penalty = _scales(gram.diagonal(), penalties)
    scaled = gram / np.outer(size, size)
    try:
        half = np.linalg.inv(np.linalg.cholesky(scaled + np.diag(penalty)))
    except np.linalg.LinAlgError:
        return None
    if np.finfo(np.float64).eps * np.square(half).sum() > _ENOUGH:  # the trace of the inverse; the largest value is 1
        return None
    squares, turned = np.linalg.eigh(half @ scaled @ half.T)
    basis = half.T @ turned
    vectors = basis / size[:, None]
    inverse, along = _inverse(np.maximum(squares, 0.0), basis, penalty, penalties), vectors.T @ cross
    coef = _coefficients(vectors, inverse, along)
    rest = cross - gram @ coef - penalties[:, None, None] * coef
    return vectors, inverse, along, coef + _coefficients(vectors, inverse, vectors.T @ rest)


def _of_triangle(r: np.ndarray, rotated: np.ndarray, penalties: np.ndarray) -> _Basis:
    """Return the basis for the triangle of the rows, and the same rotation of the targets [2]_."""
    if len(r) < r.shape[1]:  # what no row reaches needs no basis
        left, values, right = np.linalg.svd(r, full_matrices=False)
        vectors, inverse = right.T, 1 / (np.square(values)[:, None] + penalties)
    else:
        size, penalty = _scales(np.square(r).sum(axis=0), penalties)
        q, corner = np.linalg.qr(np.concatenate([r / size, np.diag(np.sqrt(penalty))]))
        left, values, right = np.linalg.svd(q[: len(r)], full_matrices=False)
        basis = np.linalg.solve(corner, right.T)
        vectors, inverse = basis / size[:, None], _inverse(np.square(values), basis, penalty, penalties)
    along = values[:, None] * (left.T @ rotated)
    coef = _coefficients(vectors, inverse, along)
    rest = r.T @ (rotated - r @ coef) - penalties[:, None, None] * coef
    return vectors, inverse, along, coef + _coefficients(vectors, inverse, vectors.T @ rest)


def _coefficients(vectors: np.ndarray, inverse: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return the coefficients (n_penalties, n_features, n_targets) for products of the basis and targets.

    For what is left of the equations they are a correction, with which columns that are small beside the others have
    coefficients that are as exact as those of the others.
    """
    return vectors @ (inverse.T[:, :, None] * along)


def _scales(squares: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of columns with the least penalty, and this penalty for columns of unit length."""
    size = np.sqrt(squares + penalties.min())
    return size, penalties.min() / np.square(size)


def _inverse(squares: np.ndarray, basis: np.ndarray, penalty: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """Return the inverse of the penalised product for each column of the basis and each penalty."""
    return 1 / (squares[:, None] + np.outer(penalty @ np.square(basis), penalties / penalties.min()))


def _parts(
    data: Data,
    facts: _Facts,
    vectors: np.ndarray,
    inverse: np.ndarray,
    rotated: np.ndarray,
    weight: float,
    predictions: bool,
) -> Iterator[np.ndarray]:
    rows, targets = data.block, data.targets
    assert targets is not None
    weights = rows.weights_on_cpu()
    k, t, p = rotated.shape
    first = 0
    for turned in _turned(rows, vectors, facts["mean"]):
        last = first + len(turned)
        right = consecutive(targets, first, last).astype(np.float64)
        mine = weights[first:last, None]
        leverage = mine * (np.square(turned) @ inverse + 1 / weight)
        residual = (right - facts["target_mean"])[:, :, None] - (turned @ rotated.reshape(k, t * p)).reshape(-1, t, p)
        left_out = residual / (1 - leverage)[:, None, :]
        errors = mine[:, :, None] * np.square(left_out)
        facts["squared"] += errors.sum(axis=0)
        yield (right[:, :, None] - left_out if predictions else errors).reshape(len(turned), t * p)
        first = last


def _turned(rows: Rows | RowsInParts, vectors: np.ndarray, mean: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the centred rows times the basis, in float64, a part at a time."""
    if rows.dtype == np.float64:
        for _, part in parts_of(rows):
            yield from project(part, vectors, mean)
        return
    for _, some in on_cpu(rows):
        yield (some.astype(np.float64) - mean) @ vectors


@task("leave_one_out")
def _leave_one_out(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    centre: bool,
    penalties: np.ndarray,
    predictions: bool = False,
    exact: bool = False,
    of_classes: OfClasses | None = None,
    target: Target | None = None,
) -> _Facts:
    """Return the results of `leave_one_out` for all rows."""
    data = data_of_classes(task, source, weights, targets, of_classes)
    facts, parts = leave_one_out(task, data, centre, penalties, predictions, exact)
    if target is None:
        for _ in parts:
            task.leave_if_cancelled()
    else:
        write_block(task, target, source.bounds, parts)
    facts["squared"] = task.comm.allreduce(facts["squared"])
    return {"rows": data.n_own, **facts}
