"""Passes over all rows that several estimators share: moments, products, and rows made from rows.

Each reduces over the ranks, so that all of them return the same, whatever the cut of the rows. The algebra on what they
return is done by the estimators.

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
from xpulab.kernels.moments import column_facts
from xpulab.kernels.products import gram
from xpulab.kernels.project import project, projected
from xpulab.kernels.rows import Rows, take
from xpulab.kernels.scaling import centred, stretched

__all__ = ["Moments", "Products", "may_be_precise", "moments", "products", "rough_mean"]

_SAMPLE = 32  # rows of a rank that a rough mean is of
_FAR = 16.0  # squared standard deviations between the rough mean and the mean, from which on a second pass is made


@dataclass(frozen=True)
class Moments:
    """What is known of the columns of all rows; arrays of float64 of shape (n_features,), NaN left out.

    Attributes
    ----------
    count : numpy.ndarray
        Values that are not NaN.
    weight : numpy.ndarray
        Their weights' sum.
    mean : numpy.ndarray
    squares : numpy.ndarray
        Weighted sum of the squared differences from the mean.
    minimum, maximum : numpy.ndarray
        NaN where all values are.
    """

    count: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray


@dataclass(frozen=True)
class Products:
    """Weighted sums of products of columns, of all rows; float64.

    Attributes
    ----------
    weight : float
        Sum of the weights; the number of rows without any.
    mean : numpy.ndarray of shape (n_features,)
        Weighted mean of the columns.
    gram : numpy.ndarray of shape (n_features, n_features)
        Of the columns less their means if centred.
    target_mean : numpy.ndarray of shape (n_targets,)
    cross : numpy.ndarray of shape (n_features, n_targets)
    target_gram : numpy.ndarray of shape (n_targets, n_targets)
        Empty where there are no targets.
    """

    weight: float
    mean: np.ndarray
    gram: np.ndarray
    target_mean: np.ndarray
    cross: np.ndarray
    target_gram: np.ndarray


def may_be_precise(task: Task, rows: Rows) -> bool:
    """Whether `products` can be summed in float64 of rows of float32: the devices of all ranks have to have it."""
    mine = rows.dtype == np.float32 and task.device.has_float64
    return bool(task.comm.allreduce(np.array([mine], np.int64), np.minimum)[0])


def rough_mean(task: Task, rows: Rows) -> np.ndarray:
    """About the mean of all rows, from a few of each rank, evenly spaced: (n_features,), in the dtype of the rows."""
    picked = np.linspace(0, rows.n_samples - 1, min(_SAMPLE, rows.n_samples), dtype=np.int64)
    some = take(rows, picked).astype(np.float64)
    known = ~np.isnan(some)
    facts = task.comm.allreduce(np.stack([np.where(known, some, 0.0).sum(axis=0), known.sum(axis=0)]))
    mean = np.divide(facts[0], facts[1], out=np.zeros(rows.n_features), where=facts[1] > 0)
    return np.where(np.isfinite(mean), mean, 0.0).astype(rows.dtype)


def moments(task: Task, rows: Rows) -> Moments:
    """Moments of the columns, by one pass about a rough mean [1]_; by a second one where that was far off."""
    shift = rough_mean(task, rows)
    found = _moments_about(task, rows, shift)
    away = np.square(found.mean - shift) * found.weight
    if (away > _FAR * found.squares).any():
        # Where the columns are constant both are 0, and nothing is far. A column of NaN alone has no mean.
        shift = np.where(np.isfinite(found.mean), found.mean, shift).astype(rows.dtype)
        found = _moments_about(task, rows, shift)
    limits = np.finfo(rows.dtype)
    lost = ~(found.squares > found.weight * (limits.tiny / limits.eps)) | np.isinf(found.squares)
    if (lost & (found.minimum < found.maximum)).any():
        found = _moments_of_scaled(task, rows, shift, found)
    return found


def _moments_of_scaled(task: Task, rows: Rows, shift: np.ndarray, found: Moments) -> Moments:
    """Moments of columns whose squares their dtype does not hold: of the columns divided by powers of two."""
    middle = shift.astype(np.float64)
    reach = np.maximum(np.abs(found.minimum - middle), np.abs(found.maximum - middle))
    known = np.isfinite(reach) & (reach > 0)
    scale = np.exp2(np.ceil(np.log2(reach, out=np.zeros_like(reach), where=known)))
    scaled = _moments_about(task, centred(rows, shift, scale), np.zeros(rows.n_features, rows.dtype))
    return replace(found, mean=middle + scaled.mean * scale, squares=scaled.squares * np.square(scale))


def _moments_about(task: Task, rows: Rows, shift: np.ndarray) -> Moments:
    task.check()
    facts = column_facts(rows, shift)
    count, weight, total, squares = task.comm.allreduce(
        np.stack([facts.count, facts.weight, facts.total, facts.squares]).astype(np.float64)
    )
    low, high = task.comm.allreduce(np.stack([facts.minimum, -facts.maximum]).astype(np.float64), np.minimum)
    with np.errstate(divide="ignore", invalid="ignore"):
        away = np.where(weight > 0, total / weight, np.nan)
    none = count == 0
    return Moments(
        count=count,
        weight=weight,
        mean=shift.astype(np.float64) + away,
        squares=np.where(weight > 0, np.maximum(squares - total * away, 0.0), np.nan),
        minimum=np.where(none, np.nan, low),
        maximum=np.where(none, np.nan, -high),
    )


def products(task: Task, data: Data, centre: bool, precise: bool = False) -> Products:
    """Products of the columns with one another, and with the targets; with `precise` all of it in float64.

    With `centre` a rough mean is subtracted before anything is multiplied, and what is left of the mean is taken out of
    the sums [1]_; if the rough mean was far off, a second pass is made with the mean.
    """
    rows, targets = data.rows, data.targets
    mine = rows.n_samples if rows.sample_weight is None else rows.host_weights().sum()
    weight = float(task.comm.allreduce(np.array([mine], np.float64))[0])
    if not centre:
        return _products_about(task, data, weight, None, None, False, precise)
    target_shift = None if targets is None else rough_mean(task, targets)
    shift = rough_mean(task, rows)
    found = _products_about(task, data, weight, shift, target_shift, True, precise)
    away = np.square(np.concatenate([found.mean - shift, found.target_mean - (0 if targets is None else target_shift)]))
    spread = np.concatenate([np.diag(found.gram), np.diag(found.target_gram)])
    if (weight * away > _FAR * spread).any():
        shift, target_shift = found.mean, None if targets is None else found.target_mean
        found = _products_about(task, data, weight, shift, target_shift, True, precise)
    return found


def _products_about(
    task: Task,
    data: Data,
    weight: float,
    shift: np.ndarray | None,
    target_shift: np.ndarray | None,
    centre: bool,
    precise: bool,
) -> Products:
    task.check()
    rows, targets = data.rows, data.targets
    dtype = np.float64 if precise else rows.dtype  # of what the kernel subtracts
    n = rows.n_features
    size = n + (0 if targets is None else targets.n_features)
    local, totals = gram(rows, shift, targets, target_shift, precise)
    sums = task.comm.allreduce(np.vstack([local, totals]))
    middle = np.zeros(size)
    if shift is not None:
        middle[:n] = shift.astype(dtype)
    if targets is not None and target_shift is not None:
        middle[n:] = target_shift.astype(dtype)
    away = sums[size] / weight if centre and weight else np.zeros(size)
    whole, mean = sums[:size] - weight * np.outer(away, away), middle + away
    return Products(weight, mean[:n], whole[:n, :n], mean[n:], whole[:n, n:], whole[n:, n:])


@task("moments")
def _moments(task: Task, source: dict[str, Any], weights: dict[str, Any] | None) -> dict[str, Any]:
    """`Moments` of the columns."""
    data = data_of(task, source, weights)
    return {"rows": data.rows.n_samples, "moments": vars(moments(task, data.rows))}


@task("products")
def _products(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    centre: bool,
    targets: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """`Products` of the columns, from rank 0."""
    data = data_of(task, source, weights, targets)
    found = products(task, data, centre)
    return {"rows": data.rows.n_samples, **({"products": vars(found)} if task.comm.rank == 0 else {})}


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
    """The rows less a shift, times a matrix (n_features, n_columns), plus an offset."""
    rows = data_of(task, source).rows
    if target is not None:  # some at a time, so that the device need not hold them
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
    """The rows less `shift`, divided by `scale`, then times `factor`, plus `offset`, within `clip`; None for not."""
    rows = data_of(task, source).rows
    made = rows
    if shift is not None or scale is not None:
        made = centred(made, shift, scale)
    if factor is not None or offset is not None or clip is not None:
        by = np.ones(rows.n_features) if factor is None else factor
        constant = np.full(rows.n_features, -0.0) if offset is None else offset  # which leaves -0.0 as it is
        made = stretched(made, by, constant, *(clip or (None, None)))
    give_rows(task, made, source["bounds"], target, kept)
    return {"rows": rows.n_samples}
