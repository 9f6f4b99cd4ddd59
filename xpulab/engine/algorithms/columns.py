"""Facts about columns for imputers and encoders, and new columns of each row, which the host computes in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.algorithms.passes import moments
from xpulab.engine.algorithms.quantiles import neighbours
from xpulab.engine.dataset import data_of, give_computed, on_host, pieces
from xpulab.engine.engine import Task, task
from xpulab.kernels.moments import column_facts
from xpulab.kernels.row_passes import consecutive
from xpulab.kernels.rows import Rows

__all__ = ["distinct", "where_missing"]


def where_missing(rows: np.ndarray, missing: float) -> np.ndarray:
    """Return where an array has the number that stands for a missing value, which may be NaN."""
    found: np.ndarray = np.isnan(rows) if np.isnan(missing) else rows == missing
    return found


def _marked(rows: Rows, missing: float) -> Rows:
    """Return the rows with NaN for each missing value."""
    if np.isnan(missing):
        return rows
    host = on_host(rows, rows.dtype)
    host[where_missing(host, missing)] = np.nan
    return Rows.upload(rows.device, host)


def distinct(task: Task, rows: Rows) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each column, the distinct numbers of all ranks in ascending order, NaN last, and how often each occurs.

    All ranks get the distinct numbers of all ranks; columns with many need as much memory.
    """
    found = [(np.empty(0, rows.dtype), np.empty(0, np.int64))] * rows.n_features
    for first, last in pieces(rows.n_samples, rows.n_features * rows.dtype.itemsize):
        some = consecutive(rows, first, last)
        for column, (values, counts) in enumerate(found):
            new, often = np.unique(some[:, column], return_counts=True)
            found[column] = _together(np.append(values, new), np.append(counts, often))
    for column, own in enumerate(found):
        task.check()
        every = task.comm.allgather(own)
        found[column] = _together(*(np.concatenate(each) for each in zip(*every, strict=True)))
    return found


def _together(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, places = np.unique(values, return_inverse=True)
    return found, np.bincount(places, counts, len(found)).astype(np.int64)


@task("columns.statistics")
def _statistics(task: Task, source: dict[str, Any], weights: None, strategy: str, missing: float) -> dict[str, Any]:
    """Number of values of each column that are not missing, and their mean, or neighbours of their median, or mode."""
    rows = _marked(data_of(task, source).rows, missing)
    count = task.comm.allreduce(column_facts(rows, extremes=False).count.astype(np.float64))
    result: dict[str, Any] = {"rows": rows.n_samples, "count": count}
    if strategy == "mean":
        result["value"] = moments(task, rows).mean
    elif strategy == "median":
        lower, upper, between = neighbours(task, rows, [0.5])
        result |= {"lower": lower[0], "upper": upper[0], "between": between[0]}
    elif strategy == "most_frequent":
        result["value"] = np.full(rows.n_features, np.nan)
        for column, (values, counts) in enumerate(distinct(task, rows)):
            counts = counts[~np.isnan(values)]
            if len(counts):
                result["value"][column] = values[np.argmax(counts)]  # the least of those that are equally frequent
    return result


@task("columns.fill")
def _fill(
    task: Task,
    source: dict[str, Any],
    weights: None,
    missing: float,
    values: np.ndarray,
    columns: np.ndarray,
    indicated: np.ndarray,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Replace missing values, keep the given columns, and append 1 where one of the `indicated` columns is missing."""
    rows = data_of(task, source).rows
    by = values.astype(rows.dtype)

    def fill(some: np.ndarray) -> np.ndarray:
        mask = where_missing(some, missing)
        return np.hstack([np.where(mask, by, some)[:, columns], mask[:, indicated].astype(some.dtype)])

    give_computed(task, rows, len(columns) + len(indicated), fill, source["bounds"], target, kept)
    return {"rows": rows.n_samples}


@task("columns.unfill")
def _unfill(
    task: Task,
    source: dict[str, Any],
    weights: None,
    missing: float,
    n_features: int,
    columns: np.ndarray,
    indicated: np.ndarray,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Undo "columns.fill" in the columns that it has indicated."""
    rows = data_of(task, source).rows

    def unfill(some: np.ndarray) -> np.ndarray:
        made = np.zeros((len(some), n_features), some.dtype)
        made[:, columns] = some[:, : len(columns)]
        mask = np.zeros(made.shape, bool)
        mask[:, indicated] = some[:, len(columns) :] != 0
        made[mask] = missing
        return made

    give_computed(task, rows, n_features, unfill, source["bounds"], target, kept)
    return {"rows": rows.n_samples}


@task("columns.products")
def _products(
    task: Task,
    source: dict[str, Any],
    weights: None,
    combinations: list[tuple[int, ...]],
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Multiply the columns of each combination; the product of none is 1."""
    rows = data_of(task, source).rows

    def multiply(some: np.ndarray) -> np.ndarray:
        made = np.ones((len(some), len(combinations)), some.dtype)
        for column, factors in zip(made.T, combinations, strict=True):
            for factor in reversed(factors):  # rounded as in scikit-learn, which multiplies by the first column last
                column *= some[:, factor]
        return made

    with np.errstate(over="ignore"):
        give_computed(task, rows, len(combinations), multiply, source["bounds"], target, kept)
    return {"rows": rows.n_samples}
