"""Random forests: each rank grows its share of the trees, from the places of all rows in one byte each.

The ranks of a host share the places, and each host has those of all rows. A tree depends only on the rows in their
order and on its own seed, so the forest is the same for any number of ranks. The rows that a tree gets are drawn as
scikit-learn draws them [1]_.

References
----------
.. [1] L. Breiman, "Random Forests", Machine Learning 45 (2001).
"""

from __future__ import annotations

import os
import queue
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.forests.bins import bins_by_columns, edges_of, in_float32, in_threads
from xpulab.engine.algorithms.forests.targets import opened_shares, opened_targets
from xpulab.engine.dataset import Data, PassedRows, data_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.host_arrays import shared_by_host, take_from_other_hosts
from xpulab.engine.registry import task
from xpulab.exceptions import HandleError
from xpulab.kernels.on_cpu.forests import Edges, Grown, Rules, Workspace, add_unsampled, add_values, grow_tree
from xpulab.sharing.answers import OwnRows
from xpulab.sharing.sources import BlockRows, HandleTargets, SharedArray, Source, Target

__all__ = ["Forest", "drawn_weights", "followed"]

_LOOK = 0.1  # seconds between two looks for a request to stop
#: Rows that are followed through one tree before the next: with four times as many, a tree is read into the cache less
#: often, which takes a fifth of the time, but each thread should have a piece.
_PIECE, _LONG_PIECE = 16384, 65536
_EXPONENT = 100  # of the largest weight, up to which squares of sums of weights are far from the ends of float64


