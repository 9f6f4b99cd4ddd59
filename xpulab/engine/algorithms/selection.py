"""The task that selects rows, in any order, and moves them between the ranks."""

from __future__ import annotations

import itertools

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
    order = _by_source(chosen, bounds[-1])
    sources = chosen[order]
    cuts = np.searchsorted(sources, bounds)
    first, last = new_bounds[comm.rank : comm.rank + 2]
    block = np.empty((last - first, rows.n_features), rows.dtype)
    step = max(1, _PIECE // (rows.n_features * rows.dtype.itemsize))
    for start in range(0, int(np.diff(cuts).max()), step):  # the same on all ranks
        task.check()
        pieces = [slice(min(a + start, b), min(a + start + step, b)) for a, b in itertools.pairwise(cuts)]
        mine = sources[pieces[comm.rank]] - bounds[comm.rank]
        _exchange(task, rows, mine, [order[piece] for piece in pieces], new_bounds, block)

    def fill(first: int, part: np.ndarray) -> None:
        task.leave_if_cancelled()
        part[...] = block[first : first + len(part)]

    return Rows.read(task.device, block.shape, block.dtype, fill)[0]


def _by_source(chosen: np.ndarray, n: int) -> np.ndarray:
    """Return the places of the chosen rows in the order of the rows, of which there are n."""
    places = np.full(n, -1)
    places[chosen] = np.arange(len(chosen))
    order = places[places >= 0]
    return order if len(order) == len(chosen) else np.argsort(chosen, kind="stable")  # a row was chosen twice


def _exchange(
    task: Task, rows: Rows, mine: np.ndarray, pieces: list[np.ndarray], new_bounds: list[int], block: np.ndarray
) -> None:
    """Send chosen rows to the ranks that get them, and write those that this rank gets into `block`.

    Parameters
    ----------
    task : Task
    rows : Rows
    mine : numpy.ndarray of int64 of shape (n,)
        Indices of this rank's rows that are chosen, in ascending order.
    pieces : list of numpy.ndarray of int64
        The new places of the rows of each rank, those of this rank's with shape (n,).
    new_bounds : list of int
    block : numpy.ndarray of shape (n_new, n_features)
    """
    comm = task.comm
    owners = np.searchsorted(np.asarray(new_bounds[1:]), pieces[comm.rank], side="right")
    by_owner = np.argsort(owners.astype(np.int16), kind="stable")  # 16 bits are sorted in two passes
    came = comm.exchange_rows(_taken(rows, mine, by_owner), np.bincount(owners, minlength=comm.size))
    # The received rows are sorted by the rank that sent them.
    first, last = new_bounds[comm.rank : comm.rank + 2]
    block[np.concatenate([piece[(piece >= first) & (piece < last)] for piece in pieces]) - first] = came


def _taken(rows: Rows, ascending: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Copy some rows, whose ascending indices are put into another order.

    A row's numbers are in a cache line each, so that rows near to each other are copied with those between them.
    """
    first, last = (int(ascending[0]), int(ascending[-1]) + 1) if len(ascending) else (0, 0)
    if last - first <= _SPREAD * len(ascending):
        return consecutive(rows, first, last)[ascending[order] - first]
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
    rows, places = whole_rows(task, source), chosen.open().copy()
    if isinstance(rows, SparseRows):
        few = selected_sparse(task, rows, source.bounds, places, new_bounds)
        return {"rows": rows.n_samples, "stored": keep_stored(task, few, kept)}
    made = selected(task, rows, source.bounds, places, new_bounds)
    give_rows(task, made, new_bounds, kept=kept)
    return {"rows": rows.n_samples, "stored": None}
