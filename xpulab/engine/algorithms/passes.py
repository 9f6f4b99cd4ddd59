"""Passes over all rows that several estimators share: moments, products, projections and scaling.

Each pass reduces its result over the ranks, so that all ranks return the same, however the rows are cut. The estimators
do the algebra on these results.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
   recommendations", The American Statistician 37 (1983), 242-247: sums about a shift near the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xpulab.engine.dataset import Data, data_of, give_rows, write_block
from xpulab.engine.engine import Task, task
from xpulab.kernels.moments import ColumnFacts, column_facts, column_facts_in_passing
from xpulab.kernels.products import gram
from xpulab.kernels.project import project, projected
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import centred, stretched

__all__ = ["Moments", "Products", "may_be_precise", "moments", "products", "rough_mean"]

_SAMPLE = 32  # number of rows of a rank for a rough mean
_FAR = 16.0  # another pass is made if the subtracted mean is farther from the mean, in squared standard deviations,
_NEAR = 4.0  # unless it is nearer than so many roundings, as that of a constant column
_MOST_PASSES = 3


@dataclass(frozen=True)
class Moments:
    """Moments of the columns of all rows: float64 arrays of shape (n_features,). NaN is ignored.

    Attributes
    ----------
    count : numpy.ndarray
        Number of values that are not NaN.
    weight : numpy.ndarray
        Sum of the weights of these values.
    mean : numpy.ndarray
        Weighted mean.
    squares : numpy.ndarray
        Weighted sum of the squared differences from the mean.
    lengths : numpy.ndarray
        The root of this sum, also where the sum is too large or too small for float64.
    minimum, maximum : numpy.ndarray
        NaN for a column of NaN only.
    """

    count: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    lengths: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray


@dataclass(frozen=True)
class Products:
    """Weighted sums over all rows of products of columns and targets; all arrays are float64.

    Attributes
    ----------
    weight : float
        Sum of the weights; without weights, the number of rows.
    mean : numpy.ndarray of shape (n_features,)
        Weighted mean of the columns.
    gram : numpy.ndarray of shape (n_features, n_features)
        Gram matrix of the columns, minus their means if centred.
    target_mean : numpy.ndarray of shape (n_targets,)
        Weighted mean of the targets.
    cross : numpy.ndarray of shape (n_features, n_targets)
        Products of columns and targets.
    target_gram : numpy.ndarray of shape (n_targets, n_targets)
        Gram matrix of the targets; empty without targets.
    lost : bool
        Whether products have left the range of the dtype in which they were computed, so that the arrays are useless.
    """

    weight: float
    mean: np.ndarray
    gram: np.ndarray
    target_mean: np.ndarray
    cross: np.ndarray
    target_gram: np.ndarray
    lost: bool = False


def may_be_precise(task: Task, dtype: np.dtype[Any]) -> bool:
    """Return whether `products` of float32 rows can be summed in float64, which the devices of all ranks must have."""
    mine = dtype == np.float32 and task.device.has_float64
    return bool(task.comm.allreduce(np.array([mine], np.int64), np.minimum)[0])


def rough_mean(task: Task, rows: Rows) -> np.ndarray:
    """Return an approximate mean (n_features,) in the dtype of the rows, from a few evenly spaced rows per rank."""
    return _mean_of(task, take(rows, _places(rows.n_samples)))


def _places(n: int) -> np.ndarray:
    """Return the indices of a few evenly spaced rows of n."""
    return np.linspace(0, n - 1, min(_SAMPLE, n), dtype=np.int64)


def _mean_of(task: Task, picked: np.ndarray) -> np.ndarray:
    """Return the mean of the rows that all ranks have picked; 0 for a column without a finite mean."""
    some = picked.astype(np.float64)
    known = ~np.isnan(some)
    facts = task.comm.allreduce(np.stack([np.where(known, some, 0.0).sum(axis=0), known.sum(axis=0)]))
    mean = np.divide(facts[0], facts[1], out=np.zeros(some.shape[1]), where=facts[1] > 0)
    return np.where(np.isfinite(mean), mean, 0.0).astype(picked.dtype)


def moments(task: Task, rows: Rows) -> Moments:
    """Compute moments of the columns in one pass minus a rough mean [1]_, or in two if that is far from the mean."""
    shift = rough_mean(task, rows)
    found = _moments_about(task, rows, shift)
    if _far(found, shift):
        # A column of NaN only has no mean.
        shift = np.where(np.isfinite(found.mean), found.mean, shift).astype(rows.dtype)
        found = _moments_about(task, rows, shift)
    if _lost(found, rows.dtype):
        found = _moments_of_scaled(task, rows, shift, found)
    return found


def _moments_in_passing(task: Task, data: Data) -> Moments | None:
    """Compute moments of rows that need not stay on the device.

    Returns
    -------
    Moments or None
        None if the rows are on the device, if they need another pass, or if there may be NaN or infinity.
    """
    shape = data.n_own, data.n_features
    shift = _mean_of(task, data.some(_places(data.n_own)))
    with data.passing() as fill:
        if fill is None:
            return None
        task.show(rows=data.n_own, doing="computing")
        task.check()
        facts = column_facts_in_passing(task.device, shape, data.dtype, fill, shift, data.sample_weight)
    if not all(task.comm.allgather(facts is not None)):
        return None
    assert facts is not None
    found = _reduced(task, facts, shift)
    return None if _far(found, shift) or _lost(found, data.dtype) else found


def _far(found: Moments, shift: np.ndarray) -> bool:
    """Return whether the shift is too far from the mean. For a constant column at the shift both sides are 0."""
    with np.errstate(over="ignore"):
        return bool((np.square(found.mean - shift) * found.weight > _FAR * found.squares).any())


def _lost(found: Moments, dtype: np.dtype[Any]) -> bool:
    """Return whether the squares of a column have left the range of their dtype."""
    limits = np.finfo(dtype)
    lost = ~(found.squares > found.weight * (limits.tiny / limits.eps)) | np.isinf(found.squares)
    return bool((lost & (found.minimum < found.maximum)).any())


def _moments_of_scaled(task: Task, rows: Rows, shift: np.ndarray, found: Moments) -> Moments:
    """Compute moments of columns whose squares leave the range of their dtype, from columns scaled by powers of 2."""
    middle = shift.astype(np.float64)
    reach = np.maximum(np.abs(found.minimum - middle), np.abs(found.maximum - middle))
    known = np.isfinite(reach) & (reach > 0)
    scale = np.exp2(np.ceil(np.log2(reach, out=np.zeros_like(reach), where=known)))
    scaled = _moments_about(task, centred(rows, shift, scale), np.zeros(rows.n_features, rows.dtype))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = scaled.squares * scale * scale
    return replace(found, mean=middle + scaled.mean * scale, squares=squares, lengths=scaled.lengths * scale)


def _moments_about(task: Task, rows: Rows, shift: np.ndarray) -> Moments:
    task.check()
    return _reduced(task, column_facts(rows, shift), shift)


def _reduced(task: Task, facts: ColumnFacts, shift: np.ndarray) -> Moments:
    """Compute the moments of the rows of all ranks from each rank's facts about its columns minus the shift."""
    count, weight, total, squares = task.comm.allreduce(
        np.stack([facts.count, facts.weight, facts.total, facts.squares]).astype(np.float64)
    )
    low, high = task.comm.allreduce(np.stack([facts.minimum, -facts.maximum]).astype(np.float64), np.minimum)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        away = np.where(weight > 0, total / weight, np.nan)
        about = np.where(weight > 0, np.maximum(squares - total * away, 0.0), np.nan)
    none = count == 0
    return Moments(
        count=count,
        weight=weight,
        mean=shift.astype(np.float64) + away,
        squares=about,
        lengths=np.sqrt(about),
        minimum=np.where(none, np.nan, low),
        maximum=np.where(none, np.nan, -high),
    )


