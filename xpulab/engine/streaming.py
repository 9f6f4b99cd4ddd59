"""Reads a rank's rows in passes, if its device does not keep all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from xpulab.engine.engine import Task
from xpulab.kernels.rows import Fill
from xpulab.kernels.streamed import Reading, StreamedRows
from xpulab.sharing.sources import BlockRows

__all__ = ["expect_passes", "others", "streamed"]

_LONG = 1.0  # seconds of a pass after which a request to stop ends it


def streamed(task: Task, source: BlockRows, sample_weight: np.ndarray | None) -> StreamedRows:
    """Return this rank's rows, of which the device keeps some. Nobody has looked for NaN and infinity yet."""
    assert source.kept is not None
    rows = _in_parts(task, source, source.kept[task.comm.rank], sample_weight)
    task.reading = rows.reading
    return rows


def others(task: Task, source: BlockRows, n_kept: int) -> StreamedRows:
    """Return the rows of this rank but the first, which an earlier task has kept in a form of its own."""
    rows = _in_parts(task, source, 0, None)
    rows.reading.kept = n_kept
    task.reading = rows.reading
    return rows


def expect_passes(task: Task, n: int) -> None:
    """Note that a task makes at most `n` more passes, if it makes any, for the view."""
    if task.reading is not None:
        task.reading.most = task.reading.passes + n


def _in_parts(task: Task, source: BlockRows, n_kept: int, sample_weight: np.ndarray | None) -> StreamedRows:
    rank = task.comm.rank

    @contextmanager
    def opened() -> Iterator[Fill]:
        began = time.perf_counter()
        if task.reading is not None:
            task.show(doing=_about(task.reading, source))
        with source.reading(rank) as fill:

            def read(first: int, part: np.ndarray) -> None:
                if time.perf_counter() - began > _LONG:  # a shorter pass ends, so that all ranks stop after it
                    task.leave_if_cancelled()
                fill(first, part)

            yield read

    return StreamedRows.read(
        task.device, source.shape_of(rank), n_kept, source.dtype, opened, sample_weight, source.by_columns
    )


def _about(reading: Reading, source: BlockRows) -> str:
    """Return a text for the view of the pass that begins: as much is read as in those before it, by all ranks."""
    n, kept = source.shape[0], sum(source.kept or ())
    share = 100 * kept / max(1, n)
    rate = (n - kept) * source.row_bytes * reading.passes / reading.seconds / 1e9 if reading.seconds else 0.0
    waited = 100 * reading.waited / max(reading.seconds, 1e-9)
    at = f" at {rate:.2f} GB/s, and waited for {waited:.0f} % of the time" if rate else ""
    of = f" of at most {reading.most}" if reading.most > reading.passes else ""
    return f"pass {reading.passes + 1}{of}: {share:.0f} % of the rows kept, {100 - share:.0f} % read again{at}"
