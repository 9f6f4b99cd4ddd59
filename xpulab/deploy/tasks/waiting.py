"""Tell the user which client a call waits for, if the call has no report of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from xpulab.report import progress
from xpulab.report.display import Display
from xpulab.sharing.board import awaited

__all__ = ["told_by", "told_of_waiting"]

_PATIENCE = 0.3  # seconds: shorter waits, for example for the thread that frees rows, are not shown

_Tell = Callable[[str], None]
_tell: ContextVar[tuple[_Tell, Callable[[], bool]] | None] = ContextVar("xpulab_tell", default=None)


@contextlib.contextmanager
def told_by(tell: _Tell, runs: Callable[[], bool]) -> Iterator[None]:
    """Let the report of a call tell of waits until the block ends: ``tell`` takes the other task, or an empty text.

    Ctrl-C at the end of the block may leave `tell` there. It counts while ``runs`` says that its call runs.
    """
    token = _tell.set((tell, runs))
    try:
        yield
    finally:
        _tell.reset(token)


@contextlib.contextmanager
def told_of_waiting(title: str, display: Display = "full") -> Iterator[Callable[[Any, int], None]]:
    """Return a `watch` for `XPUCluster.call` that opens a report with this title if the call waits for another client.

    Parameters
    ----------
    title : str
        Title of the report.
    display : {"full", "compact", "none"}
        As `XPUCluster.display`.
    """
    if (known := _tell.get()) is not None and known[1]():
        tell = known[0]
        yield lambda records, number: tell(awaited(records, number))
        return
    with contextlib.ExitStack() as shown:
        handle: progress.ProgressHandle[progress.TaskReport] | None = None
        begun = time.monotonic()

        def watch(records: Any, number: int) -> None:
            nonlocal handle
            other = awaited(records, number)
            if other and handle is None and time.monotonic() - begun > _PATIENCE:
                report = progress.TaskReport(title)
                report.display = display
                handle = shown.enter_context(progress.open(report))
            if handle is not None:
                handle.report.message = f"waiting for {other}" if other else ""
                handle.update()

        yield watch
