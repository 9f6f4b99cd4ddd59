"""Categories of columns and their columns of 0 and 1; quantiles of columns, and the places of numbers among them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xpulab.engine.algorithms.columns import by_turns, distinct
from xpulab.engine.dataset import Data, data_of, give_computed, keep_rows, on_host, pieces, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.row_passes import consecutive, take
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import on_cpu, parts_of
from xpulab.sharing.answers import Categories, Encoded, OwnRows, Percentiles, TargetSums, Texts
from xpulab.sharing.sources import BlockRows, Handle, SharedArray, Source, Target
from xpulab.sources.coded import SHOWN, places_of, texts_in

__all__ = ["chosen_of"]

#: Numbers that are so close to the ends are mapped to them; the value of scikit-learn.
_CLOSE = 1e-7


@task("encoding.categories")
def _categories(task: Task, source: Source, weights: None) -> Categories:
    """Return the distinct numbers of each column, and how often each occurs."""
    data = Data(task, source)
    found = distinct(task, data.block)
    data.require_finite()
    values, counts = ([each[part] for each in found] for part in (0, 1))
    return {"rows": data.n_own, "values": values, "counts": counts}


@task("encoding.texts")
def _texts(task: Task, source: BlockRows) -> Texts:
    """Return the distinct strings of each column, in ascending order."""
    first, last = (source.first + bound for bound in source.bounds[task.comm.rank : task.comm.rank + 2])
    every = task.comm.allgather(texts_in(source.rows, first, last, source.columns))
    return {"rows": last - first, "texts": [tuple(sorted(set().union(*each))) for each in zip(*every, strict=True)]}


@task("encoding.encode")
def _encode(
    task: Task,
    source: Source,
    weights: None,
    categories: list[np.ndarray],
    places: list[np.ndarray],
    n_encoded: int | None = None,
    target: Target | None = None,
    kept: Handle | None = None,
) -> Encoded:
    """Put a 1 into the column of each number's category; without `n_encoded`, return the places of these columns.

    `places` has the place of the column for each category, and for unknown numbers at the end; -1 for none. All ranks
    return some of the unknown numbers of each column.
    """
    rows = data_of(task, source).rows
    unknown: list[list[np.ndarray]] = [[] for _ in categories]

    def find(some: np.ndarray) -> np.ndarray:
        return places_of(some, categories, places, unknown)

    def encode(some: np.ndarray) -> np.ndarray:
        found = find(some)
        made = np.zeros((len(some), n_encoded or 0), np.uint8)
        row, column = np.nonzero(found >= 0)
        made[row, found[row, column]] = 1
        return made

    if n_encoded is None:
        give_computed(task, rows, rows.n_features, find, source.bounds, target, kept)
    else:
        give_computed(task, rows, n_encoded, encode, source.bounds, target, kept)
    own = [np.unique(np.concatenate([np.empty(0), *each]))[:SHOWN] for each in unknown]
    every = zip(*task.comm.allgather(own), strict=True)
    return {"rows": rows.n_samples, "unknown": [np.unique(np.concatenate(each))[:SHOWN] for each in every]}


@task("encoding.target_sums")
def _target_sums(
    task: Task,
    source: Source,
    weights: None,
    categories: list[np.ndarray],
    places: list[np.ndarray],
    n_folds: int,
    middle: np.ndarray,
    numbers: SharedArray,
    folds: SharedArray | None,
) -> TargetSums:
    """Add up the targets less `middle` of the rows of each fold and category, their squares, and the rows."""
    data, mine = Data(task, source), slice(*source.bounds[task.comm.rank : task.comm.rank + 2])
    away = numbers.open()[mine] - middle
    fold = np.zeros(len(away), np.int64) if folds is None else folds.open()[mine].astype(np.int64)
    sums = [np.zeros((n_folds, 3, len(known), len(middle))) for known in categories]
    for first, some in on_cpu(data.block):
        last, found = first + len(some), places_of(some, categories, places)
        for total, place in zip(sums, found.T, strict=True):
            n = total.shape[2]
            key = fold[first:last] * n + np.where(place < n, place, 0)  # of unknown ones the first, as in scikit-learn
            for number, column in enumerate(away[first:last].T):
                for at, value in enumerate((None, column, column**2)):
                    total[:, at, :, number] += np.bincount(key, value, n_folds * n).reshape(n_folds, n)
    data.require_finite()
    return {"rows": data.n_own, "sums": [task.comm.allreduce(each) for each in sums]}


@task("encoding.target_replace")
def _target_replace(
    task: Task,
    source: Source,
    weights: None,
    categories: list[np.ndarray],
    places: list[np.ndarray],
    encodings: list[list[np.ndarray]],
    folds: SharedArray | None,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Replace each number by the encodings of its category, which are those of the fold of its row."""
    rows = data_of(task, source).rows
    mine = slice(*source.bounds[task.comm.rank : task.comm.rank + 2])
    fold = np.zeros(rows.n_samples, np.int64) if folds is None else folds.open()[mine].astype(np.int64)
    by_fold = [np.stack(each) for each in zip(*encodings, strict=True)]  # for each column (n_folds, k + 1, n_targets)

    def parts() -> Iterator[np.ndarray]:
        for first, last in pieces(rows.n_samples, rows.n_features * rows.dtype.itemsize):
            found = places_of(consecutive(rows, first, last), categories, places)
            yield np.hstack([each[fold[first:last], place] for each, place in zip(by_fold, found.T, strict=True)])

    if target is not None:
        write_block(task, target, source.bounds, parts())
    if kept is not None:
        shape = 0, sum(each.shape[2] for each in by_fold)
        made = np.concatenate([np.empty(shape), *parts()]).astype(kept.description.dtype)
        keep_rows(task, Rows.upload(task.device, made), kept)
    return {"rows": rows.n_samples}


