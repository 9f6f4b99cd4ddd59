"""The task that selects rows, in any order, and moves them between the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.dataset import array_of, data_of, give_rows
from xpulab.engine.engine import Task, task
from xpulab.kernels.rows import Rows, take

__all__ = ["selected"]


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
    first, last = bounds[comm.rank], bounds[comm.rank + 1]
    mine = [part[(part >= first) & (part < last)] - first for part in np.split(chosen, new_bounds[1:-1])]
    sent = take(rows, np.concatenate(mine))
    came = comm.exchange_rows(sent, np.array([len(part) for part in mine]))
    # The received rows are sorted by the rank that sent them; the rows of each rank are in the new order.
    wanted = chosen[new_bounds[comm.rank] : new_bounds[comm.rank + 1]]
    owners = np.searchsorted(np.asarray(bounds[1:]), wanted, side="right")
    block = np.empty_like(came)
    block[np.argsort(owners, kind="stable")] = came
    return Rows.upload(task.device, block)


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
    task.check()
    made = selected(task, data.rows, data.bounds, places, new_bounds)
    give_rows(task, made, new_bounds, kept=kept)
    return {"rows": data.rows.n_samples}
