"""Tables of the distinct labels, pairs of labels, and scores of all ranks, with the sums of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.scores.sums import pairs_of, places
from xpulab.engine.dataset import Data, PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import RowsInParts, on_cpu
from xpulab.sharing.answers_of_scores import Areas, Contingency, DistinctLabels, NumberTable, NumberTables
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["areas", "combined", "contingency", "distinct", "tables_of_errors", "tables_of_scores"]

_Array = npt.NDArray[Any]

#: Pairs of labels whose sums are in an array with an entry for each pair; of more, each rank sorts those that occur.
_ALL_PAIRS = 1 << 20
#: Labels for which a rank has an entry for each label and each distinct score; for more labels it sorts by both.
_FEW_CODES = 8


def combined(keys: Sequence[_Array], *sums: _Array) -> tuple[list[_Array], list[_Array]]:
    """Return distinct keys in ascending order, and the sums of the entries of each.

    Keys of several arrays are sorted by the last array, and equal ones by those before it.
    """
    if len(keys) == 2 and len(keys[0]) and int(keys[0].max()) < _FEW_CODES:
        return _combined_by_code(*keys, *sums)
    order = np.argsort(keys[0], kind="stable") if len(keys) == 1 else np.lexsort(keys)
    ordered = [each[order] for each in keys]
    new = np.ones(len(order), bool)
    if len(order):
        new[1:] = np.logical_or.reduce([each[1:] != each[:-1] for each in ordered])
    first = np.flatnonzero(new)
    added = [np.add.reduceat(each[order], first) if len(first) else each[:0] for each in sums]
    return [each[first] for each in ordered], added


def _combined_by_code(codes: _Array, values: _Array, *sums: _Array) -> tuple[list[_Array], list[_Array]]:
    """Do the same for values with few codes: one sort, which need not be stable, takes less than half of the time."""
    order, k = np.argsort(values), int(codes.max()) + 1
    ordered = values[order]
    new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    pairs = (np.cumsum(new) - 1) * k + codes[order]
    there = np.flatnonzero(np.bincount(pairs))
    added = [np.bincount(pairs, each[order])[there] for each in sums]
    return [(there % k).astype(codes.dtype), ordered[new][there // k]], added


class _Labels:
    """The distinct numbers of a column, in ascending order, which are found a part at a time."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.found = np.empty(0, dtype)

    def look(self, values: _Array) -> None:
        """Add those of some values that are new."""
        if len(self.found):
            values = values[~places(self.found, values)[1]]
        if len(values):
            self.found = np.union1d(self.found, values)


def distinct(task: Task, rows: Rows | RowsInParts) -> _Array:
    """Return the distinct numbers in the rows of all ranks, in ascending order."""
    labels = _Labels(rows.dtype)
    for _, some in on_cpu(rows):
        labels.look(some.ravel())
    return _of_all_ranks(task, labels.found)


def _of_all_ranks(task: Task, labels: _Array) -> _Array:
    return np.unique(np.concatenate(task.comm.allgather(labels)))


