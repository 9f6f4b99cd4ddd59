"""The task that selects rows, in any order, and moves them between the ranks."""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.passes import whole_rows
from xpulab.engine.algorithms.sparse_rows.scaling import keep_stored
from xpulab.engine.algorithms.sparse_rows.selection import selected_sparse
from xpulab.engine.dataset import give_rows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.row_passes import consecutive, take
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import StoredRows
from xpulab.sharing.sources import Handle, SharedArray, Source

__all__ = ["selected"]

#: Bytes that a rank sends between two looks for an interrupt. With 2 MiB the ranks meet so often that a split of narrow
#: rows takes a half more time where cores are busy, and with 64 MiB an interrupt waits for half a second.
_PIECE = 16 << 20
_NUMBERS = 1 << 18  # numbers of rows that are looked at together, which a core's cache holds
_SPREAD = 8  # times as many rows as are chosen take less time to copy one after the other than the chosen ones alone


def selected(task: Task, rows: Rows, bounds: list[int], chosen: np.ndarray, new_bounds: list[int]) -> Rows:
    """Select rows by their index in the whole data set. Each rank sends the rows that other ranks get.

    Parameters
    ----------
    task : Task
    rows : Rows
        This rank's block.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    chosen : numpy.ndarray of int64
        Indices of the rows in the new order; the same on all ranks.
    new_bounds : list of int
        Rank r gets ``chosen[new_bounds[r] : new_bounds[r + 1]]``.

    Returns
    -------
    Rows
        The rows of this rank.
    """
    comm = task.comm
    mine, places = _of_this_rank(task, chosen, *bounds[comm.rank : comm.rank + 2])
    first, last = new_bounds[comm.rank : comm.rank + 2]
    block = np.empty((last - first, rows.n_features), rows.dtype)
    step = max(1, _PIECE // (rows.n_features * rows.dtype.itemsize))
    most = comm.allreduce(np.array([len(mine)]), np.maximum)[0]
    for start in range(0, int(most), step):
        task.check()
        piece = slice(start, start + step)
        _exchange(task, rows, mine[piece], places[piece], new_bounds, block)

    def fill(first: int, part: np.ndarray) -> None:
        task.leave_if_cancelled()
        part[...] = block[first : first + len(part)]

    return Rows.read(task.device, block.shape, block.dtype, fill)[0]


def _of_this_rank(task: Task, chosen: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of this rank's rows are chosen, in ascending order, and their new places.

    Of rows with few columns, numbers like these take as long as the rows themselves. So each rank looks at its own
    rows alone, and puts their places in order by writing them where the rows are, not by sorting.
    """
    narrow = np.int32 if len(chosen) <= np.iinfo(np.int32).max else np.int64
    of_rows: np.ndarray = np.full(last - first, -1, narrow)
    n = 0
    for start in range(0, len(chosen), _NUMBERS):
        task.leave_if_cancelled()
        some = chosen[start : start + _NUMBERS]
        at = np.flatnonzero((some >= first) & (some < last))
        of_rows[some[at] - first] = at + start
        n += len(at)
    mine = np.flatnonzero(of_rows >= 0)
    if len(mine) == n:
        return mine, of_rows[mine]
    places = np.flatnonzero((chosen >= first) & (chosen < last))  # a row was chosen twice
    places = places[np.argsort(chosen[places], kind="stable")]
    return chosen[places] - first, places


def _exchange(
    task: Task, rows: Rows, mine: np.ndarray, places: np.ndarray, new_bounds: list[int], block: np.ndarray
) -> None:
    """Send chosen rows to the ranks that get them, and write those that this rank gets into `block`.

    Parameters
    ----------
    task : Task
    rows : Rows
    mine : numpy.ndarray of int64 of shape (n,)
        Indices of this rank's rows that are chosen, in ascending order.
    places : numpy.ndarray of int of shape (n,)
        Their new places.
    new_bounds : list of int
    block : numpy.ndarray of shape (n_new, n_features)
    """
    comm = task.comm
    owners = np.searchsorted(np.asarray(new_bounds[1:]), places, side="right")
    by_owner = np.argsort(owners.astype(np.int16), kind="stable")  # 16 bits are sorted in two passes
    counts = np.bincount(owners, minlength=comm.size)
    came = comm.exchange_rows(_taken(rows, mine, by_owner), counts)
    to = comm.exchange_rows(places[by_owner, np.newaxis].astype(np.int64), counts)[:, 0]
    _items(block)[to - new_bounds[comm.rank]] = _items(came)


def _items(rows: np.ndarray) -> np.ndarray:
    """Return rows in C order as an item each, (n,), which NumPy copies at once and not number by number."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]


def _taken(rows: Rows, ascending: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Copy some rows, whose ascending indices are put into another order.

    A row's numbers are in a cache line each, so that rows near to each other are copied with those between them.
    """
    first, last = (int(ascending[0]), int(ascending[-1]) + 1) if len(ascending) else (0, 0)
    if last - first <= _SPREAD * len(ascending):
        return consecutive(rows, first, last, copied=False).take(ascending[order] - first, axis=0)
    return take(rows, ascending[order])


@task("select")
def _select(
    task: Task,
    source: Source,
    weights: None,
    chosen: SharedArray,
    new_bounds: list[int],
    kept: Handle,
) -> StoredRows:
    """Select rows of a handle, and keep them under a new handle."""
    rows, places = whole_rows(task, source), chosen.open()
    if isinstance(rows, SparseRows):
        few = selected_sparse(task, rows, source.bounds, places, new_bounds)
        return {"rows": rows.n_samples, "stored": keep_stored(task, few, kept)}
    made = selected(task, rows, source.bounds, places, new_bounds)
    give_rows(task, made, new_bounds, kept=kept)
    return {"rows": rows.n_samples, "stored": None}
