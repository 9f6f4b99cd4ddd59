"""A call that shows nothing by itself says for whom it waits, where another client has the engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from xpulab import progress
from xpulab.board import awaited

__all__ = ["told_of_waiting"]


@contextlib.contextmanager
def told_of_waiting(title: str) -> Iterator[Callable[[Any, int], None]]:
    """Watch a call, see `XPUCluster.call`; a report of this title is open from the moment it has to wait to its end."""
    with contextlib.ExitStack() as shown:
        handle: progress.ProgressHandle[progress.TaskReport] | None = None

        def watch(records: Any, number: int) -> None:
            nonlocal handle
            other = awaited(records, number)
            if other and handle is None:
                handle = shown.enter_context(progress.open(progress.TaskReport(title)))
            if handle is not None:
                handle.report.message = f"waits for {other}" if other else ""
                handle.update()

        yield watch
