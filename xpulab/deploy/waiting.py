"""A call that shows nothing by itself says for whom it waits, where another client has the engines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from xpulab.report import progress
from xpulab.sharing.board import awaited

__all__ = ["told_of_waiting"]

_PATIENCE = 0.3  # seconds: rows that are released in another thread, say, are waited for in silence


@contextlib.contextmanager
def told_of_waiting(title: str) -> Iterator[Callable[[Any, int], None]]:
    """Watch a call, see `XPUCluster.call`; if it waits for a moment, a report of this title is open until its end."""
    with contextlib.ExitStack() as shown:
        handle: progress.ProgressHandle[progress.TaskReport] | None = None
        begun = time.monotonic()

        def watch(records: Any, number: int) -> None:
            nonlocal handle
            other = awaited(records, number)
            if other and handle is None and time.monotonic() - begun > _PATIENCE:
                handle = shown.enter_context(progress.open(progress.TaskReport(title)))
            if handle is not None:
                handle.report.message = f"waits for {other}" if other else ""
                handle.update()

        yield watch