@dataclass(frozen=True)
class Forest:
    """A fitted forest, as the ranks keep it for predictions.

    Attributes
    ----------
    nodes, roots, values : numpy.ndarray
        As `xpulab.kernels.on_cpu.forests.add_values` takes them.
    """

    nodes: np.ndarray
    roots: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes on the host; the device has none of them."""
        return 0


@task("forest.grow")
def grow(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    y: SharedArray | HandleTargets,
    shares: SharedArray | None,
    classes: list[int],
    seeds: list[int],
    growth: dict[str, Any],
    draws: int | None,
    by_weight: bool,
    balanced: bool,
    oob: bool,
) -> dict[str, Any]:
    """Grow the trees of this rank: the trees rank, rank + size, rank + 2 * size, ...

    Parameters
    ----------
    task : Task
    source : Source
        The rows; they have no weights.
    y : SharedArray or HandleTargets
        Targets of all rows, or numbers of their classes, as for `opened_targets`.
    shares : SharedArray or None
        Weights of all rows, float64 of shape (n_samples,), without those of the classes of `y`.
    classes : list of int
        Number of classes of each output; 0 for numbers.
    seeds : list of int
        One for each tree.
    growth : dict
        Fields of `Rules`.
    draws : int or None
        Number of rows that are drawn for a tree; None for all rows, once each.
    by_weight : bool
        Whether rows are drawn in proportion to the weights, or the counts of the rows are multiplied by them.
    balanced : bool
        Whether the classes that were drawn for a tree get weights.
    oob : bool
        Whether the rows that were not drawn are predicted.

    Returns
    -------
    dict
        ``nodes`` and ``values`` (see `Task.arrays_for_client`), ``counts`` of nodes and ``depths`` by tree; on rank 0
        ``oob`` (sums) and ``times`` (how often each row was not drawn).
    """
    data = Data(task, source)
    rows = None if data.in_passes else data.rows
    target = opened_targets(task, y)
    shared = opened_shares(shares, y, target)
    task.show(doing="finding the edges of the columns")
    with shared_by_host(task, (data.n_samples, data.n_features), np.uint8) as places:
        first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
        if rows is None:
            assert isinstance(source, BlockRows)
            edges = bins_by_columns(task, data, source, places[first:last])
        else:
            numbers = in_float32(task, rows)
            edges = Edges.between(edges_of(task, numbers, data.bounds))
            places[first:last] = edges.bins(numbers)
            del numbers
        del rows
        take_from_other_hosts(task, places[first:last].copy(), places, data.bounds)
        task.comm.allgather(None)  # all have written
        made = Rules(**growth)
        rooms: queue.SimpleQueue[_Place] = queue.SimpleQueue()
        threads = max(1, min(len(os.sched_getaffinity(0)), -(-len(seeds) // task.comm.size)))
        n, d = places.shape
        every = [_Place(Workspace(n, d, tuple(classes), made.criterion), oob) for _ in range(threads)]
        for place in every:
            rooms.put(place)

        def one(seed: int) -> Grown:
            drawn = drawn_weights(seed, data.n_samples, draws, shared, by_weight, balanced, target)
            place = rooms.get()
            try:
                tree = grown_by(places, drawn, edges, target, made, seed, place.room)
                if oob:
                    add_unsampled(places, drawn, tree, place.sums, place.times)
                return tree
            finally:
                rooms.put(place)

        trees = in_threads(task, "tree", one, seeds[task.comm.rank :: task.comm.size], threads)
    found = _lent(task, trees)
    if oob:
        found |= {"oob": task.comm.reduce(sum(place.sums for place in every))}
        found |= {"times": task.comm.reduce(sum(place.times for place in every))}
    return found


def grown_by(places: np.ndarray, drawn: np.ndarray, *how: Any) -> Grown:
    """Grow a tree by weights of any size: the squares of their sums would leave the range of float64."""
    exponent = int(np.frexp(drawn.max())[1])
    if abs(exponent) <= _EXPONENT:
        return grow_tree(places, drawn, *how)
    tree = grow_tree(places, np.ldexp(drawn, -exponent), *how)
    tree.nodes["weighted_n_node_samples"] = np.ldexp(tree.nodes["weighted_n_node_samples"], exponent)
    return tree


class _Place:
    """What a thread needs for its trees."""

    def __init__(self, room: Workspace, oob: bool) -> None:
        self.room = room
        n = room.n_samples if oob else 0
        self.sums: Any = np.zeros((n, *room.shape))
        self.times: Any = np.zeros(n)


def drawn_weights(
    seed: int,
    n: int,
    draws: int | None,
    shares: np.ndarray | None,
    by_weight: bool,
    balanced: bool,
    y: np.ndarray,
) -> np.ndarray:
    """Weights of all rows for one tree; 0 for rows that were not drawn.

    As scikit-learn's `_generate_sample_indices` and its ``compute_sample_weight("balanced", y, indices=indices)``. An
    engine does not import scikit-learn, which takes two seconds.
    """
    if draws is None:
        return np.ones(n) if shares is None else shares
    counts = _times_drawn(seed, n, draws, shares, by_weight)
    drawn = counts if shares is None or by_weight else counts * shares
    if balanced:
        drawn = drawn * np.prod([_balanced(classes, counts) for classes in y.T.astype(np.int64)], axis=0)
    return drawn


def _times_drawn(seed: int, n: int, draws: int, shares: np.ndarray | None, by_weight: bool) -> np.ndarray:
    """How often each of all rows was drawn for one tree, as float64."""
    random = np.random.RandomState(seed)
    if shares is not None and by_weight:
        indices = random.choice(n, draws, p=shares / np.sum(shares))
    else:
        indices = random.randint(0, n, draws)
    return np.bincount(indices, minlength=n).astype(np.float64)


def _balanced(classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Weights of rows that give each class that was drawn the same sum; 0 for classes that were not."""
    by_class = np.bincount(classes, weights=counts)
    present = by_class > 0
    weight = np.zeros(len(by_class))
    weight[present] = counts.sum() / (present.sum() * by_class[present])
    return weight[classes]


def _lent(task: Task, trees: list[Grown]) -> dict[str, Any]:
    """Return the trees."""
    found: dict[str, Any] = {"counts": [len(tree.nodes) for tree in trees], "depths": [tree.depth for tree in trees]}
    for name in ("nodes", "values"):
        found[name] = task.arrays_for_client([getattr(tree, name) for tree in trees])
    return found


