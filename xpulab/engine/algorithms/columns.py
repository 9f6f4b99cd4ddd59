"""Facts about columns for imputers and encoders, and new columns of each row, which the host computes in pieces.

Columns of tables are chosen, and put side by side, in the same way.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from xpulab.engine.algorithms.passes import moments
from xpulab.engine.algorithms.quantiles import neighbours
from xpulab.engine.dataset import Data, data_of, give_computed, keep_rows, on_host
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.moments import column_facts
from xpulab.kernels.row_passes import consecutive
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import RowsInParts, changed, on_cpu, parts_of
from xpulab.sharing.answers import ColumnStatistics, ElementwiseRows, FirstRows, OwnRows
from xpulab.sharing.sources import Handle, Source, Target

__all__ = ["by_turns", "distinct", "where_missing"]

T = TypeVar("T")


def where_missing(rows: np.ndarray, missing: float) -> np.ndarray:
    """Return where an array has the number that stands for a missing value, which may be NaN."""
    found: np.ndarray = np.isnan(rows) if np.isnan(missing) else rows == missing
    return found


def _marked(rows: Rows | RowsInParts, missing: float) -> Rows | RowsInParts:
    """Return the rows with NaN for each missing value."""

    def mark(first: int, part: Rows) -> Rows:
        host = on_host(part, part.dtype)
        host[where_missing(host, missing)] = np.nan
        return Rows.upload(part.device, host)

    return rows if np.isnan(missing) else changed(rows, mark)


def distinct(task: Task, rows: Rows | RowsInParts) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each column the distinct numbers of all ranks, ascending, NaN last, and how often each occurs.

    All ranks get the distinct numbers of all ranks; columns with many need as much memory.
    """
    found = [(np.empty(0, rows.dtype), np.empty(0, np.int64))] * rows.n_features
    for _, some in on_cpu(rows):
        for column, (values, counts) in enumerate(found):
            new, often = np.unique(some[:, column], return_counts=True)
            found[column] = _together(np.append(values, new), np.append(counts, often))
    for column, own in enumerate(found):
        task.check()
        every = task.comm.allgather(own)
        found[column] = _together(*(np.concatenate(each) for each in zip(*every, strict=True)))
    return found


def by_turns(task: Task, own: np.ndarray, compute: Callable[[int, np.ndarray], T]) -> list[T]:
    """Compute something of each column of all ranks' rows. The ranks take turns: each gets a column as a whole.

    Parameters
    ----------
    task : Task
    own : numpy.ndarray of shape (n_own, n_features)
        This rank's rows.
    compute : callable
        Called with the number of a column and with its values.
    """
    found, size = {}, task.comm.size
    for column in range(own.shape[1]):
        task.check()
        values = np.concatenate(task.comm.allgather(np.ascontiguousarray(own[:, column])))
        if column % size == task.comm.rank:
            found[column] = compute(column, values)
    every = {column: value for part in task.comm.allgather(found) for column, value in part.items()}
    return [every[column] for column in range(own.shape[1])]


