"""The bins of all values, one byte each, from which forests are grown.

If the devices do not keep all rows, the ranks read some columns at a time, and keep only their bins.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.engine.dataset import Data, on_host
from xpulab.engine.engine import Task
from xpulab.engine.host_arrays import several_hosts, shared_by_host
from xpulab.kernels.on_cpu.forests import Edges
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import Reading
from xpulab.sharing.sources import BlockRows

__all__ = ["bins_by_columns", "columns_in_turn", "edges_of", "in_float32", "in_threads"]

_LOOK = 0.1  # seconds between two looks for a request to stop
_READ_BYTES = 1 << 20  # that a thread reads at a time


def bins_by_columns(task: Task, data: Data, source: BlockRows, bins: np.ndarray) -> Edges:
    """Read a column for each rank at a time, write the bins of this rank's rows, and return all edges.

    All rows of these columns are in the hosts' memory meanwhile, in float32.
    """
    edges = list[np.ndarray]()
    for some, rows in columns_in_turn(task, data, source, range(data.n_features), np.float32):
        sums = task.comm.allreduce(np.array([np.isnan(rows).any(), np.isinf(rows).any()], np.int64))
        if sums[1] or (sums[0] and not source.nan):
            data.require_finite()  # which says where
            _require_range(task, rows)
        found = edges_of(task, rows, data.bounds)
        bins[:, some] = Edges.between(found).bins(rows)
        edges += found
    return Edges.between(edges)


def columns_in_turn(
    task: Task, data: Data, source: BlockRows, order: Sequence[int], dtype: npt.DTypeLike
) -> Iterator[tuple[slice, np.ndarray]]:
    """Read this rank's rows of a column for each rank at a time; yield which of `order` they are, and the rows."""
    size, every = task.comm.size, list(source.columns)
    reading = task.reading = Reading(0, data.n_own)
    for first in range(0, len(order), size):
        task.check()
        some = slice(first, min(first + size, len(order)))
        began = time.perf_counter()
        rows = _read(task, replace(source, columns=[every[column] for column in order[some]], kept=None), dtype)
        reading.seconds += time.perf_counter() - began
        reading.passes += 1
        reading.nbytes += rows.size * source.dtype.itemsize
        yield some, rows


def _read(task: Task, source: BlockRows, dtype: npt.DTypeLike) -> np.ndarray:
    """Read this rank's rows of some columns: (n_own, n_columns)."""
    n, d = source.bounds[task.comm.rank + 1] - source.bounds[task.comm.rank], len(source.columns)
    found, step = np.empty((n, d), dtype), max(1, _READ_BYTES // (d * source.dtype.itemsize))
    with task.transferring(), source.reading(task.comm.rank) as fill:

        def read(first: int) -> None:
            task.leave_if_cancelled()
            part = np.empty((min(step, n - first), d), source.dtype)
            fill(first, part)
            with np.errstate(over="ignore"):
                found[first : first + len(part)] = part

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(read, range(0, n, step)))
    return found


def in_float32(task: Task, rows: Rows) -> np.ndarray:
    """Return the rows of this rank in float32, as scikit-learn's trees take them.

    Raises
    ------
    ValueError
        If a number of any rank is too large for float32; all ranks raise it.
    """
    made = on_host(rows, np.float32)
    _require_range(task, made)
    return made


def _require_range(task: Task, made: np.ndarray) -> None:
    if any(task.comm.allgather(bool(np.isinf(made).any()))):
        raise ValueError("Input X contains infinity or a value too large for dtype('float32').")


def edges_of(task: Task, rows: np.ndarray, bounds: list[int]) -> list[np.ndarray]:
    """Return the edges of each column of all rows; each rank sorts some of the columns."""
    n_features, comm = rows.shape[1], task.comm
    with _columns(task, rows, bounds) as columns:
        mine = in_threads(task, "column", Edges.of_column, columns, len(os.sched_getaffinity(0)))
    every = comm.allgather(mine)
    return [every[f % comm.size][f // comm.size] for f in range(n_features)]


@contextmanager
def _columns(task: Task, rows: np.ndarray, bounds: list[int]) -> Iterator[list[np.ndarray]]:
    """Open the columns that this rank sorts, for all rows: the columns rank, rank + size, rank + 2 * size, ..."""
    n_features, comm = rows.shape[1], task.comm
    if not several_hosts(task):
        with shared_by_host(task, (n_features, bounds[-1]), np.float32) as columns:
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


def in_threads(
    task: Task, what: str, function: Any, arguments: list[Any], threads: int, before: int = 0, steps: int = 0
) -> list[Any]:
    """Call a function for each argument in threads; a request to stop ends the wait. The machine code holds no lock.

    The board says how many of them are done, of the steps that are called `what`: all of them, or `steps`, of which as
    many were done `before`.
    """
    with task.on_host(), ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(function, argument) for argument in arguments]
        pending: set[Future[Any]] = set(futures)
        try:
            while pending:
                task.show(doing=what, done=before + len(futures) - len(pending), steps=steps or len(futures))
                task.leave_if_cancelled()
                task.check_peers()
                pending = wait(pending, _LOOK, FIRST_COMPLETED).not_done
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]
