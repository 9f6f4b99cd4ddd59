"""Nearest neighbours over the ranks: each searches its own rows for all queries, and then merges all findings for its
share of the queries.

With few features and many queries, each rank has a tree of all rows instead, and searches it for its share of the
queries. It finds the same neighbours, and the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.indices import AnyIndex, IndexInParts, index_of, parts_of, rows_at_a_time, targets_of
from xpulab.engine.algorithms.sparse_rows.neighbors import SparseIndex, sparse_pieces
from xpulab.engine.dataset import data_of, on_host, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.exact_neighbors import Metric, nearest_of, queries_at_a_time, within_of
from xpulab.kernels.neighbors import Index, normalised
from xpulab.kernels.on_cpu.tree_search import KINDS, nearest_in
from xpulab.kernels.on_cpu.trees import Tree
from xpulab.kernels.row_passes import consecutive
from xpulab.sharing.answers import Nearest, OwnRows, Within
from xpulab.sharing.sources import SharedArray, Source, Target

__all__: list[str] = []  # this module only registers tasks

#: Up to so many features and neighbours, rows are searched in a tree, if all rows have at most so many numbers: each
#: rank has a tree of all of them, and searches for its share of the queries. With 8 features of normal distributions
#: this takes as long as comparing all rows, and with 2 or 3 a tenth of the time or less.
_MOST_FEATURES, _MOST_IN_TREE, _MOST_IN_MEMORY = 8, 128, 1 << 25
_TREE_PAYS = 1000  # queries of a rank, for which comparing all rows takes as long as building the tree


def _pieces(
    task: Task, index: Index | SparseIndex, queries: SharedArray | Source, n_samples: int, metric: Metric
) -> Iterator[tuple[int, Any]]:
    """Yield some queries at a time, in float64, with the number of the first; the same ones on all ranks.

    The index is searched for all of these at a time; `n_samples` are about the rows in those of all ranks.
    """
    if isinstance(index, SparseIndex):
        assert isinstance(queries, Source)
        yield from sparse_pieces(task, queries)
        return
    step = queries_at_a_time(n_samples, index.n_features)
    for first, some in _as_sent(queries, step) if isinstance(queries, SharedArray) else _of_ranks(task, queries, step):
        if task.comm.rank == 0:  # all ranks are at the same queries
            task.show(doing="query", done=first, steps=queries.shape[0])
        task.check()
        if metric.name == "cosine":
            some = normalised(some)
        some = np.ascontiguousarray(some, np.float64)
        yield first, some if index.unit == 1 else some / index.unit


def _as_sent(queries: SharedArray, step: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield some of the queries that the notebook has sent."""
    whole = queries.open()
    return ((first, whole[first : first + step]) for first in range(0, len(whole), step))


