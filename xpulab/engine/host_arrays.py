"""Arrays with one entry for each row of all ranks, which the ranks of a host share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from xpulab.engine.dataset import data_of, pieces
from xpulab.engine.engine import Task
from xpulab.kernels.row_passes import consecutive
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import Source

__all__ = ["rows_of_all", "several_hosts", "shared_by_host", "take_from_other_hosts"]


def rows_of_all(task: Task, source: Source) -> np.ndarray:
    """Return the rows of all ranks, of the source's shape: one copy for each host."""
    data = data_of(task, source)
    first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
    with shared_by_host(task, (data.n_samples, data.n_features), data.dtype) as whole:
        for begin, end in pieces(data.n_own, source.row_bytes):
            whole[first + begin : first + end] = consecutive(data.rows, begin, end)
        take_from_other_hosts(task, whole[first:last], whole, data.bounds)
        task.comm.allgather(None)  # all have written
    whole.flags.writeable = False
    return whole.reshape(source.shape)


@contextmanager
def shared_by_host(task: Task, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.ndarray]:
    """Open an array of this host that its ranks share, until all have left the context."""
    host = task.engine.host
    block = SharedBlock.create(int(np.prod(shape)) * np.dtype(dtype).itemsize) if host.leads else None
    path: Any = task.comm.allgather(block.path if block else None)[host.leaders[host.rank]]
    with block or SharedBlock.open(path, writable=True) as opened:
        array = opened.array(shape, dtype)
        task.comm.allgather(None)  # all have opened it
    yield array


def take_from_other_hosts(task: Task, mine: np.ndarray, whole: np.ndarray, bounds: list[int]) -> None:
    """Send this rank's rows to the first rank of each other host, which writes those of all other hosts into `whole`.

    All ranks call this together.
    """
    if not several_hosts(task):
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
            whole[begin:end] = came[first : first + end - begin]
            first += end - begin


def several_hosts(task: Task) -> bool:
    """Return whether the ranks are on several hosts."""
    return len(set(task.engine.host.leaders[: task.comm.size])) > 1