def products(task: Task, data: Data, centre: bool, precise: bool = False) -> Products:
    """Compute products of the columns with each other and with the targets. With `precise` all sums are float64.

    With `centre`, a rough mean is subtracted before the multiplication, and the sums are then corrected by its
    difference from the mean [1]_. If the rough mean is far from the mean, a second pass subtracts the mean. If rows
    without weight are far from the others, that mean may still be far from the mean, and a third pass is made.
    """
    weights = data.sample_weight
    mine = data.n_own if weights is None else weights.astype(data.dtype).sum(dtype=np.float64)
    weight = float(task.comm.allreduce(np.array([mine], np.float64))[0])
    some = data.some(_places(data.n_own))
    if data.targets is not None:
        some = np.hstack([some, take(data.targets, _places(data.n_own))])
    middle, sizes = np.split(_mean_of(task, np.hstack([some, np.abs(some)])), 2)
    if not centre:
        return _products_about(task, data, weight, np.zeros_like(middle), sizes, False, precise)
    found = _products_about(task, data, weight, middle, sizes, True, precise)
    for _ in range(_MOST_PASSES - 1):
        mean = np.concatenate([found.mean, found.target_mean])
        spread = np.concatenate([np.diag(found.gram), np.diag(found.target_gram)])
        away = np.abs(mean - middle)
        far = (weight * np.square(away) > _FAR * spread) & (away > _NEAR * np.finfo(data.dtype).eps * np.abs(mean))
        if found.lost or not far.any():
            break
        middle = mean
        found = _products_about(task, data, weight, middle, sizes, True, precise)
    return found


