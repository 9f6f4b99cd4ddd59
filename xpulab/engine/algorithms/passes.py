"""Passes over all rows that several estimators share: moments, products, projections and scaling.

Each pass reduces its result over the ranks, so that all ranks return the same, however the rows are cut. The estimators
do the algebra on these results.

References
----------
.. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
   recommendations", The American Statistician 37 (1983), 242-247: sums about a shift near the mean.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from xpulab.engine.dataset import (
    Data,
    PassedRows,
    data_of,
    give_rows,
    kind_of,
    rows_of,
    weights_of,
    write_block,
)
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.sparse_rows import SparseRows, stored_values
from xpulab.kernels.moments import ColumnFacts, column_facts, streamed_column_facts
from xpulab.kernels.norms import Norm, normalised
from xpulab.kernels.on_cpu.passing import products_in_passing
from xpulab.kernels.products import gram
from xpulab.kernels.project import project, projected
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows, are_few
from xpulab.kernels.scaling import binarised, centred, stretched
from xpulab.kernels.streamed import RowsInParts, StreamedRows, changed, near_rows, parts_of
from xpulab.sharing.answers import Moments, MomentsOfColumns, OwnRows, Products
from xpulab.sharing.sources import Handle, SharedArray, Source, Target

__all__ = ["any_data", "may_be_precise", "moments", "not_rounded_below_zero", "products", "rough_mean", "whole_rows"]

_SAMPLE = 32  # number of rows of a rank for a rough mean
_FAR = 16.0  # another pass is made if the subtracted mean is farther from the mean, in squared standard deviations,
_NEAR = 4.0  # unless it is nearer than so many roundings, as that of a constant column
_ROUNDING = 1e-3  # more than the rounding of a sum of squares in float32, as a share of it
_MOST_PASSES = 3


def may_be_precise(task: Task, dtype: np.dtype[Any]) -> bool:
    """Return whether `products` of float32 rows can be summed in float64, which the devices of all ranks must have."""
    mine = dtype == np.float32 and task.device.has_float64
    return bool(task.comm.allreduce(np.array([mine], np.int64), np.minimum)[0])


def rough_mean(task: Task, rows: Rows | RowsInParts) -> np.ndarray:
    """Return an approximate mean (n_features,) in the dtype of the rows, from a few evenly spaced rows per rank."""
    if isinstance(rows, StreamedRows):
        return _mean_of(task, rows.take(_places(near_rows(rows))))
    _, first = next(parts_of(rows))
    return _mean_of(task, take(first, _places(first.n_samples)))


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


def any_data(
    task: Task, source: Source, weights: SharedArray | Source | None, targets: Source
) -> tuple[Rows | SparseRows, Rows]:
    """Return dense or sparse rows with their weights, and their targets, on this rank's device.

    Raises
    ------
    HandleError
        If the rows of a handle were freed.
    """
    rows, of_rows = whole_rows(task, source, weights_of(task, weights, source.bounds)), rows_of(task, targets)
    assert isinstance(of_rows, Rows)
    return rows, of_rows


def whole_rows(task: Task, source: Source, sample_weight: np.ndarray | None = None) -> Rows | SparseRows:
    """Return this rank's block of dense or sparse rows, all of them on its device; see `rows_of`."""
    rows = rows_of(task, source, sample_weight)
    assert isinstance(rows, Rows | SparseRows)
    return rows


def moments(task: Task, rows: Rows | RowsInParts) -> Moments:
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
    shift = _mean_of(task, data.rows_at(_places(data.n_own)))
    with data.stream() as fill:
        if fill is None:
            return None
        task.show(rows=data.n_own, doing="computing")
        task.check()
        facts = streamed_column_facts(task.device, shape, data.dtype, fill, shift, data.sample_weight)
    if not all(task.comm.allgather(facts is not None)):
        return None
    assert facts is not None
    found = _reduced(task, facts, shift)
    return None if _far(found, shift) or _lost(found, data.dtype) else found


