"""Selects sparse rows, in any order, and moves them between the ranks."""

from __future__ import annotations

import numpy as np

from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.sparse_gather import on_cpu, picked
from xpulab.kernels.kmeans.sparse_rows import SparseRows

__all__ = ["selected_sparse"]

_MOST = 16 << 20  # stored values of a rank in an exchange; MPI counts them with 31 bits


def selected_sparse(
    task: Task, rows: SparseRows, bounds: list[int], chosen: np.ndarray, new_bounds: list[int]
) -> SparseRows:
    """Return this rank's new rows; the arguments are those of `xpulab.engine.algorithms.selection.selected`."""
    comm, stored = task.comm, on_cpu(rows)
    places = np.flatnonzero((chosen >= bounds[comm.rank]) & (chosen < bounds[comm.rank + 1]))
    mine = chosen[places] - bounds[comm.rank]
    lengths = np.diff(stored[2])[mine]
    rounds = int(comm.allreduce(np.array([-(-int(lengths.sum()) // _MOST)]), np.maximum)[0])
    came: list[tuple[np.ndarray, ...]] = []
    for some in np.array_split(np.arange(len(mine)), max(1, rounds)):
        task.check()
        owners = np.searchsorted(np.asarray(new_bounds[1:]), places[some], side="right")
        some, owners = some[by_owner := np.argsort(owners, kind="stable")], owners[by_owner]
        values, columns, _ = picked(stored, mine[some])
        counts = np.bincount(owners, minlength=comm.size)
        of_values = np.bincount(owners, lengths[some], minlength=comm.size).astype(np.int64)
        about = comm.exchange_rows(np.column_stack([places[some], lengths[some]]).astype(np.int64), counts)
        parts = (comm.exchange_rows(part[:, None], of_values)[:, 0] for part in (values, columns))
        came.append((about, *parts))
    about, values, columns = (np.concatenate(parts) for parts in zip(*came, strict=True))
    starts = np.concatenate([[0], np.cumsum(about[:, 1])])
    whole = picked((values, columns, starts), np.argsort(about[:, 0]))
    return SparseRows.upload(task.device, *whole, rows.n_features)