def _together(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, places = np.unique(values, return_inverse=True)
    return found, np.bincount(places, counts, len(found)).astype(np.int64)


@task("columns.statistics")
def _statistics(task: Task, source: Source, weights: None, strategy: str, missing: float) -> ColumnStatistics:
    """Count each column's values that are not missing; return their mean, or neighbours of their median, or mode."""
    data = Data(task, source)
    rows = _marked(data.block, missing)
    own = (column_facts(part, extremes=False).count for _, part in parts_of(rows))
    count = task.comm.allreduce(sum(own, np.zeros(rows.n_features)))
    data.require_finite()
    result: ColumnStatistics = {"rows": rows.n_samples, "count": count}
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
    source: Source,
    weights: None,
    missing: float,
    values: np.ndarray,
    columns: np.ndarray,
    indicated: np.ndarray,
    recoded: dict[int, np.ndarray] | None = None,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Replace missing values, keep the given columns, and append 1 where one of the `indicated` columns is missing.

    `recoded` has other numbers for the strings of some columns.
    """
    rows = data_of(task, source).rows
    by = values.astype(rows.dtype)

    def fill(some: np.ndarray) -> np.ndarray:
        mask = where_missing(some, missing)
        for column, codes in (recoded or {}).items():
            there = ~mask[:, column]
            some[there, column] = codes[some[there, column].astype(np.int64)]
        return np.hstack([np.where(mask, by, some)[:, columns], mask[:, indicated].astype(some.dtype)])

    give_computed(task, rows, len(columns) + len(indicated), fill, source.bounds, target, kept)
    return {"rows": rows.n_samples}


@task("columns.unfill")
def _unfill(
    task: Task,
    source: Source,
    weights: None,
    missing: float,
    n_features: int,
    columns: np.ndarray,
    indicated: np.ndarray,
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Undo "columns.fill" in the columns that it has indicated."""
    rows = data_of(task, source).rows

    def unfill(some: np.ndarray) -> np.ndarray:
        made = np.zeros((len(some), n_features), some.dtype)
        made[:, columns] = some[:, : len(columns)]
        mask = np.zeros(made.shape, bool)
        mask[:, indicated] = some[:, len(columns) :] != 0
        made[mask] = missing
        return made

    give_computed(task, rows, n_features, unfill, source.bounds, target, kept)
    return {"rows": rows.n_samples}


@task("columns.products")
def _products(
    task: Task,
    source: Source,
    weights: None,
    combinations: list[tuple[int, ...]],
    target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:
    """Multiply the columns of each combination; the product of none is 1."""
    rows = data_of(task, source).rows

    def multiply(some: np.ndarray) -> np.ndarray:
        made = np.ones((len(some), len(combinations)), some.dtype)
        for column, factors in zip(made.T, combinations, strict=True):
            for factor in reversed(factors):  # rounded as in scikit-learn, which multiplies by the first column last
                column *= some[:, factor]
        return made

    with np.errstate(over="ignore"):
        give_computed(task, rows, len(combinations), multiply, source.bounds, target, kept)
    return {"rows": rows.n_samples}


@task("columns.choose")
def _choose(task: Task, source: Source, weights: None, chosen: list[int], kept: Handle) -> OwnRows:
    """Copy some columns of a handle, and keep them under a new handle."""
    rows = data_of(task, source).rows
    give_computed(task, rows, len(chosen), lambda some: some[:, chosen], source.bounds, kept=kept)
    return {"rows": rows.n_samples}


@task("columns.join")
def _join(task: Task, sources: list[Source], kept: Handle) -> OwnRows:
    """Put the columns of several handles side by side, and keep them under a new handle."""
    parts = [data_of(task, source).rows for source in sources]
    n, alone = parts[0].n_samples, Lock()  # the device is that of one thread at a time

    def fill(first: int, part: np.ndarray) -> None:
        at = 0
        for rows in parts:
            with alone:
                part[:, at : at + rows.n_features] = consecutive(rows, first, first + len(part))
            at += rows.n_features

    shape = n, sum(rows.n_features for rows in parts)
    keep_rows(task, Rows.read(task.device, shape, kept.description.dtype, fill)[0], kept)
    return {"rows": n}


@task("columns.replace")
def _replace(task: Task, sources: list[Source], number: int, kept: Handle) -> OwnRows:
    """Copy the rows of a handle with those of a column in the place of one of theirs, under a new handle."""
    rows, column = (data_of(task, source).rows for source in sources)
    alone = Lock()  # the device is that of one thread at a time

    def fill(first: int, part: np.ndarray) -> None:
        with alone:
            part[:] = consecutive(rows, first, first + len(part))
            part[:, number] = consecutive(column, first, first + len(part))[:, 0]

    shape = rows.n_samples, rows.n_features
    keep_rows(task, Rows.read(task.device, shape, kept.description.dtype, fill)[0], kept)
    return {"rows": rows.n_samples}


@task("columns.elementwise")
def _elementwise(
    task: Task, sources: list[Source], home: str, name: str, others: list[Any], kept: Handle
) -> ElementwiseRows:
    """Compute a function of single numbers of handles with the same rows, and keep the result under a new handle.

    `others` has the other operands in their places, and None for each handle. All ranks raise the same error if a
    result is infinite, and return whether there is NaN.
    """
    function, parts = getattr(importlib.import_module(home), name), [data_of(task, source).rows for source in sources]
    n, d = parts[0].n_samples, parts[0].n_features
    alone, odd = Lock(), [False, False]  # the device is that of one thread at a time

    def fill(first: int, part: np.ndarray) -> None:
        with alone:
            given = iter([consecutive(rows, first, first + len(part)) for rows in parts])
        with np.errstate(all="ignore"):
            part[...] = function(*[next(given) if other is None else other for other in others])
        if np.isnan(part).any():  # each thread only ever sets these
            odd[0] = True
        if np.isinf(part).any():
            odd[1] = True

    made, _ = Rows.read(task.device, (n, d), kept.description.dtype, fill)
    nan, infinite = task.comm.allreduce(np.array(odd, np.int8), np.maximum)
    if infinite:
        raise ValueError(f"{home}.{name} of rows on the engines gives infinity for some of them")
    keep_rows(task, made, kept)
    return {"rows": n, "nan": bool(nan)}


@task("columns.head")
def _head(task: Task, source: Source, weights: None, n: int) -> FirstRows:
    """Return the first rows of all."""
    rows = data_of(task, source).rows
    here = max(0, min(n - source.bounds[task.comm.rank], rows.n_samples))
    every = task.comm.allgather(consecutive(rows, 0, here))
    return {"rows": rows.n_samples, "first": np.concatenate(every)}
