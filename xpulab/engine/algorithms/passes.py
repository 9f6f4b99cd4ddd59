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
from xpulab.kernels.products import cross, gram
from xpulab.kernels.project import project, projected
from xpulab.kernels.rows import Rows, take
from xpulab.kernels.scaling import centred, host_pieces, stretched

__all__ = ["Moments", "Products", "moments", "products", "rough_mean"]

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
        better = np.where(np.isfinite(found.mean), found.mean, shift)
        found = _moments_about(task, rows, better.astype(rows.dtype))
    return found


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


def products(task: Task, data: Data, centre: bool) -> Products:
    """Products of the columns with one another, and with the targets.

    With `centre` the means come first, by a pass of their own, and are subtracted before anything is multiplied; what
    their rounding to the dtype of the rows leaves is made up for.
    """
    rows, targets = data.rows, data.targets
    if centre:
        first = moments(task, rows)
        weight, mean = float(first.weight[0]), first.mean
        target_mean = moments(task, _weighted_like(targets, rows)).mean if targets is not None else np.empty(0)
    else:
        mine = rows.n_samples if rows.sample_weight is None else _weight_sum(rows)
        weight = float(task.comm.allreduce(np.array([mine], np.float64))[0])
        mean = np.zeros(rows.n_features)
        target_mean = np.zeros(0 if targets is None else targets.n_features)
    shift, target_shift = mean.astype(rows.dtype), target_mean.astype(rows.dtype)
    task.check()
    n, t = rows.n_features, len(target_mean)
    sums = np.zeros((n + t, n + t))
    sums[:n, :n] = gram(rows, shift)
    if targets is not None:
        aligned = _weighted_like(targets, rows)
        sums[:n, n:] = cross(rows, targets, shift, target_shift)
        sums[n:, n:] = gram(aligned, target_shift)
    sums = task.comm.allreduce(sums)
    away, target_away = mean - shift, target_mean - target_shift
    return Products(
        weight=weight,
        mean=mean,
        gram=sums[:n, :n] - weight * np.outer(away, away),
        target_mean=target_mean,
        cross=sums[:n, n:] - weight * np.outer(away, target_away),
        target_gram=sums[n:, n:] - weight * np.outer(target_away, target_away),
    )


def _weighted_like(targets: Rows, rows: Rows) -> Rows:
    """The targets with the weights of the rows."""
    return replace(targets, sample_weight=rows.sample_weight)


def _weight_sum(rows: Rows) -> float:
    assert rows.sample_weight is not None
    return float(rows.device.fetch(rows.sample_weight).sum(dtype=np.float64))


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
    """`Products` of the columns."""
    data = data_of(task, source, weights, targets)
    return {"rows": data.rows.n_samples, "products": vars(products(task, data, centre))}


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
    if kept is not None:
        give_rows(task, projected(rows, matrix, shift, offset), source["bounds"], kept=kept)
    else:
        write_block(task, _required(target), source["bounds"], project(rows, matrix, shift, offset))
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
    if kept is not None:
        give_rows(task, made, source["bounds"], kept=kept)
    else:
        write_block(task, _required(target), source["bounds"], host_pieces(made))
    return {"rows": rows.n_samples}


def _required(target: dict[str, Any] | None) -> dict[str, Any]:
    assert target is not None
    return target
