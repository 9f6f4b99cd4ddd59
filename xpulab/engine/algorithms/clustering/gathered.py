"""Few rows of all ranks on one rank, which computes without the other ranks.

A pass over so few rows takes about as long as a reduction, and a fit has dozens of both. The results are then bitwise
the same for any number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import Communicator
from xpulab.engine.engine import Task
from xpulab.kernels.row_passes import consecutive
from xpulab.kernels.rows import Rows
from xpulab.sharing.board import RUNS

__all__ = ["Fitted", "on_rank_0"]

#: The result of a fit; the labels of this rank's rows, a part at a time; and whether the fit was stopped.
Fitted = tuple[dict[str, object], Iterable[np.ndarray], bool]


def on_rank_0(
    task: Task,
    rows: Rows,
    bounds: list[int],
    weights: np.ndarray | None,
    fitted: Callable[[Rows, list[int], np.ndarray | None], Fitted],
) -> Fitted:
    """Let rank 0 fit the rows of all ranks, and return on every rank the result and the labels of its own rows.

    Parameters
    ----------
    task : Task
    rows : Rows
        This rank's rows.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    weights : numpy.ndarray of shape (n_own,) or None
        Their weights.
    fitted : callable
        Fits rows, with bounds and weights.
    """
    comm = task.comm
    if comm.size == 1:
        return fitted(rows, bounds, weights)
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    n, d, most = bounds[-1], rows.n_features, max(np.diff(bounds))
    mine = np.zeros((most, d + (weights is not None)), rows.dtype)
    mine[: rows.n_samples, :d] = consecutive(rows, 0, rows.n_samples)
    if weights is not None:
        mine[: rows.n_samples, d] = weights
    every = comm.allgather_arrays(mine.ravel()).reshape(comm.size, most, -1)
    answer: Any = None
    if comm.rank == 0:
        whole = np.concatenate([part[:there] for part, there in zip(every, np.diff(bounds), strict=True)])
        with _alone(task):
            of_all = None if weights is None else np.ascontiguousarray(whole[:, d])
            gathered = Rows.upload(task.device, whole[:, :d], of_all)
            result, labels, stopped = fitted(gathered, [0, n], of_all)
            answer = result, np.concatenate([np.empty(0, np.int32), *labels]), stopped
    result, found, stopped = comm.bcast(answer)
    if comm.rank:
        _note(task, result.get("history", []))
    return result, [found[own]] if len(found) else [], stopped


@contextmanager
def _alone(task: Task) -> Iterator[None]:
    """Open a context in which the communicator of the task has only this rank. The others wait for it meanwhile."""
    together, task.comm = task.comm, Communicator(MPI.COMM_SELF, task.failed, MPI.COMM_SELF)
    task.comm.wait, task.comm.communicate = together.wait, together.communicate
    try:
        yield
    finally:
        together.wait, together.communicate = task.comm.wait, task.comm.communicate
        task.comm = together


def _note(task: Task, history: list[tuple[int, int, float, float, float]]) -> None:
    """Note on the board the iterations for which this rank has waited."""
    if not history:
        return
    now, lengths = time.perf_counter(), task.engine.record["lengths"]
    for run, iteration, *_, elapsed in history:
        lengths[(run - 1) % RUNS] = iteration
        task.note_iteration(run, iteration, now - (history[-1][-1] - elapsed))
    run, iteration, *metrics, _ = history[-1]
    task.show(run=run, iteration=iteration, metrics=metrics)