def not_rounded_below_zero(differences: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return sums of squared differences from a mean, 0 in place of what is below it by rounding.

    `squares` are the sums of the squares of which they are a part. Weights may be negative, and then the sums, too.
    """
    rounded = (differences < 0) & (squares > 0) & (-differences < _ROUNDING * squares)
    return np.where(rounded, 0.0, differences)


def _far(found: Moments, shift: np.ndarray) -> bool:
    """Return whether the shift is too far from the mean. For a constant column at the shift both sides are 0."""
    with np.errstate(over="ignore"):
        return bool((np.square(found.mean - shift) * np.abs(found.weight) > _FAR * np.abs(found.squares)).any())


def _lost(found: Moments, dtype: np.dtype[Any]) -> bool:
    """Return whether the squares of a column have left the range of their dtype."""
    limits = np.finfo(dtype)
    least = np.abs(found.weight) * (limits.tiny / limits.eps)
    lost = ~(np.abs(found.squares) > least) | np.isinf(found.squares)
    return bool((lost & (found.minimum < found.maximum)).any())


def _moments_of_scaled(task: Task, rows: Rows | RowsInParts, shift: np.ndarray, found: Moments) -> Moments:
    """Compute moments of columns whose squares leave the range of their dtype, from columns scaled by powers of 2."""
    middle = shift.astype(np.float64)
    reach = np.maximum(np.abs(found.minimum - middle), np.abs(found.maximum - middle))
    known = np.isfinite(reach) & (reach > 0)
    scale = np.exp2(np.ceil(np.log2(reach, out=np.zeros_like(reach), where=known)))
    scaled_rows = changed(rows, lambda _, part: centred(part, shift, scale))
    scaled = _moments_about(task, scaled_rows, np.zeros(rows.n_features, rows.dtype))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = scaled.squares * scale * scale
    return replace(found, mean=middle + scaled.mean * scale, squares=squares, lengths=scaled.lengths * scale)


def _moments_about(task: Task, rows: Rows | RowsInParts, shift: np.ndarray) -> Moments:
    task.check()
    facts = functools.reduce(ColumnFacts.together, (column_facts(part, shift) for _, part in parts_of(rows)))
    return _reduced(task, facts, shift)


def _reduced(task: Task, facts: ColumnFacts, shift: np.ndarray) -> Moments:
    """Compute the moments of the rows of all ranks from each rank's facts about its columns minus the shift."""
    count, weight, total, squares = task.comm.allreduce(
        np.stack([facts.count, facts.weight, facts.total, facts.squares]).astype(np.float64)
    )
    low, high = task.comm.allreduce(np.stack([facts.minimum, -facts.maximum]).astype(np.float64), np.minimum)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        away = total / weight
        about = np.where(weight != 0, not_rounded_below_zero(squares - total * away, squares), np.nan)
    none = count == 0
    return Moments(
        count=count,
        weight=weight,
        mean=shift.astype(np.float64) + away,
        squares=about,
        lengths=np.sqrt(np.maximum(about, 0.0)),
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
    places = _places(data.near())
    some = data.rows_at(places)
    if data.targets is not None:
        some = np.hstack([some, take(data.targets, places)])
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
    for found, totals in _own_products(task, data, shift[:n], shift[n:], precise):
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


def _own_products(
    task: Task, data: Data, shift: np.ndarray, target_shift: np.ndarray, precise: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield products and totals of this rank's rows and targets minus a shift, some rows at a time.

    On a CPU, rows in C order that are not on the device are added up as they are read, unless they are few.
    """
    device, targets, shape = task.device, data.targets, (data.n_own, data.n_features)
    many = data.n_own > 0 and not are_few(*shape, len(shift) + len(target_shift))
    in_passing = device.is_cpu and device.shares_memory and not data.by_columns and data.streamed is None
    if many and in_passing and not (precise and data.dtype == np.float32):
        with data.stream() as fill:
            if fill is not None:
                task.show(rows=data.n_own, doing="computing")
                yield products_in_passing(
                    device, shape, data.dtype, fill, shift, targets, target_shift, data.sample_weight
                )
                return
    for rows, of_rows in data.parts():
        yield gram(rows, shift, of_rows, target_shift, precise)


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


def _moments_of_sparse(task: Task, rows: SparseRows) -> Moments:
    """Compute moments of the columns of sparse rows, in two passes over the values that are stored."""
    d = rows.n_features
    least, most = np.full(d, np.inf), np.full(d, -np.inf)
    stored, missing, weight, lost, total = sums = np.zeros((5, d))
    with task.device.computing():
        for columns, values, weights in stored_values(rows):
            nan = np.isnan(values)
            numbers = np.where(nan, 0, values)
            stored += np.bincount(columns, minlength=d)
            missing += np.bincount(columns, nan, minlength=d)
            weight += np.bincount(columns, np.where(nan, 0, weights), minlength=d)
            lost += np.bincount(columns, np.where(nan, weights, 0), minlength=d)
            total += np.bincount(columns, weights * numbers, minlength=d)
            np.fmin.at(least, columns, values)
            np.fmax.at(most, columns, values)
    stored, missing, weight, lost, total = task.comm.allreduce(sums)
    n_samples, every = task.comm.allreduce(np.array([rows.n_samples, rows.weights_on_cpu().sum()]))
    least, most = -task.comm.allreduce(-least, np.maximum), task.comm.allreduce(most, np.maximum)
    zeros = stored < n_samples
    least, most = np.where(zeros, np.minimum(least, 0), least), np.where(zeros, np.maximum(most, 0), most)
    nothing = missing == n_samples
    known = np.where(zeros, every - lost, weight)  # without rounding where nothing is left for zeros
    mean = np.divide(total, known, out=np.full(d, np.nan), where=known != 0)
    squares = np.zeros(d)
    with task.device.computing():
        for columns, values, weights in stored_values(rows):
            from_mean = np.square(values - mean[columns])
            squares += np.bincount(columns, np.where(np.isnan(values), 0, weights * from_mean), minlength=d)
    squares = task.comm.allreduce(squares) + (known - weight) * np.square(mean)
    return Moments(
        count=n_samples - missing,
        weight=known,
        mean=mean,
        squares=squares,
        lengths=np.sqrt(np.maximum(squares, 0.0)),
        minimum=np.where(nothing, np.nan, least),
        maximum=np.where(nothing, np.nan, most),
    )


@task("moments")
def _moments(task: Task, source: Source, weights: SharedArray | PassedRows | None) -> MomentsOfColumns:
    """Return the `Moments` of the columns."""
    if kind_of(task, source)[0] is sparse:
        rows = rows_of(task, source, weights_of(task, weights, source.bounds))
        assert isinstance(rows, SparseRows)
        return {"rows": rows.n_samples, "moments": _moments_of_sparse(task, rows)}
    data = Data(task, source, weights)
    found = None if data.in_passes else _moments_in_passing(task, data)
    if found is None:
        found = moments(task, data.block)
        data.require_finite()
    return {"rows": data.n_own, "moments": found}


@task("project")
def _project(
    task: Task,
    source: Source,
    weights: None,
    matrix: np.ndarray,
    shift: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Compute ``(rows - shift) @ matrix + offset``, with a matrix of shape (n_features, n_columns)."""
    rows = whole_rows(task, source)
    if target is not None:  # a part at a time, so that the device need not have memory for the whole result
        write_block(task, target, source.bounds, project(rows, matrix, shift, offset))
    elif isinstance(rows, SparseRows):
        parts = [np.empty((0, matrix.shape[1]), rows.dtype), *project(rows, matrix, shift, offset)]
        give_rows(task, Rows.upload(task.device, np.concatenate(parts)), source.bounds, kept=kept)
    else:
        give_rows(task, projected(rows, matrix, shift, offset), source.bounds, kept=kept)
    return {"rows": rows.n_samples}


def _lost_by_rounding(shift: np.ndarray | None, scale: np.ndarray | None, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Return what scaled rows lack because the shift is rounded to their dtype; None if their own rounding is more."""
    if shift is None:
        return None
    lost = shift.astype(dtype).astype(np.float64) - shift
    if scale is not None:
        lost = lost / scale
    return lost if bool((np.abs(lost) > np.finfo(dtype).eps).any()) else None


@task("scale")
def _scale(
    task: Task,
    source: Source,
    weights: None,
    shift: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    factor: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    clip: tuple[float, float] | None = None,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Compute ``(rows - shift) / scale * factor + offset``, clipped to `clip`; steps that are None are left out."""
    rows = data_of(task, source).rows
    made = rows
    if shift is not None or scale is not None:
        made = centred(made, shift, scale)
        lost = _lost_by_rounding(shift, scale, rows.dtype)
        if lost is not None:
            made = stretched(made, np.ones(rows.n_features), lost, None, None)
    if factor is not None or offset is not None or clip is not None:
        by = np.ones(rows.n_features) if factor is None else factor
        constant = np.full(rows.n_features, -0.0) if offset is None else offset  # adding -0.0 does not change -0.0
        made = stretched(made, by, constant, *(clip or (None, None)))
    give_rows(task, made, source.bounds, target, kept)
    return {"rows": rows.n_samples}


@task("normalise")
def _normalise(
    task: Task,
    source: Source,
    weights: None,
    norm: Norm,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Divide each row by its norm."""
    rows = data_of(task, source).rows
    give_rows(task, normalised(rows, norm), source.bounds, target, kept)
    return {"rows": rows.n_samples}


@task("binarise")
def _binarise(
    task: Task,
    source: Source,
    weights: None,
    threshold: float,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Compare each number with the threshold."""
    rows = data_of(task, source).rows
    give_rows(task, binarised(rows, threshold), source.bounds, target, kept)
    return {"rows": rows.n_samples}