@task("forest.predict")
def predict(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    target: Target,
    forest: str,
    sent: dict[str, SharedArray] | None,
) -> dict[str, Any]:
    """Write, for each row, the mean of the values of the leaves that it comes to.

    Parameters
    ----------
    task : Task
    source : Source
        The rows; they have no weights.
    target : Target
        Where the result goes: float64 of shape (n_samples, width).
    forest : str
        Id of the forest that the ranks keep.
    sent : dict of str to SharedArray or None
        Its arrays, if it comes with the task.
    """
    data = data_of(task, source)
    write_block(task, target, data.bounds, [followed(task, data, forest, sent)])
    return {}


def followed(task: Task, data: Data, forest: str, sent: dict[str, SharedArray] | None) -> np.ndarray:
    """Return the mean of the values of the leaves that each row of this rank comes to: (n_own, width).

    `forest` is the id of the forest that the ranks keep, and `sent` has its arrays, if it comes with the task.
    """
    if sent is not None:
        # Copied: the memory is the notebook's.
        task.engine.handles[forest] = Forest(**{name: array.open().copy() for name, array in sent.items()})
    kept = task.engine.handles.get(forest)
    if not isinstance(kept, Forest):
        raise HandleError("the trees are gone from the engines; type: predict(X) again")
    rows = in_float32(task, data.rows)
    sums = np.zeros((len(rows), kept.values.shape[1]))
    threads = len(os.sched_getaffinity(0))
    piece = max(_PIECE, min(_LONG_PIECE, -(-len(rows) // threads)))

    def follow(first: int) -> None:
        part = slice(first, first + piece)
        add_values(rows[part], kept.nodes, kept.roots, kept.values, sums[part])

    in_threads(task, "piece of rows", follow, list(range(0, len(rows), piece)), threads)
    sums /= len(kept.roots)
    return sums


@task("forest.unsampled")
def predict_unsampled(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    target: Target,
    sent: dict[str, SharedArray],
    y: HandleTargets | None,
    shares: SharedArray | None,
    seeds: list[int],
    draws: int,
    by_weight: bool,
) -> OwnRows:
    """Write, for each row, the sums of the values of the trees that were grown without it, and the number of these.

    Parameters
    ----------
    task : Task
    source : Source
        The rows; they have no weights.
    target : Target
        Where the result goes: float64 of shape (n_samples, width + 1), with the number in the last column.
    sent : dict of str to SharedArray
        The arrays of the `Forest`.
    y : HandleTargets or None
        The targets, if their classes have weights.
    shares, seeds, draws, by_weight : Any
        As for "forest.grow", of all trees of the forest.
    """
    data = data_of(task, source)
    rows = in_float32(task, data.rows)
    forest = Forest(**{name: array.open() for name, array in sent.items()})
    shared = opened_shares(shares, y, None if y is None else opened_targets(task, y))
    first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
    found = np.zeros((len(rows), forest.values.shape[1] + 1))

    def follow(number: int) -> tuple[np.ndarray, np.ndarray]:
        times = _times_drawn(seeds[number], data.n_samples, draws, shared, by_weight)
        others = np.flatnonzero(times[first:last] == 0)
        values = np.zeros((len(others), forest.values.shape[1]))
        add_values(rows[others], forest.nodes, forest.roots[number : number + 1], forest.values, values)
        return others, values

    threads = len(os.sched_getaffinity(0))
    for begin in range(0, len(seeds), threads):  # a few trees at a time, whose values are added in their order
        numbers = list(range(begin, min(begin + threads, len(seeds))))
        for others, values in in_threads(task, "tree", follow, numbers, threads, begin, len(seeds)):
            found[others, :-1] += values
            found[others, -1] += 1
    write_block(task, target, data.bounds, [found])
    return {"rows": len(rows)}
