"""Where a rank's rows come from, and where its results go: shared memory of this host, a file, or a handle."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from xpulab.engine.engine import Task
from xpulab.exceptions import HandleError
from xpulab.kernels.choice import AnyRows, kernels_for
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse import SparseRows
from xpulab.memory import SharedBlock

__all__ = ["rows_of", "weights_of", "write_block"]


def weights_of(task: Task, weights: dict[str, Any] | None, bounds: list[int]) -> np.ndarray | None:
    """This rank's sample weights, on the host; None for ones."""
    return None if weights is None else _block(weights, bounds, task.comm.rank)


def rows_of(task: Task, source: dict[str, Any], sample_weight: np.ndarray | None = None) -> AnyRows:
    """This rank's block of rows, on its device.

    Parameters
    ----------
    task : Task
        Its `transfer` grows by the seconds that this takes, what the device computes aside.
    source : dict
        ``bounds`` (rank r has the rows from bounds[r] to bounds[r + 1]) and one of: ``path`` with ``shape``, ``dtype``
        and ``offset`` of a shared block; ``csr``, such blocks for data, indices and indptr, with ``shape``; ``npy``,
        the path of a file in NumPy's format; ``handle``, rows that are here.
    sample_weight : numpy.ndarray or None
        As `weights_of` gives them.
    """
    device = task.device
    busy = device.kernel_seconds + device.compile_seconds
    started = time.perf_counter()
    if "handle" in source:
        held = task.engine.handles.get(source["handle"])
        if held is None:
            raise HandleError("the rows of this handle are gone from the engines; send them again: cluster.scatter(X)")
        rows: AnyRows = held if sample_weight is None else kernels_for(held).weighted(held, sample_weight)
    elif "csr" in source:
        rows = _sparse(task, source, sample_weight)
    else:
        rows = Rows.upload(device, _block(source, source["bounds"], task.comm.rank), sample_weight)
    busy = device.kernel_seconds + device.compile_seconds - busy
    task.transfer += max(0.0, time.perf_counter() - started - busy)
    task.show(rows=rows.n_samples)
    return rows


def _sparse(task: Task, source: dict[str, Any], sample_weight: np.ndarray | None) -> SparseRows:
    with ExitStack() as stack:
        opened = [stack.enter_context(SharedBlock.open(part["path"])) for part in source["csr"]]
        data, indices, indptr = (
            block.array(tuple(part["shape"]), part["dtype"], part["offset"])
            for block, part in zip(opened, source["csr"], strict=True)
        )
        mine = indptr[source["bounds"][task.comm.rank] : source["bounds"][task.comm.rank + 1] + 1]
        stored = slice(int(mine[0]), int(mine[-1]))
        return SparseRows.upload(task.device, data[stored], indices[stored], mine, source["shape"][1], sample_weight)


def _block(source: dict[str, Any], bounds: list[int], rank: int) -> np.ndarray:
    if "npy" in source:
        whole = np.load(source["npy"], mmap_mode="r", allow_pickle=False)
    else:
        with SharedBlock.open(source["path"]) as block:
            whole = block.array(tuple(source["shape"]), source["dtype"], source["offset"])
    return whole[bounds[rank] : bounds[rank + 1]]


def write_block(task: Task, target: dict[str, Any], bounds: list[int], block: np.ndarray) -> None:
    """Put this rank's rows of a result into the shared block that the notebook made for it."""
    started = time.perf_counter()
    with SharedBlock.open(target["path"], writable=True) as shared:
        whole = shared.array(tuple(target["shape"]), target["dtype"], target["offset"])
        whole[bounds[task.comm.rank] : bounds[task.comm.rank + 1]] = block
    task.transfer += time.perf_counter() - started
