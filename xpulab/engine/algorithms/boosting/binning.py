"""The bins of a rank's rows, one byte a value, and what else a fit has of the rows for training and for validation.

If the devices do not keep all rows, the ranks read some columns at a time, and keep only their bins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.boosting.categories import found_in, in_order, numbered
from xpulab.engine.algorithms.boosting.growing import Binned
from xpulab.engine.algorithms.boosting.thresholds import thresholds_of
from xpulab.engine.algorithms.forests.bins import columns_in_turn
from xpulab.engine.dataset import Data, on_host
from xpulab.engine.engine import Task
from xpulab.kernels.on_cpu.boosting import Thresholds
from xpulab.sharing.sources import BlockRows, CategoricalColumns, SharedArray, Source, bounds_of

__all__ = ["Part", "parts_of"]

_Array = npt.NDArray[np.float64]
_Bins = npt.NDArray[np.uint8]


@dataclass
class Part:
    """Rows for training, or for validation: their bins, targets, weights or None, and raw predictions (k, n)."""

    bins: _Bins
    y: _Array
    weights: _Array | None
    raw: _Array
    n_samples: int  # of all ranks
    some: npt.NDArray[np.intp] | None = None  # places of the rows that a scorer scores; None for all


def parts_of(
    task: Task,
    source: Source,
    sent: dict[str, SharedArray | None],
    columns: CategoricalColumns | None,
    max_bins: int,
    baseline: _Array,
) -> tuple[Binned, Part, Part | None]:
    """Return the bins of this rank's rows, and the rows for training and for validation."""
    data = Data(task, source)
    first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
    y, weights = _own(sent["y"], first, last), _own(sent["weights"], first, last)
    held_out, times = _own(sent["held_out"], first, last), _own(sent["times"], first, last)
    trains = np.flatnonzero(held_out == 0) if held_out is not None else None

    def for_thresholds(array: Any) -> Any:
        if times is not None:
            return np.repeat(array, times, axis=0)
        return array if trains is None or array is None else array[trains]

    beside = None if times is not None else for_thresholds(weights)
    bins, thresholds, categories = _found(task, data, source, columns, max_bins, for_thresholds, beside)

    def part(which: Any, n: int) -> Part:
        def some(array: Any) -> Any:
            return array if which is None or array is None else np.ascontiguousarray(array[which])

        targets = np.asarray(some(y), np.float64)
        return Part(some(bins), targets, some(weights), np.repeat(baseline[:, None], len(targets), axis=1), n)

    counts = task.comm.allreduce(np.array([len(y) if trains is None else len(trains), len(y)], np.int64))
    train = part(trains, int(counts[0]))
    if (chosen := _own(sent["scored"], first, last)) is not None:
        train.some = np.flatnonzero(chosen if trains is None else chosen[trains])
    validation = None
    if held_out is not None:
        validation = part(np.flatnonzero(held_out), int(counts[1] - counts[0]))
    elif sent["X_val"] is not None:
        validation = _given(task, sent, columns, categories, thresholds, baseline)
    missing = (train.bins == thresholds.missing).any(axis=0) if len(train.y) else np.zeros(data.n_features, bool)
    missing = task.comm.allreduce(missing.astype(np.int64), np.maximum).astype(np.uint8)
    binned = Binned(train.bins, np.ascontiguousarray(train.bins.T), thresholds, missing, categories)
    return binned, train, validation


def _found(
    task: Task,
    data: Data,
    source: Source,
    columns: CategoricalColumns | None,
    max_bins: int,
    for_thresholds: Callable[[Any], Any],
    weights: _Array | None,
) -> tuple[_Bins, Thresholds, list[_Array]]:
    """Return the bins of this rank's rows, the thresholds between them, and the numbers that are categories.

    The columns are in the order of the trees. `for_thresholds` returns those of the rows, with `weights`, between which
    the thresholds are.
    """
    names = [] if columns is None else columns.names
    thresholds: list[_Array] = []
    categories: list[_Array] = []
    bins = np.empty((data.n_own, data.n_features), np.uint8)
    for some, rows in _in_turn(task, data, source, columns):
        task.show(doing="finding the bins of the columns", done=some.start, steps=data.n_features)
        known, n_categorical = slice(some.start, min(some.stop, len(names))), max(0, len(names[some]))
        if n_categorical:
            assert columns is not None
            own, places = rows[:, :n_categorical], None if columns.places is None else columns.places[known]
            values = columns.values[known] if columns.values else found_in(task, own, names[known], max_bins)
            with task.on_host():
                _for_threads(len(rows), _numbering(own, values, places))
            categories += values
        made = thresholds_of(task, for_thresholds(rows[:, n_categorical:]), weights, max_bins)
        of_categories = [np.arange(len(each) - 1.0) for each in categories[known]]
        here = Thresholds([*of_categories, *made.columns], max_bins)
        with task.on_host():
            bins[:, some] = _binned(here, rows)
        thresholds += here.columns
    return bins, Thresholds(thresholds, max_bins, len(names)), categories


def _in_turn(
    task: Task, data: Data, source: Source, columns: CategoricalColumns | None
) -> Iterator[tuple[slice, _Array]]:
    """Yield all columns of this rank's rows on the host, in the order of the trees: those of the devices at once."""
    order = range(data.n_features) if columns is None else columns.order
    if data.in_passes:
        assert isinstance(source, BlockRows)
        yield from columns_in_turn(task, data, source, order, np.float64)
        return
    rows = on_host(data.rows, np.float64)
    yield slice(0, data.n_features), rows if columns is None else np.take(rows, order, axis=1)


def _numbering(rows: _Array, values: list[_Array], places: list[_Array] | None) -> Callable[[slice], None]:
    def number(some: slice) -> None:
        rows[some] = numbered(rows[some], values, places)

    return number


def _binned(thresholds: Thresholds, rows: _Array) -> _Bins:
    """Return the bins of rows, which threads find."""
    bins = np.empty(rows.shape, np.uint8)
    _for_threads(len(rows), lambda some: thresholds.bins(rows[some], bins[some]))
    return bins


def _for_threads(n: int, function: Callable[[slice], None]) -> None:
    """Call a function for a share of n rows in each thread."""
    threads = len(os.sched_getaffinity(0))
    cuts = np.linspace(0, n, threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: function(slice(*ends)), pairwise(cuts)))


def _own(array: SharedArray | None, first: int, last: int) -> Any:
    """Return this rank's part of an array that the notebook has sent."""
    return None if array is None else array.open()[first:last]


def _given(
    task: Task,
    sent: dict[str, SharedArray | None],
    columns: CategoricalColumns | None,
    categories: list[_Array],
    thresholds: Thresholds,
    baseline: _Array,
) -> Part:
    """Return this rank's part of rows for validation that the notebook has sent."""
    X = sent["X_val"]
    assert X is not None
    first, last = bounds_of(X.shape[0], task.comm.size)[task.comm.rank : task.comm.rank + 2]
    y = np.asarray(_own(sent["y_val"], first, last), np.float64)
    rows = np.ascontiguousarray(_own(X, first, last))
    bins = _binned(thresholds, rows if columns is None else in_order(columns, categories, rows))
    raw = np.repeat(baseline[:, None], last - first, axis=1)
    return Part(bins, y, _own(sent["weights_val"], first, last), raw, X.shape[0])
