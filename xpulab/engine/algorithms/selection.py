"""The task that selects rows, in any order, and moves them between the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.dataset import array_of, data_of, give_rows
from xpulab.engine.engine import Task, task
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows

__all__ = ["selected"]

_PIECE = 8 << 20  # bytes that a rank receives between two looks for an interrupt


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
    blocks = np.split(chosen, new_bounds[1:-1])
    block = np.empty((len(blocks[task.comm.rank]), rows.n_features), rows.dtype)
    step = max(1, _PIECE // (rows.n_features * rows.dtype.itemsize))
    for start in range(0, max(map(len, blocks)), step):  # the same on all ranks
        task.check()
        _exchange(task, rows, bounds, [part[start : start + step] for part in blocks], block[start : start + step])
    return Rows.upload(task.device, block)


def _exchange(task: Task, rows: Rows, bounds: list[int], wanted: list[np.ndarray], block: np.ndarray) -> None:
    """Send the rows that each rank wants, and write those that this rank wants into `block`, in its order."""
    comm = task.comm
    first, last = bounds[comm.rank], bounds[comm.rank + 1]
    mine = [part[(part >= first) & (part < last)] - first for part in wanted]
    came = comm.exchange_rows(take(rows, np.concatenate(mine)), np.array([len(part) for part in mine]))
    # The received rows are sorted by the rank that sent them.
    owners = np.searchsorted(np.asarray(bounds[1:]), wanted[comm.rank], side="right")
    block[np.argsort(owners, kind="stable")] = came


@task("select")
def _select(
    task: Task,
    source: dict[str, Any],
    weights: None,
    chosen: dict[str, Any],
    new_bounds: list[int],
    kept: dict[str, Any],
) -> dict[str, Any]:
    """Select rows of a handle, and keep them under a new handle."""
    data = data_of(task, source)
    places = array_of(chosen).copy()
    made = selected(task, data.rows, data.bounds, places, new_bounds)
    give_rows(task, made, new_bounds, kept=kept)
    return {"rows": data.rows.n_samples}