def _of_ranks(task: Task, queries: Source, step: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield some of the queries of one rank after the other, which sends them to all ranks."""
    rows = data_of(task, queries).rows
    for owner, (begin, end) in enumerate(itertools.pairwise(queries.bounds)):
        for first in range(begin, end, step):
            n = min(step, end - first)
            mine = owner == task.comm.rank
            some = consecutive(rows, first - begin, first - begin + n) if mine else np.empty((n, rows.n_features))
            yield first, task.comm.bcast_array(some.astype(rows.dtype, copy=False), owner)


@task("neighbors.index")
def _make_index(task: Task, index: str, metric: tuple[str, float], rows: dict[str, Any]) -> OwnRows:
    """Keep this rank's rows so that they can be searched."""
    how, bounds = Metric(*metric), rows["source"].bounds
    index_of(task, index, how.name, how.power, rows)
    return {"rows": bounds[task.comm.rank + 1] - bounds[task.comm.rank]}


@task("neighbors.nearest")
def _nearest(
    task: Task,
    index: str,
    metric: tuple[str, float],
    bounds: list[int],
    queries: SharedArray | Source,
    shares: list[int],
    k: int,
    own: int | None,
    compared: Target,
    places: Target,
    rows: dict[str, Any] | None = None,
    targets: Source | None = None,
    near: Target | None = None,
    algorithm: str = "auto",
) -> Nearest:
    """Write the k nearest of all rows to each query into arrays (n_queries, k), where distances are in `unit`s.

    Each rank merges what all have found for its share of the queries: those from shares[rank] up to shares[rank + 1].
    If the queries are the rows themselves, or some of them, `own` is the number of the first, and none is its own
    neighbour. If the rows have targets, those of the neighbours go into `near`, an array of shape
    (n_queries, k * n_targets). `algorithm` is scikit-learn's.
    """
    how = Metric(*metric)
    mine = index_of(task, index, how.name, how.power, rows)
    n_own = bounds[task.comm.rank + 1] - bounds[task.comm.rank]
    task.show(rows=n_own)
    search = _Search(task, mine, how, bounds, queries, shares, k + (own is not None))
    with targets_of(task, targets) as values, task.on_host():
        n_targets = 0 if targets is None else targets.n_features
        if search.by_tree(algorithm):
            merged = search.in_tree(values(0, n_own), own)
        else:
            merged = search.by_comparing(values, n_targets)
        if own is not None:
            merged = _others(merged, own + np.arange(shares[task.comm.rank], shares[task.comm.rank + 1]))
    for target, part in zip((compared, places), merged[:2], strict=True):
        write_block(task, target, shares, [np.ascontiguousarray(part)])
    if near is not None:
        write_block(task, near, shares, [np.stack(merged[2:], axis=2).reshape(-1, near.shape[1])])
    return {"rows": n_own, "unit": mine.unit}


@dataclass(frozen=True)
class _Search:
    """A search for the k nearest of all rows to each query, whose results are for this rank's share of the queries.

    They are arrays (n_own, k): what is compared, the indices of the rows, and each of their targets.
    """

    task: Task
    index: AnyIndex
    metric: Metric
    bounds: list[int]
    queries: SharedArray | Source
    shares: list[int]
    k: int

    def by_tree(self, algorithm: str) -> bool:
        """Return whether to search in a tree of all rows; all ranks return the same."""
        if not isinstance(self.index, Index):
            return False
        d, n, m = self.index.n_features, self.bounds[-1], self.queries.shape[0]
        possible = (
            self.metric.kind in KINDS and d <= _MOST_FEATURES and self.k <= _MOST_IN_TREE and n * d <= _MOST_IN_MEMORY
        )
        if not possible or algorithm == "brute":
            return False
        pays = m >= _TREE_PAYS * self.task.comm.size or self.index.whole or algorithm != "auto"
        here = np.array([bool(pays) and self.task.device.is_cpu], np.int8)
        return bool(self.task.comm.allreduce(here, np.minimum)[0])

    def in_tree(self, values: np.ndarray, own: int | None) -> list[np.ndarray]:
        """Search this rank's share of the queries in a tree of the rows of all ranks, which is kept with the index."""
        task, index = self.task, self.index
        assert isinstance(index, Index)
        if not index.whole:
            rows = index.device.fetch(index.data, stop=index.n_samples * index.n_features)
            task.show(doing="building a tree of all rows")
            index.whole.append(Tree.of(self._of_all_ranks(rows.reshape(-1, index.n_features))))
        (tree,) = index.whole
        first, last = self.shares[task.comm.rank : task.comm.rank + 2]
        if isinstance(self.queries, SharedArray):
            some = self.queries.open()[first:last].astype(np.float64)
        else:
            some = on_host(data_of(task, self.queries).rows, np.float64)
        some = np.ascontiguousarray(some if index.unit == 1 else some / index.unit)
        visits = np.arange(len(some))
        if own is not None:  # the queries are the rows themselves: in the order of the leaves
            first, last = own + first, own + last
            visits = tree.order[(tree.order >= first) & (tree.order < last)] - first

        def look(done: int) -> None:
            task.leave_if_cancelled()
            task.check_peers()
            task.show(doing="query", done=done, steps=len(visits))

        found = nearest_in(tree, some, visits, self.k, self.metric.kind, look)
        near = self._of_all_ranks(values)[found[1]] if values.size else np.empty((*found[1].shape, values.shape[1]))
        return [*found, *np.moveaxis(near, 2, 0)]

    def _of_all_ranks(self, mine: np.ndarray) -> np.ndarray:
        """Return the rows (n_own, d) of all ranks, in their order, in float64."""
        return self.task.comm.allgather_rows(mine.astype(np.float64, copy=False), np.diff(self.bounds))

    def by_comparing(self, values: Callable[[int, int], np.ndarray], n_targets: int) -> list[np.ndarray]:
        """Compare all queries with this rank's rows; exchange what the ranks find, and merge it.

        `values` returns the targets (n, n_targets) of some of this rank's rows, by the number of the first.
        """
        task, (rank, size) = self.task, (self.task.comm.rank, self.task.comm.size)
        hasty = True
        found = np.empty((self.queries.shape[0], 2 + n_targets, self.k))
        for number, (begin, index) in enumerate(parts_of(task, self.index)):
            near = values(begin, index.n_samples)
            n_samples = rows_at_a_time(self.index, number, self.bounds[-1])
            for first, some in _pieces(task, index, self.queries, n_samples, self.metric):
                if isinstance(index, SparseIndex):
                    distances, there = index.nearest(some, self.k)
                else:
                    distances, there, hasty = nearest_of(index, some, self.k, self.metric, hasty)
                part = np.empty((len(distances), *found.shape[1:]))
                part[:, 0] = distances
                part[:, 1] = np.where(there < 0, there, there + self.bounds[rank] + begin).view(np.float64)
                part[:, 2:] = near[there].swapaxes(1, 2) if len(near) else 0  # of no place: never among the nearest
                before = found[first : first + len(part)]
                if number:  # of rows that come before those of this part
                    part = np.stack(_merged(list(np.moveaxis(np.stack([before, part]), 2, 0))), axis=1)
                before[:] = part
        came = task.comm.exchange_rows(found.reshape(len(found), -1), np.diff(self.shares))
        of_ranks = np.moveaxis(came.reshape(size, -1, found.shape[1], self.k), 2, 0)
        return _merged([of_ranks[0], np.ascontiguousarray(of_ranks[1]).view(np.int64), *of_ranks[2:]])


def _merged(found: list[np.ndarray]) -> list[np.ndarray]:
    """Merge what the ranks found, arrays of shape (size, n_queries, k), by what is compared, the first of them.

    Of rows that are equally near, the one with the lowest index comes first.
    """
    if len(found[0]) == 1:
        return [each[0] for each in found]
    k = found[0].shape[2]
    beside = [np.concatenate(list(each), axis=1) for each in found]
    # Stable: the rows of a rank come before those of the next.
    order = np.argsort(beside[0], axis=1, kind="stable")[:, :k]
    return [np.take_along_axis(each, order, 1) for each in beside]


def _others(found: list[np.ndarray], own: np.ndarray) -> list[np.ndarray]:
    """Without each row itself, or without the first where as many rows are equal to it; the second array is indices."""
    n, k = found[1].shape
    other = found[1] != own[:, None]
    other[other.all(axis=1), 0] = False
    return [each[other].reshape(n, k - 1) for each in found]


@task("neighbors.within")
def _within(
    task: Task,
    index: str,
    metric: tuple[str, float],
    bounds: list[int],
    queries: SharedArray | Source,
    radius: float,
    power: float,
    rows: dict[str, Any] | None = None,
) -> Within:
    """Return this rank's rows that are no farther than a radius from each query: their number, how far, and which.

    What is compared is the distance, in units of the rows, to a power.
    """
    how = Metric(*metric)
    mine = index_of(task, index, how.name, how.power, rows)
    with np.errstate(over="ignore"):  # then every row is near
        limit = float((radius / np.float64(mine.unit) ** (how.power / power)) ** power)
    rank = task.comm.rank
    n_own = bounds[rank + 1] - bounds[rank]
    task.show(rows=n_own)
    found = [(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))]  # query, what is compared, row
    with task.on_host():
        for number, (begin, part) in enumerate(parts_of(task, mine)):
            for first, some in _pieces(task, part, queries, rows_at_a_time(mine, number, bounds[-1]), how):
                if isinstance(part, SparseIndex):
                    each, near, there = part.within(some, limit)
                else:
                    each, near, there = within_of(part, some, limit, how)
                found.append((np.repeat(np.arange(first, first + len(each)), each), near, there + begin))
    asked, compared, places = (np.concatenate(each) for each in zip(*found, strict=True))
    if isinstance(mine, IndexInParts):  # by queries, as if all rows had come at once
        order = np.argsort(asked, kind="stable")
        asked, compared, places = asked[order], compared[order], places[order]
    counts, places = np.bincount(asked, minlength=queries.shape[0]), places + bounds[rank]
    return {"rows": n_own, "counts": counts, "compared": compared, "places": places, "unit": mine.unit}
