"""Where a rank's rows come from, and where its results go: shared memory of this host, a file, or a handle."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from xpulab.engine.engine import Task
from xpulab.exceptions import HandleError
from xpulab.kernels import dense
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
        the path of a file in NumPy's format; ``file``, one of bare rows, with ``shape``, ``dtype`` and ``offset``;
        ``handle``, rows that are here. Rows from a file are looked through for NaN and infinity, which the notebook
        has not done.
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
    if ("npy" in source or "file" in source) and isinstance(rows, Rows):
        _all_finite(task, rows, source["bounds"])
    task.transfer += max(0.0, time.perf_counter() - started - busy)
    task.show(rows=rows.n_samples)
    return rows


def _all_finite(task: Task, rows: Rows, bounds: list[int]) -> None:
    """Raise the same error on all ranks if any row holds NaN or infinity."""
    local = dense.find_nonfinite(rows)
    place = bounds[task.comm.rank] + local if local >= 0 else bounds[-1]
    first = min(task.comm.allgather(place))
    if first < bounds[-1]:
        raise ValueError(f"Input X contains NaN or infinity; the first such row is row {first}.")


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
    elif "file" in source:
        shape, dtype, offset = tuple(source["shape"]), np.dtype(source["dtype"]), source["offset"]
        # Mapped pages that the file does not have would end this process.
        has, needs = os.path.getsize(source["file"]), offset + int(np.prod(shape)) * dtype.itemsize
        if has < needs:
            raise ValueError(
                f"{source['file']} has {has:,} bytes, and the rows of the memory-mapped X end at {needs:,}; it was "
                "written to since: map it again"
            )
        whole = np.memmap(source["file"], dtype, "r", offset, shape)
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