def contingency(task: Task, data: Data) -> tuple[list[_Array], list[_Array]]:
    """Count the pairs of labels that occur, and sum their weights.

    The first column of `data` has the true labels, and that of its targets the predicted ones.

    Returns
    -------
    labels : list of numpy.ndarray
        The distinct true labels, and the distinct predicted ones, in ascending order.
    pairs : list of numpy.ndarray
        The indices of the labels of each pair, how many rows have it, and the sum of their weights. On ranks other than
        0 the arrays are empty.
    """
    of_truth, of_predicted = _Labels(data.dtype), _Labels(np.float64)
    for truth, predicted, _ in pairs_of(data):
        of_truth.look(truth[:, 0])
        of_predicted.look(predicted[:, 0])
    labels = [_of_all_ranks(task, each.found) for each in (of_truth, of_predicted)]
    task.check()
    n, width = len(labels[0]) * len(labels[1]), len(labels[1])
    sums = np.zeros((2, n if n <= _ALL_PAIRS else 0))
    keys, counted = np.empty(0, np.int64), [np.empty(0), np.empty(0)]
    for truth, predicted, weights in pairs_of(data):
        pair = places(labels[0], truth[:, 0])[0] * width + places(labels[1], predicted[:, 0])[0]
        if n <= _ALL_PAIRS:
            sums += np.bincount(pair, minlength=n), np.bincount(pair, weights, n)
            continue
        added = zip(counted, (np.ones(len(pair)), weights), strict=True)
        (keys,), counted = combined([np.concatenate([keys, pair])], *(np.concatenate(each) for each in added))
    if n <= _ALL_PAIRS:
        keys = np.flatnonzero(sums[0])
        counted = list(sums[:, keys])
    keys, counts, weights = (_joined(task, each) for each in (keys, *counted))
    (keys,), (counts, weights) = combined([keys], counts, weights)
    return labels, [keys // max(width, 1), keys % max(width, 1), counts, weights]


def _joined(task: Task, block: _Array) -> _Array:
    """Join the blocks of all ranks on rank 0; the others get an empty array."""
    joined = task.comm.gather_blocks(block)
    return block[:0] if joined is None else joined


def _table(task: Task, values: _Array, weights: npt.NDArray[np.float64], codes: _Array | None = None) -> NumberTable:
    """Merge the distinct values of all ranks on rank 0, those of each code by themselves."""
    keys = [values] if codes is None else [codes, values]
    keys, (sums,) = combined(keys, weights)
    if task.comm.size > 1:
        keys, (sums,) = combined([_joined(task, each) for each in keys], _joined(task, sums))
    return {"values": keys[-1], "codes": keys[0] if codes is not None else None, "weights": sums}


def areas(table: NumberTable, code: int) -> tuple[float, float, float]:
    """Return the area below the ROC curve of a label against all others, the average precision, and its weight.

    They are NaN where only one of the two has a weight.
    """
    values, weights, codes = table["values"], table["weights"], table["codes"]
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else np.empty(0, int)
    right, wrong = (
        np.add.reduceat(np.where(some, weights, 0.0), first)[::-1] if len(first) else np.zeros(1)
        for some in (codes == code, codes != code)
    )
    above, others = np.cumsum(right), np.cumsum(wrong)
    if not above[-1] or not others[-1]:
        return np.nan, np.nan, float(above[-1])
    area = wrong @ (above - right / 2) / (above[-1] * others[-1])
    precision = np.divide(above, above + others, out=np.zeros(len(above)), where=above + others != 0)
    return float(area), float(right @ precision / above[-1]), float(above[-1])


def tables_of_scores(task: Task, data: Data) -> tuple[_Array, list[NumberTable], bool]:
    """Sort the scores of all ranks, whose targets are their labels; equal scores with equal labels are added up.

    Each rank sorts its own scores, and rank 0 merges them.

    Returns
    -------
    labels : numpy.ndarray
        The distinct labels.
    tables : list of NumberTable
        For each column of scores.
    add_up : bool
        Whether the scores of each row add up to 1, as closely as `numpy.allclose` asks.
    """
    parts: list[tuple[_Array, _Array, _Array]] = []
    for some, their_labels, their_weights in pairs_of(data):
        parts.append((some.copy(), their_labels[:, 0].copy(), np.array(their_weights, np.float64)))
    scores = np.concatenate([np.empty((0, data.n_features), data.dtype), *(each for each, _, _ in parts)])
    truth = np.concatenate([np.empty(0), *(each for _, each, _ in parts)])
    weights = np.concatenate([np.empty(0), *(each for _, _, each in parts)])
    add_up = bool(np.allclose(1, scores.sum(axis=1)))
    labels = _of_all_ranks(task, np.unique(truth))
    task.check()
    codes = np.searchsorted(labels, truth).astype(np.min_scalar_type(max(len(labels), 1)))
    tables = [_table(task, column, weights, codes) for column in np.ascontiguousarray(scores.T)]
    return labels, tables, all(task.comm.allgather(add_up))


def tables_of_errors(task: Task, data: Data, of: str) -> list[NumberTable]:
    """Sort the absolute errors of all ranks, or with `of` "truth" the true values, by column.

    The rows of `data` are the true values, and its targets the predictions.
    """
    parts: list[tuple[_Array, _Array]] = []
    for truth, predicted, weights in pairs_of(data):
        exact = truth.astype(np.float64)
        parts.append((exact if of == "truth" else np.abs(predicted - exact), np.array(weights, np.float64)))
    values = np.concatenate([np.empty((0, data.n_features)), *(each for each, _ in parts)])
    weights = np.concatenate([np.empty(0), *(each for _, each in parts)])
    return [_table(task, column, weights) for column in np.ascontiguousarray(values.T)]


@task("metrics.distinct")
def _distinct(task: Task, source: Source, weights: None) -> DistinctLabels:
    data = Data(task, source)
    labels = distinct(task, data.block)
    data.require_finite()
    return {"rows": data.n_own, "labels": labels}


@task("metrics.contingency")
def _contingency(task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source) -> Contingency:
    data = Data(task, source, weights, targets)
    labels, pairs = contingency(task, data)
    return {"rows": data.n_own, "labels": labels, "pairs": pairs}


@task("metrics.scores")
def _scores(task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source) -> NumberTables:
    data = Data(task, source, weights, targets)
    labels, tables, add_up = tables_of_scores(task, data)
    return {"rows": data.n_own, "labels": labels, "tables": tables, "add_up": add_up}


@task("metrics.areas")
def _areas(task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source) -> Areas:
    data = Data(task, source, weights, targets)
    labels, tables, add_up = tables_of_scores(task, data)
    n, k = len(tables), len(labels)
    found = []
    if task.comm.rank == 0 and (n == 1 or n == k):  # one column for each label, or one for two labels
        pairs = zip(range(k), tables * k if n == 1 else tables, strict=True)
        found = [areas(table, code) for code, table in pairs]
    return {"rows": data.n_own, "labels": labels, "areas": np.array(found).reshape(-1, 3), "add_up": add_up}


@task("metrics.errors")
def _errors(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source, of: str
) -> NumberTables:
    data = Data(task, source, weights, targets)
    return {"rows": data.n_own, "labels": None, "tables": tables_of_errors(task, data, of), "add_up": True}
