"""Categories of columns and their columns of 0 and 1; quantiles of columns, and the places of numbers among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.algorithms.columns import distinct
from xpulab.engine.dataset import data_of, give_computed, on_host
from xpulab.engine.engine import Task, task
from xpulab.kernels.row_passes import take

_SHOWN = 100  # unknown numbers of a column in an error
#: Numbers that are so close to the ends are mapped to them; the value of scikit-learn.
_CLOSE = 1e-7


@task("encoding.categories")
def _categories(task: Task, source: dict[str, Any], weights: None) -> dict[str, Any]:
    """Return the distinct numbers of each column, and how often each occurs."""
    rows = data_of(task, source).rows
    found = distinct(task, rows)
    values, counts = ([each[part] for each in found] for part in (0, 1))
    return {"rows": rows.n_samples, "values": values, "counts": counts}


@task("encoding.encode")
def _encode(
    task: Task,
    source: dict[str, Any],
    weights: None,
    categories: list[np.ndarray],
    places: list[np.ndarray],
    n_encoded: int | None = None,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Put a 1 into the column of each number's category; without `n_encoded`, return the places of these columns.

    `places` has the place of the column for each category, and for unknown numbers at the end; -1 for none. All ranks
    return some of the unknown numbers of each column.
    """
    rows = data_of(task, source).rows
    unknown: list[list[np.ndarray]] = [[] for _ in categories]

    def find(some: np.ndarray) -> np.ndarray:
        found = np.empty(some.shape, np.int32)
        for column, (known, place) in enumerate(zip(categories, places, strict=True)):
            numbers = some[:, column].astype(np.float64)
            nearest = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
            there = (known[nearest] == numbers) | (np.isnan(known[nearest]) & np.isnan(numbers))
            found[:, column] = np.where(there, place[nearest], place[-1])
            if not there.all():  # a list, since other threads append, too
                unknown[column].append(np.unique(numbers[~there])[:_SHOWN])
        return found

    def encode(some: np.ndarray) -> np.ndarray:
        found = find(some)
        made = np.zeros((len(some), n_encoded or 0), np.uint8)
        row, column = np.nonzero(found >= 0)
        made[row, found[row, column]] = 1
        return made

    if n_encoded is None:
        give_computed(task, rows, rows.n_features, find, source["bounds"], target, kept)
    else:
        give_computed(task, rows, n_encoded, encode, source["bounds"], target, kept)
    own = [np.unique(np.concatenate([np.empty(0), *each]))[:_SHOWN] for each in unknown]
    every = zip(*task.comm.allgather(own), strict=True)
    return {"rows": rows.n_samples, "unknown": [np.unique(np.concatenate(each))[:_SHOWN] for each in every]}


@task("encoding.quantiles")
def _quantiles(
    task: Task, source: dict[str, Any], weights: None, percents: np.ndarray, chosen: np.ndarray | None
) -> dict[str, Any]:
    """Return percentiles of each column, of the chosen rows in ascending order, or of all rows; NaN is ignored.

    The ranks take turns: each sorts a column of the rows of all ranks.
    """
    rows, rank = data_of(task, source).rows, task.comm.rank
    if chosen is None:
        own = on_host(rows, rows.dtype)
    else:
        first, last = np.searchsorted(chosen, source["bounds"][rank : rank + 2])
        own = take(rows, chosen[first:last] - source["bounds"][rank])
    found = {}
    for column in range(rows.n_features):
        task.check()
        values = np.concatenate(task.comm.allgather(np.ascontiguousarray(own[:, column])))
        if column % task.comm.size == rank:
            found[column] = _percentiles(values, percents)
    every = {column: values for part in task.comm.allgather(found) for column, values in part.items()}
    return {"rows": rows.n_samples, "quantiles": np.stack([every[column] for column in range(rows.n_features)], 1)}


def _percentiles(values: np.ndarray, percents: np.ndarray) -> np.ndarray:
    there = values[~np.isnan(values)]
    if not len(there):
        return np.full(len(percents), np.nan)
    return np.maximum.accumulate(np.percentile(there, percents))  # some versions of NumPy round one below its former


@task("encoding.spread")
def _spread(
    task: Task,
    source: dict[str, Any],
    weights: None,
    quantiles: np.ndarray,
    references: np.ndarray,
    normal: bool,
    inverse: bool,
    target: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Map each number to its place among the quantiles of its column, or back."""
    rows = data_of(task, source).rows
    if normal:
        import scipy.special  # noqa: F401 - once, before the threads
    change = _from_places if inverse else _to_places

    def spread(some: np.ndarray) -> np.ndarray:
        for column, known in zip(some.T, quantiles.T, strict=True):
            column[:] = change(column.copy(), known, references, normal)
        return some

    with np.errstate(invalid="ignore"):
        give_computed(task, rows, rows.n_features, spread, source["bounds"], target, kept)
    return {"rows": rows.n_samples}


def _ends(column: np.ndarray, low: float, high: float, normal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return which numbers are at the lower end, and which at the upper."""
    if normal:
        return column - _CLOSE < low, column + _CLOSE > high
    return column == low, column == high


def _to_places(column: np.ndarray, quantiles: np.ndarray, references: np.ndarray, normal: bool) -> np.ndarray:
    """Interpolate from both ends: equal quantiles are mapped to the middle of their places."""
    low, high = _ends(column, quantiles[0], quantiles[-1], normal)
    there = ~np.isnan(column)
    known = column[there]
    upwards = np.interp(known, quantiles, references)
    downwards = np.interp(-known, -quantiles[::-1], -references[::-1])
    column[there] = 0.5 * (upwards - downwards)
    column[high], column[low] = 1, 0
    if not normal:
        return column
    from scipy.special import ndtri

    close = _CLOSE - np.spacing(1)
    return np.clip(ndtri(column), ndtri(close), ndtri(1 - close))


def _from_places(column: np.ndarray, quantiles: np.ndarray, references: np.ndarray, normal: bool) -> np.ndarray:
    if normal:
        from scipy.special import ndtr

        column = ndtr(column.astype(np.float64))
    low, high = _ends(column, 0, 1, normal)
    there = ~np.isnan(column)
    column[there] = np.interp(column[there], references, quantiles)
    column[high], column[low] = quantiles[-1], quantiles[0]
    return column
