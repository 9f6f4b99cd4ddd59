"""Means of classes, and the scatter of rows about them, from the products of columns and classes over all ranks.

A column for each class, of ones and zeros, is a target of the rows. The products of the centred columns and targets are
the differences of the means of the classes from that of all rows, times the weights of the classes. What the products
of the columns have beside these means is the scatter within the classes. Where the products are not exact enough, the
triangle of a QR decomposition of the rows takes their place, from which the classes are taken out by another one.

References
----------
.. [1] T. Hastie, R. Tibshirani, J. Friedman, "The Elements of Statistical Learning", 2nd edition, Springer 2009,
   section 4.3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.linear.folds import fold_sums
from xpulab.engine.algorithms.linear.of_classes import data_of_classes
from xpulab.engine.algorithms.passes import may_be_precise, not_rounded_below_zero, products, rough_mean
from xpulab.engine.algorithms.qr import products_of, triangle_of
from xpulab.engine.dataset import Data, PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.mixture import Densities, expectations
from xpulab.sharing.answers import Products
from xpulab.sharing.linear_models import OfClasses, Scatter, ScatterOfClasses, ScatterOfEach, ScattersOfClasses
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["lengths_of_each", "scatter_of", "scatter_of_each"]


def scatter_of(task: Task, data: Data, exact: bool) -> Scatter:
    """Return the scatter of rows whose targets are a column of ones and zeros for each class.

    Parameters
    ----------
    task : Task
    data : Data
    exact : bool
        Whether to use the triangle in any case.
    """
    n = data.n_features
    precise = may_be_precise(task, data.dtype)
    if not exact and (precise or data.dtype == np.float64) and data.n_samples > n:
        found = products(task, data, True, precise)
        if not found.lost:
            weights, means = _means(found)
            away = found.cross / np.sqrt(weights)
            return Scatter(found.weight, means, found.gram - away @ away.T, found.gram, False)
    whole = triangle_of(task, data, True)
    _, means = _means(products_of(whole))
    # First come the columns of all classes but one, which say the other, and then those of the rows.
    columns = np.hstack([whole.r[:, n + 1 :], whole.r[:, :n]])
    others = len(means) - 1
    triangle = np.asarray(np.linalg.qr(columns, mode="r"))
    within = triangle[others:, others:]
    return Scatter(whole.weight, means, within, whole.r[:, :n], True)


def _means(found: Products) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (n_classes,) and the means (n_classes, n_features) of the classes."""
    weights = found.weight * found.target_mean
    return weights, found.mean + (found.cross / weights).T


def scatter_of_each(task: Task, data: Data, codes: np.ndarray, n_classes: int, whole: bool = False) -> ScatterOfEach:
    """Return the scatter of the rows of each class about their own mean; `codes` are this rank's numbers of classes.

    Products of float32 rows are added up in float64. With `whole`, all rows are one more class.
    """
    n = data.n_features
    shift = np.append(rough_mean(task, data.block), 0.0)
    sums = fold_sums(task, data, codes, n_classes, shift, data.dtype == np.float32)
    data.require_finite(sums["products"])
    counts, totals = sums["count"], sums["total"][:, :n]
    away = totals / counts[:, None]
    within = sums["products"][:, :n, :n] - totals[:, :, None] * away[:, None, :]
    if whole:
        middle = counts @ away / counts.sum()
        between = (away - middle) * np.sqrt(counts)[:, None]
        within = np.concatenate([within, [within.sum(axis=0) + between.T @ between]])
        counts, away = np.append(counts, counts.sum()), np.vstack([away, middle])
    return ScatterOfEach(counts, sums["shift"][:n] + away, within)


def lengths_of_each(task: Task, data: Data, codes: np.ndarray, n_classes: int, found: ScatterOfEach) -> ScatterOfEach:
    """Return what `scatter_of_each` has found, and beside it, from another pass, the scales and lengths of each class.

    Columns whose variance is not above its rounding are constant, as in scikit-learn's `StandardScaler`.
    """
    counts, means = found.counts[:, None], found.means
    squares = np.einsum("kii->ki", found.within)
    variances = not_rounded_below_zero(squares, squares + counts * np.square(means)) / counts
    eps = counts * np.finfo(np.float64).eps
    scales = np.where(variances <= eps * variances + np.square(eps * means), 1.0, np.sqrt(variances))
    # The logarithm of the density of a class whose factors are these is minus half of a row's squared length.
    classes = [Densities(np.zeros(1), *each) for each in zip(means[:, None], 1 / scales[:, None], strict=True)]
    lengths, first = np.zeros(len(classes)), 0
    task.check()
    for rows, _ in data.parts():
        mine = codes[first : first + rows.n_samples]
        for number, densities in enumerate(classes):
            chosen = slice(None) if number == n_classes else mine == number
            own = np.concatenate([part[:, 1] for part in expectations(rows, densities)] or [np.empty(0)])[chosen]
            lengths[number] += 4 * np.square(own, dtype=np.float64).sum()
        first += rows.n_samples
    return replace(found, scales=scales, lengths=task.comm.allreduce(lengths))


@task("discriminant.scatter")
def _scatter(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    of_classes: OfClasses,
    exact: bool,
) -> ScatterOfClasses:
    """Return the `Scatter` of the rows of all ranks, from rank 0."""
    data = data_of_classes(task, source, weights, targets, of_classes)
    found = scatter_of(task, data, exact)
    answer: ScatterOfClasses = {"rows": data.n_own}
    return answer | {"scatter": found} if task.comm.rank == 0 else answer


@task("discriminant.each")
def _each(
    task: Task,
    source: Source,
    weights: None,
    targets: Source,
    known: np.ndarray | None,
    n_classes: int,
    lengths: bool,
    whole: bool,
) -> ScattersOfClasses:
    """Return the `ScatterOfEach` of the rows of all ranks, from rank 0, with `lengths` if these are asked for."""
    data = Data(task, source, None, targets)
    assert data.targets is not None
    if lengths and not data.in_passes:
        data.rows  # noqa: B018 - they are read once for both passes
    codes = codes_of(data.targets, known).astype(np.intp)
    found = scatter_of_each(task, data, codes, n_classes, whole)
    if lengths:
        found = lengths_of_each(task, data, codes, n_classes, found)
    answer: ScattersOfClasses = {"rows": data.n_own}
    return answer | {"scatters": found} if task.comm.rank == 0 else answer
