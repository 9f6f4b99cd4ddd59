"""Random forests: each rank grows its share of the trees, from the places of all rows in one byte each.

The ranks of a host share the places, and each host has those of all rows. A tree depends only on the rows in their
order and on its own seed, so the forest is the same for any number of ranks. The rows that a tree gets are drawn as
scikit-learn draws them [1]_.

References
----------
.. [1] L. Breiman, "Random Forests", Machine Learning 45 (2001).
"""

from __future__ import annotations

import itertools
import os
import queue
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.dataset import array_of, data_of, on_host, write_block
from xpulab.engine.engine import Task, task
from xpulab.exceptions import HandleError
from xpulab.kernels.on_cpu.forests import Edges, Grown, Room, Rules, add_unsampled, add_values, grow_tree
from xpulab.kernels.rows import Rows
from xpulab.sharing.memory import SharedBlock

__all__ = ["Forest", "drawn_weights"]

_LOOK = 0.1  # seconds between two looks for a request to stop
_PIECE = 16384  # rows that are followed through one tree before the next


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
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    y: dict[str, Any],
    shares: dict[str, Any] | None,
    classes: list[int],
    seeds: list[int],
    growth: dict[str, Any],
    draws: int | None,
    by_weight: bool,
    balanced: bool,
    oob: bool,
) -> dict[str, Any]:
    """Grow the trees of this rank: of each `size` in a row the one that has the place of its rank.

    Parameters
    ----------
    task : Task
    source, weights : dict
        The rows; they have no weights.
    y : dict
        Targets of all rows, or numbers of their classes: float64 of shape (n_samples, n_outputs).
    shares : dict or None
        Weights of all rows, float64 of shape (n_samples,).
    classes : list of int
        Number of classes of each output; 0 for numbers.
    seeds : list of int
        One for each tree.
    growth : dict
        Fields of `Rules`.
    draws : int or None
        Number of rows that are drawn for a tree; None for all rows, once each.
    by_weight : bool
        Whether rows are drawn in proportion to `shares`, or the counts of the rows are multiplied by them.
    balanced : bool
        Whether the classes that were drawn for a tree get weights.
    oob : bool
        Whether the rows that were not drawn are predicted.

    Returns
    -------
    dict
        ``nodes`` and ``values`` (see `Task.given`), ``counts`` of nodes and ``depths`` by tree; on rank 0
        ``oob`` (sums) and ``times`` (how often each row was not drawn).
    """
    data = data_of(task, source)
    target, shared = array_of(y), None if shares is None else array_of(shares)
    task.show(doing="finding the edges of the columns")
    rows = _in_float32(task, data.rows)
    edges = _edges(task, rows, data.bounds)
    with _shared(task, (data.n_samples, rows.shape[1]), np.uint8) as places:
        first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
        places[first:last] = mine = edges.places(rows)
        del rows
        _take_from_other_hosts(task, mine, places, data.bounds)
        del mine
        task.comm.allgather(None)  # all have written
        made = Rules(**growth)
        rooms: queue.SimpleQueue[_Place] = queue.SimpleQueue()
        threads = max(1, min(len(os.sched_getaffinity(0)), -(-len(seeds) // task.comm.size)))
        every = [_Place(Room(data.n_samples, places.shape[1], tuple(classes)), oob) for _ in range(threads)]
        for place in every:
            rooms.put(place)

        def one(seed: int) -> Grown:
            drawn = drawn_weights(seed, data.n_samples, draws, shared, by_weight, balanced, target)
            place = rooms.get()
            try:
                tree = grow_tree(places, drawn, edges, target, made, seed, place.room)
                if oob:
                    add_unsampled(places, drawn, tree, place.sums, place.times)
                return tree
            finally:
                rooms.put(place)

        trees = _in_threads(task, one, seeds[task.comm.rank :: task.comm.size], threads)
    found = _lent(task, trees)
    if oob:
        found |= {"oob": task.comm.reduce(sum(place.sums for place in every))}
        found |= {"times": task.comm.reduce(sum(place.times for place in every))}
    return found


class _Place:
    """What a thread needs for its trees."""

    def __init__(self, room: Room, oob: bool) -> None:
        self.room = room
        n = len(room.rows) if oob else 0
        self.sums: Any = np.zeros((n, *room.shape))
        self.times: Any = np.zeros(n)


def _in_float32(task: Task, rows: Rows) -> np.ndarray:
    """Return the rows of this rank in float32, as scikit-learn's trees take them.

    Raises
    ------
    ValueError
        If a number of any rank is too large for float32; all ranks raise it.
    """
    made = on_host(rows, np.float32)
    if any(task.comm.allgather(bool(np.isinf(made).any()))):
        raise ValueError("Input X contains infinity or a value too large for dtype('float32').")
    return made


@contextmanager
def _shared(task: Task, shape: tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
    """Open an array of this host that its ranks share, until all have left the context."""
    host = task.engine.host
    block = SharedBlock.create(int(np.prod(shape)) * np.dtype(dtype).itemsize) if host.leads else None
    path: Any = task.comm.allgather(block.path if block else None)[host.leaders[host.rank]]
    with block or SharedBlock.open(path, writable=True) as opened:
        array = opened.array(shape, dtype)
        task.comm.allgather(None)  # all have opened it
    yield array


def _edges(task: Task, rows: np.ndarray, bounds: list[int]) -> Edges:
    """Edges from the columns of all rows; each rank sorts some of the columns."""
    n_features, comm = rows.shape[1], task.comm
    with _columns(task, rows, bounds) as columns:
        mine = _in_threads(task, Edges.of_column, columns, len(os.sched_getaffinity(0)))
    every = comm.allgather(mine)
    return Edges.between([every[f % comm.size][f // comm.size] for f in range(n_features)])


@contextmanager
def _columns(task: Task, rows: np.ndarray, bounds: list[int]) -> Iterator[list[np.ndarray]]:
    """Open the columns of all rows that this rank sorts: of each `size` in a row the one that has the place of it."""
    n_features, comm = rows.shape[1], task.comm
    if not _several(task):
        with _shared(task, (n_features, bounds[-1]), np.float32) as columns:
            columns[:, bounds[comm.rank] : bounds[comm.rank + 1]] = rows.T
            comm.allgather(None)  # all have written
            yield [columns[f] for f in range(comm.rank, n_features, comm.size)]
        return
    # Each rank gets its columns only, from all ranks.
    order = [f for rank in range(comm.size) for f in range(rank, n_features, comm.size)]
    counts = np.array([len(range(rank, n_features, comm.size)) for rank in range(comm.size)])
    came = comm.exchange_rows(rows.T[order].reshape(-1, 1), counts * len(rows)).ravel()
    width = int(counts[comm.rank])
    parts = [came[width * first : width * last].reshape(width, -1) for first, last in itertools.pairwise(bounds)]
    yield list(np.concatenate(parts, axis=1)) if width else []


def _several(task: Task) -> bool:
    """Whether the ranks are on several hosts."""
    return len(set(task.engine.host.leaders[: task.comm.size])) > 1


def _take_from_other_hosts(task: Task, mine: np.ndarray, places: np.ndarray, bounds: list[int]) -> None:
    """Send this rank's rows to the first rank of each other host, which writes those of all other hosts into `places`.

    All ranks call this together.
    """
    if not _several(task):
        return
    host, comm = task.engine.host, task.comm
    leaders = host.leaders[: comm.size]
    to = [rank for rank, leader in enumerate(leaders) if leader == rank != leaders[comm.rank]]
    counts = np.zeros(comm.size, np.int64)
    counts[to] = len(mine)
    came, first = comm.exchange_rows(np.concatenate([mine[:0], *[mine] * len(to)]), counts), 0
    if not host.leads:
        return
    for rank, (begin, end) in enumerate(itertools.pairwise(bounds)):
        if leaders[rank] != comm.rank:
            places[begin:end] = came[first : first + end - begin]
            first += end - begin


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
    random = np.random.RandomState(seed)
    if shares is not None and by_weight:
        indices = random.choice(n, draws, p=shares / np.sum(shares))
    else:
        indices = random.randint(0, n, draws)
    counts: np.ndarray = np.bincount(indices, minlength=n).astype(np.float64)
    drawn = counts if shares is None or by_weight else counts * shares
    if balanced:
        drawn = drawn * np.prod([_balanced(classes, counts) for classes in y.T.astype(np.int64)], axis=0)
    return drawn


def _balanced(classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Weights of rows that give each class that was drawn the same sum; 0 for classes that were not."""
    by_class = np.bincount(classes, weights=counts)
    present = by_class > 0
    weight = np.zeros(len(by_class))
    weight[present] = counts.sum() / (present.sum() * by_class[present])
    return weight[classes]


def _in_threads(task: Task, function: Any, arguments: list[Any], threads: int) -> list[Any]:
    """Call a function for each argument in threads; a request to stop ends the wait. The machine code holds no lock."""
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(function, argument) for argument in arguments]
        pending: set[Future[Any]] = set(futures)
        try:
            while pending:
                task.show(doing=f"{len(futures) - len(pending)} of {len(futures)}")
                task.leave_if_cancelled()
                task.check_peers()
                pending = wait(pending, _LOOK, FIRST_COMPLETED).not_done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _lent(task: Task, trees: list[Grown]) -> dict[str, Any]:
    """Return the trees."""
    found: dict[str, Any] = {"counts": [len(tree.nodes) for tree in trees], "depths": [tree.depth for tree in trees]}
    for name in ("nodes", "values"):
        found[name] = task.given([getattr(tree, name) for tree in trees])
    return found


@task("forest.predict")
def predict(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    target: dict[str, Any],
    forest: str,
    sent: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write, for each row, the mean of the values of the leaves that it comes to.

    Parameters
    ----------
    task : Task
    source, weights : dict
        The rows; they have no weights.
    target : dict
        Where the result goes: float64 of shape (n_samples, width).
    forest : str
        Id of the forest that the ranks keep.
    sent : dict or None
        Places of its arrays, if it comes with the task.
    """
    if sent is not None:
        # Copied: the memory is the notebook's.
        task.engine.handles[forest] = Forest(**{name: array_of(place).copy() for name, place in sent.items()})
    kept = task.engine.handles.get(forest)
    if not isinstance(kept, Forest):
        raise HandleError("the trees are gone from the engines; type: predict(X) again")
    data = data_of(task, source)
    rows = _in_float32(task, data.rows)
    width = kept.values.shape[1]
    sums = np.zeros((len(rows), width))

    def follow(first: int) -> None:
        part = slice(first, first + _PIECE)
        add_values(rows[part], kept.nodes, kept.roots, kept.values, sums[part])

    _in_threads(task, follow, list(range(0, len(rows), _PIECE)), len(os.sched_getaffinity(0)))
    sums /= len(kept.roots)
    write_block(task, target, data.bounds, [sums])
    return {}