@task("encoding.quantiles")
def _quantiles(
    task: Task, source: Source, weights: None, percents: np.ndarray, chosen: np.ndarray | None
) -> Percentiles:
    """Return percentiles of each column, of the chosen rows in ascending order, or of all rows; NaN is ignored."""
    data = Data(task, source)
    found = by_turns(task, chosen_of(task, data, chosen), lambda _, values: _percentiles(values, percents))
    return {"rows": data.n_own, "quantiles": np.stack(found, 1)}


def chosen_of(task: Task, data: Data, chosen: np.ndarray | None) -> np.ndarray:
    """Return this rank's rows on the host, or those of the chosen rows, which are in ascending order."""
    if chosen is None:
        return on_host(data.rows, data.dtype)
    begin, end = data.bounds[task.comm.rank : task.comm.rank + 2]
    own = chosen[slice(*np.searchsorted(chosen, [begin, end]))] - begin
    picked = [np.empty((0, data.n_features), data.dtype)]
    for first, part in parts_of(data.block):
        here = slice(*np.searchsorted(own, [first, first + part.n_samples]))
        picked.append(take(part, own[here] - first))
    data.require_finite()
    return np.concatenate(picked)


def _percentiles(values: np.ndarray, percents: np.ndarray) -> np.ndarray:
    there = values[~np.isnan(values)]
    if not len(there):
        return np.full(len(percents), np.nan)
    return np.maximum.accumulate(np.percentile(there, percents))  # some versions of NumPy round one below its former


@task("encoding.spread")
def _spread(
    task: Task,
    source: Source,
    weights: None,
    quantiles: np.ndarray,
    references: np.ndarray,
    normal: bool,
    inverse: bool,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Map each number to its place among the quantiles of its column, or back."""
    rows = data_of(task, source).rows
    if normal:
        import scipy.special  # noqa: F401 - once, before the threads
    change = _from_places if inverse else _to_places

    def spread(some: np.ndarray) -> np.ndarray:
        for column, known in zip(some.T, quantiles.T, strict=True):
            column[:] = change(column.astype(np.float64), known, references, normal)
        return some

    with np.errstate(invalid="ignore"):
        give_computed(task, rows, rows.n_features, spread, source.bounds, target, kept)
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