def _products_about(
    task: Task, data: Data, weight: float, shift: np.ndarray, sizes: np.ndarray, centre: bool, precise: bool
) -> Products:
    task.check()
    dtype = np.dtype(np.float64) if precise else data.dtype  # of the numbers that the kernel subtracts
    n, size = data.n_features, len(shift)
    local = np.zeros((size + 1, size))  # the sums of the columns come after the products
    for rows, targets in data.parts():
        found, totals = gram(rows, shift[:n], targets, shift[n:], precise)
        local[:size] += found
        local[size] += totals
    sums = task.comm.allreduce(local)
    data.require_finite(sums)
    middle, squares, total = shift.astype(dtype).astype(np.float64), sums[:size].diagonal(), sums[size]
    lost = _products_lost(squares, total, weight, middle, sizes, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        away = total / weight if centre and weight else np.zeros(size)
        whole, mean = sums[:size] - weight * np.outer(away, away), middle + away
        if centre:
            # What is left of a constant column is the rounding of its mean.
            constant = whole.diagonal() <= weight * np.square(np.finfo(np.float64).eps * mean)
            whole[constant] = whole[:, constant] = 0
    return Products(weight, mean[:n], whole[:n, :n], mean[n:], whole[:n, n:], whole[n:, n:], lost)


def _products_lost(
    squares: np.ndarray, totals: np.ndarray, weight: float, shift: np.ndarray, sizes: np.ndarray, dtype: np.dtype[Any]
) -> bool:
    """Return whether products of columns have left the range of the dtype.

    Squares and totals of zero are those of a constant column, unless its numbers, of which `sizes` are rough means of
    the magnitudes, are so small that they may differ by less than the root of the smallest number.
    """
    limits = np.finfo(dtype)
    least = limits.tiny / limits.eps
    small = (sizes > 0) & (np.abs(shift) * limits.eps < np.sqrt(least))
    varies = (squares != 0) | (totals != 0) | small
    fits = (squares > weight * least) & (squares < limits.max * limits.eps)
    return bool((varies & ~fits).any())


@task("moments")
def _moments(task: Task, source: dict[str, Any], weights: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `Moments` of the columns."""
    data = Data(task, source, weights)
    found = _moments_in_passing(task, data) or moments(task, data.rows)
    return {"rows": data.n_own, "moments": vars(found)}


@task("project")
def _project(
    task: Task,
    source: dict[str, Any],
    weights: None,
    matrix: np.ndarray,
    shift: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute ``(rows - shift) @ matrix + offset``, with a matrix of shape (n_features, n_columns)."""
    rows = data_of(task, source).rows
    if target is not None:  # a part at a time, so that the device need not have memory for the whole result
        write_block(task, target, source["bounds"], project(rows, matrix, shift, offset))
    else:
        give_rows(task, projected(rows, matrix, shift, offset), source["bounds"], kept=kept)
    return {"rows": rows.n_samples}


@task("scale")
def _scale(
    task: Task,
    source: dict[str, Any],
    weights: None,
    shift: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    factor: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    clip: tuple[float, float] | None = None,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute ``(rows - shift) / scale * factor + offset``, clipped to `clip`; steps that are None are left out."""
    rows = data_of(task, source).rows
    made = rows
    if shift is not None or scale is not None:
        made = centred(made, shift, scale)
    if factor is not None or offset is not None or clip is not None:
        by = np.ones(rows.n_features) if factor is None else factor
        constant = np.full(rows.n_features, -0.0) if offset is None else offset  # adding -0.0 does not change -0.0
        made = stretched(made, by, constant, *(clip or (None, None)))
    give_rows(task, made, source["bounds"], target, kept)
    return {"rows": rows.n_samples}
