"""Rows in another order, or some of the rows: the tasks that move rows between the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.dataset import data_of, give_rows
from xpulab.engine.engine import Task, task
from xpulab.kernels.rows import Rows, take
from xpulab.sharing.memory import SharedBlock

__all__ = ["selected"]


def selected(task: Task, rows: Rows, bounds: list[int], chosen: np.ndarray, new_bounds: list[int]) -> Rows:
    """Rows by their place in the whole data set, each sent from the rank that has it to the one that gets it.

    Parameters
    ----------
    task : Task
    rows : Rows
        This rank's block.
    bounds : list of int
        Rank r has the rows from bounds[r] to bounds[r + 1].
    chosen : numpy.ndarray of int64
        Places of rows, in the new order; the same on all ranks.
    new_bounds : list of int
        Rank r gets the rows from the r-th of these places to the next.
    """
    comm = task.comm
    first, last = bounds[comm.rank], bounds[comm.rank + 1]
    mine = [part[(part >= first) & (part < last)] - first for part in np.split(chosen, new_bounds[1:-1])]
    sent = take(rows, np.concatenate(mine))
    came = comm.exchange_rows(sent, np.array([len(part) for part in mine]))
    # They came by their owners, and within an owner in the new order.
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
    """Rows of a handle, in another order, under a handle of their own."""
    data = data_of(task, source)
    with SharedBlock.open(chosen["path"]) as block:
        places = block.array(tuple(chosen["shape"]), chosen["dtype"], chosen["offset"]).copy()
    task.check()
    made = selected(task, data.rows, data.bounds, places, new_bounds)
    give_rows(task, made, new_bounds, kept=kept)
    return {"rows": data.rows.n_samples}
