"""The tree of all rows by mutual reachability, over the ranks, from which HDBSCAN takes clusters [1]_.

The spanning tree of least total length is found in rounds [2]_: each set of rows, at first each row, is joined with the
set that is nearest to it. Each rank has a tree of all rows, and looks for what is nearest to its share of them. A row
whose nearest row of another set is still in another set is not looked at again, nor is one that cannot be nearer to
another set than a row of its own set is [3]_. With more than a few features a search of the tree visits most of it. The
nearest rows of each row are then found by comparing all rows, listed, and looked at first. Once there are few sets, the
rest is looked for by comparing rows with those of other sets, the nearest sets first: a row is at least as far from a
set as from the sphere around it.

References
----------
.. [1] R. J. G. B. Campello, D. Moulavi and J. Sander, "Density-based clustering based on hierarchical density
   estimates", PAKDD 2013, pages 160 to 172.
.. [2] O. Boruvka, "O jistem problemu minimalnim", Prace Moravske Prirodovedecke Spolecnosti 3 (1926), 37-58.
.. [3] W. B. March, P. Ram and A. G. Gray, "Fast Euclidean minimum spanning tree: algorithm, analysis, and
   applications", KDD 2010, pages 603 to 612.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from xpulab.engine.dataset import data_of, on_host, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.exact_neighbors import Metric, nearest_of, queries_at_a_time
from xpulab.kernels.neighbors import Index, normalised
from xpulab.kernels.on_cpu.tree_search import Reaches, hung_up, nearest_in, unite_in_turn
from xpulab.kernels.on_cpu.trees import Tree
from xpulab.kernels.rows import Rows
from xpulab.sharing.sources import Source, Target

__all__ = ["joined_rows"]

_KINDS = {"euclidean": "squares", "cosine": "squares", "manhattan": "absolute", "chebyshev": "largest"}
_ROWS = 1 << 16  # whose neighbours are in memory at a time
_FEW_FEATURES = 8  # up to so many, rows are looked for in the tree alone
_LISTED = 16  # nearest rows of each row, at least
_FEW_SETS = 64  # around which there are spheres
_ASKED = 4  # nearest rows of another set that are looked at
_ROUNDED = 1 - 1e-6  # bounds are multiplied by it, so that rounding makes them no larger than they are
_EUCLIDEAN = Metric("euclidean", 2.0)
_LARGEST = 1e150  # with larger numbers, squares may leave the range of float64
_FINITE, _INFINITE, _MISSING = 0, -2, -3  # the last two are scikit-learn's labels for rows with infinity, and with NaN

_Floats = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]
_Number = TypeVar("_Number", np.float64, np.int64)


def joined_rows(
    task: Task, rows: _Floats, metric: str, scale: float, min_samples: int
) -> tuple[_Integers, _Integers, _Floats]:
    """Return the edges of the spanning tree of all rows, by their lengths, and then by the numbers of their rows.

    Of edges that are as long, those of rows with lower numbers come first, so that there is one such tree.

    Parameters
    ----------
    task : Task
    rows : numpy.ndarray of float64 of shape (n, n_features)
        Those of all ranks.
    metric : {"euclidean", "cosine", "manhattan", "chebyshev"}
        Lengths are squares for "euclidean", and twice the distances for "cosine".
    scale : float
        Distances of two rows, and not those of cores, are multiplied by it.
    min_samples : int
        The core distance of a row is that to its nearest rows of so many, of which it is the first itself.

    Returns
    -------
    first, second : numpy.ndarray of int64 of shape (n - 1,)
        The first row is the one that is nearer to row 0 in the tree.
    lengths : numpy.ndarray of float64 of shape (n - 1,)
        The same on all ranks.

    Raises
    ------
    ValueError
        If distances are out of the range of float64.
    """
    kind, n = _KINDS[metric], len(rows)
    task.show(doing="building a tree of all rows")
    if metric == "cosine":
        rows = _directions(rows)
    tree = Tree.of(rows.copy())
    rows = rows[tree.order]
    leaves = [tree.n_leaves * rank // task.comm.size for rank in range(task.comm.size + 1)]
    bounds = [n * leaf >> int(tree.shape[1]) for leaf in leaves]
    begin, end = bounds[task.comm.rank : task.comm.rank + 2]
    lists = None
    if kind == "squares" and rows.shape[1] > _FEW_FEATURES and np.abs(rows).max() < _LARGEST and task.device.is_cpu:
        lists = _Lists.of(task, rows, begin, end, min(max(min_samples, _LISTED), n))
        mine = lists.compared[:, min_samples - 1]
    else:
        mine = _cores(task, tree, rows[begin:end], min_samples, kind)
    cores = task.comm.allgather_rows(mine, np.diff(bounds))
    least = tree.by_node(cores, np.minimum), tree.by_node(tree.order, np.minimum)
    reaches = Reaches(tree, rows, kind, scale, cores, *least)
    first, second, lengths = _spanning_tree(task, reaches, lists, begin, end)
    order = np.lexsort((second, first, lengths))
    first, second = first[order], second[order]
    ahead = hung_up(first, second)
    return np.where(ahead, first, second), np.where(ahead, second, first), lengths[order]


def _directions(rows: _Floats) -> _Floats:
    """Return rows of length 1, whose squared distance is twice that of their directions; that of a row of zeros is 2.

    Raises
    ------
    ValueError
        If there are several rows of zeros, which are as far from each other.
    """
    zeros = (rows == 0).all(axis=1)
    if zeros.sum() > 1:
        raise ValueError(
            f"X has {zeros.sum():,} rows of zeros, which have no direction, and metric='cosine' was given: leave them "
            "out, or choose another metric"
        )
    return np.column_stack([normalised(rows), zeros]) if zeros.any() else normalised(rows)


def _cores(task: Task, tree: Tree, rows: _Floats, k: int, kind: str) -> _Floats:
    """Return for some rows what is compared with the last of their k nearest rows, of which each is one itself."""
    cores = np.empty(len(rows))
    for first in range(0, len(rows), _ROWS):

        def look(done: int, before: int = first) -> None:
            task.leave_if_cancelled()
            task.check_peers()
            task.show(doing="core distances: row", done=before + done, steps=len(rows))

        some = np.ascontiguousarray(rows[first : first + _ROWS])
        cores[first : first + len(some)] = nearest_in(tree, some, np.arange(len(some)), k, kind, look)[0][:, -1]
    return cores


@dataclass(frozen=True)
class _Lists:
    """The nearest rows of each row of this rank's share, itself included, in ascending order.

    Attributes
    ----------
    begin : int
        The place of the first of these rows among all.
    compared : numpy.ndarray of float64 of shape (n_own, k)
        Squared distances.
    places : numpy.ndarray of int32 of shape (n_own, k)
    rows : numpy.ndarray of shape (n, n_features)
        All rows, in float32 if this changes none: products then take half the time.
    """

    begin: int
    compared: _Floats
    places: npt.NDArray[np.int32]
    rows: npt.NDArray[np.floating[Any]]

    @classmethod
    def of(cls, task: Task, rows: _Floats, begin: int, end: int, k: int) -> _Lists:
        short = rows.astype(np.float32)
        made = cls(begin, np.empty((end - begin, k)), np.empty((end - begin, k), np.int32), rows)
        made = replace(made, rows=short) if (short == rows).all() else made
        index = Index.of(Rows.upload(task.device, made.rows))
        hasty, step = True, queries_at_a_time(len(rows), rows.shape[1])
        with task.on_host():
            for first in range(0, end - begin, step):
                task.show(doing="core distances: row", done=first, steps=end - begin)
                task.leave_if_cancelled()
                task.check_peers()
                some = rows[begin + first : min(begin + first + step, end)]
                found = slice(first, first + len(some))
                made.compared[found], made.places[found], hasty = nearest_of(index, some, k, _EUCLIDEAN, hasty)
        return made

    def look(
        self, reaches: Reaches, again: _Integers, sets: _Integers, limits: _Floats, lower: _Floats, partners: _Integers
    ) -> _Integers:
        """Look for the least reach of rows to a row of another set among their lists; return the rows left to look for.

        The arguments and what becomes of them are those of `Reaches.look_outside`.
        """
        places = self.places[again - self.begin]
        compared = self.compared[again - self.begin] * reaches.scale
        reach = np.maximum(np.maximum(compared, reaches.cores[again][:, None]), reaches.cores[places])
        reach[sets[places] == sets[again][:, None]] = np.inf
        least = reach.min(axis=1)
        numbers = np.where(reach == least[:, None], reaches.tree.order[places], len(sets))
        found = np.take_along_axis(places, numbers.argmin(axis=1)[:, None], 1)[:, 0]
        # Rows that are not listed are at least as far as the last one that is.
        sure = (least < compared[:, -1]) | (places.shape[1] == len(sets))
        lower[again] = np.where(sure, least, np.maximum(lower[again], compared[:, -1]))
        partners[again[sure]] = found[sure]
        np.minimum.at(limits, sets[again], least)
        return again[~sure]


class _Groups:
    """The sets of a round, with the spheres around them; the sets of all later rounds are made of these.

    Parameters
    ----------
    task : Task
    reaches : Reaches
    lists : _Lists
    mine : numpy.ndarray of int64
        This rank's rows, by their places.
    sets : numpy.ndarray of int64 of shape (n,)
    count : int
        Number of sets.
    """

    def __init__(
        self, task: Task, reaches: Reaches, lists: _Lists, mine: _Integers, sets: _Integers, count: int
    ) -> None:
        self._task, self._reaches, self._begin, self._of_rows = task, reaches, lists.begin, sets
        rows, own = reaches.rows[mine], sets[mine]
        sums = np.array([rows[own == one].sum(axis=0) for one in range(count)])
        centers = task.comm.allreduce(sums) / np.bincount(sets, minlength=count)[:, None]
        gaps = np.column_stack([np.sqrt(np.square(rows - center).sum(axis=1)) for center in centers])
        radii = np.array([gaps[own == one, one].max(initial=0.0) for one in range(count)])
        outside = np.maximum(gaps - task.comm.allreduce(radii, np.maximum), 0.0)
        self._bounds = _ROUNDED * reaches.scale * np.square(outside)
        apart = np.square(centers[:, None] - centers).sum(axis=2)
        self._nearest = np.argsort(apart, axis=1, kind="stable")
        self._places = [np.flatnonzero(sets == one) for one in range(count)]
        self._rows = lists.rows
        self.sets = np.arange(count)

    def look(
        self, again: _Integers, sets: _Integers, limits: _Floats, lower: _Floats, partners: _Integers
    ) -> _Integers:
        """Look for the least reach of rows to a row of another set; return the rows left to look for.

        The arguments and what becomes of them are those of `Reaches.look_outside`.
        """
        numbers, n = self._reaches.tree.order, len(sets)
        reach, number, to = np.full(n, np.inf), np.full(n, n), np.full(n, -1)
        left = np.zeros(n, bool)
        for one, near in enumerate(self._nearest):
            some, own = again[self._of_rows[again] == one], self.sets[one]
            others = near[self.sets[near] != own]
            # The nearest group alone, because what is found there leaves out rows of the others.
            for part in (others[:1], others[1:]) if len(some) else ():
                some = some[lower[some] <= limits[own]]
                may = self._bounds[some - self._begin][:, part] <= limits[own]
                asked, part = some[may.any(axis=1)], part[may.any(axis=0)]
                if not len(asked):
                    continue
                self._task.leave_if_cancelled()
                least, partner, sure = self._nearest_of_groups(asked, part)
                left[asked[~sure]] = True
                nearer = (least < reach[asked]) | ((least == reach[asked]) & (numbers[partner] < number[asked]))
                found = asked[nearer]
                reach[found], to[found], number[found] = least[nearer], partner[nearer], numbers[partner[nearer]]
                limits[own] = min(limits[own], least.min())
        limit = limits[sets[again]]
        done = ~left[again]
        first = done & (reach[again] <= limit)
        lower[again[done]] = np.maximum(lower[again[done]], np.minimum(reach[again[done]], limit[done]))
        partners[again[first]] = to[again[first]]
        return again[~done]

    def _nearest_of_groups(
        self, asked: _Integers, groups: _Integers
    ) -> tuple[_Floats, _Integers, npt.NDArray[np.bool_]]:
        """Return the least reach of rows to those of some groups, the row there, and whether no other is as near."""
        reaches = self._reaches
        there = np.concatenate([self._places[group] for group in groups])
        index = Index.of(Rows.upload(self._task.device, self._rows[there]))
        k, step = min(_ASKED, len(there)), queries_at_a_time(len(there), index.n_features)
        parts = (np.ascontiguousarray(reaches.rows[asked[at : at + step]]) for at in range(0, len(asked), step))
        found = [nearest_of(index, part, k, _EUCLIDEAN, True)[:2] for part in parts]
        compared, places = (np.concatenate(each) for each in zip(*found, strict=True))
        places, compared = there[places], compared * reaches.scale
        every = np.maximum(np.maximum(compared, reaches.cores[asked][:, None]), reaches.cores[places])
        least = every.min(axis=1)
        lowest = np.where(every == least[:, None], reaches.tree.order[places], len(reaches.rows)).argmin(axis=1)
        return least, places[np.arange(len(asked)), lowest], (least < compared[:, -1]) | (k == len(there))


def _spanning_tree(
    task: Task, reaches: Reaches, lists: _Lists | None, begin: int, end: int
) -> tuple[_Integers, _Integers, _Floats]:
    """Return the edges, with the lower number of their rows first; this rank looks at the places from begin to end."""
    n, numbers = len(reaches.tree), reaches.tree.order
    places = np.empty(n, np.int64)
    places[numbers] = np.arange(n)
    sets, count = np.arange(n), n
    lower, partners = reaches.cores.copy(), np.full(n, -1)
    mine = np.arange(begin, end)
    edges, groups = list[tuple[_Integers, _Integers, _Floats]](), None
    while count > 1:
        task.show(doing="joining rows: edge", done=n - count, steps=n - 1)
        task.check()
        to = partners[mine]
        to[(to >= 0) & (sets[to] == sets[mine])] = -1
        partners[mine] = to
        limits = _least_of_sets(task, lower[mine[to >= 0]], sets[mine[to >= 0]], count, np.inf)
        again = mine[to < 0]
        if lists is not None and groups is None and count <= _FEW_SETS:
            groups = _Groups(task, reaches, lists, mine, sets, count)
        with task.on_host():
            if lists is not None:
                again = lists.look(reaches, again, sets, limits, lower, partners)
                again = again[lower[again] <= limits[sets[again]]]
            if groups is not None:
                again = groups.look(again, sets, limits, lower, partners)
            again = again[np.argsort(lower[again], kind="stable")]
            reaches.look_outside(again, sets, limits, lower, partners, lambda done: task.leave_if_cancelled())

        there = mine[partners[mine] >= 0]
        nearest = _least_of_sets(task, lower[there], sets[there], count, np.inf)
        if not np.isfinite(nearest).all():
            raise ValueError("distances of rows are out of the range of float64: divide X by a large number")
        there = there[lower[there] == nearest[sets[there]]]
        ends = np.sort([numbers[there], numbers[partners[there]]], axis=0)
        first = _least_of_sets(task, ends[0], sets[there], count, n)
        chosen = ends[0] == first[sets[there]]
        second = _least_of_sets(task, ends[1][chosen], sets[there][chosen], count, n)

        order = np.lexsort((second, first, nearest))
        taken, renamed = unite_in_turn(order, sets[places[first]], sets[places[second]], count)
        edges.append((first[taken], second[taken], nearest[taken]))
        sets, count = renamed[sets], count - int(taken.sum())
        if groups is not None:
            groups.sets = renamed[groups.sets]
    left = np.concatenate([edge[0] for edge in edges])
    right = np.concatenate([edge[1] for edge in edges])
    return left, right, np.concatenate([edge[2] for edge in edges])


def _least_of_sets(
    task: Task, values: npt.NDArray[_Number], sets: _Integers, count: int, most: float
) -> npt.NDArray[_Number]:
    """Return the least value of each set, of all ranks, and `most` for a set without any."""
    least = np.full(count, most, values.dtype)
    np.minimum.at(least, sets, values)
    return task.comm.allreduce(least, np.minimum)


@task("hierarchy")
def _hierarchy(
    task: Task, source: Source, weights: None, metric: str, scale: float, min_samples: int, target: Target
) -> Mapping[str, object]:
    """Write the number of each row among those of all ranks; rank 0 returns the edges of the tree of rows.

    ``first``, ``second`` and ``lengths`` are those of `joined_rows` for the rows without NaN and infinity, and
    ``outside`` has the label of each row with NaN or infinity, and 0 for the others; see `Task.arrays_for_client`.
    """
    data = data_of(task, source)
    mine = on_host(data.rows, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = mine.sum(axis=1)
    outside = np.where(np.isnan(sums), _MISSING, np.where(np.isinf(sums), _INFINITE, _FINITE)).astype(np.int8)
    every, labels = (task.comm.allgather_rows(each, np.diff(data.bounds)) for each in (mine, outside))
    rows = np.ascontiguousarray(every[labels == _FINITE]) if labels.any() else every
    del mine, every
    if len(rows) == 1:
        raise ValueError("n_samples=1 while HDBSCAN requires more than one sample")
    if len(rows) < max(min_samples, 2):
        raise ValueError(f"min_samples ({min_samples}) must be at most the number of samples in X ({len(rows)})")
    edges = joined_rows(task, rows, metric, scale, min_samples)
    first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
    write_block(task, target, data.bounds, [np.arange(first, last)])
    found: dict[str, object] = {"rows": data.rows.n_samples}
    if task.comm.rank == 0:
        names = "first", "second", "lengths", "outside"
        found |= {name: task.arrays_for_client([each]) for name, each in zip(names, (*edges, labels), strict=True)}
    return found
