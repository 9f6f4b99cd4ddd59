"""Tell the user which client a call waits for, if the call has no report of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from xpulab.report import progress
from xpulab.report.task import Display
from xpulab.sharing.board import awaited, awaited_client
from xpulab.sharing.owner import lives

__all__ = ["Waits", "told_by", "told_of_waiting"]

_FIRST = 1.0  # seconds of a wait until a printed message says so
_PATIENCE = 0.3  # seconds: shorter waits, for example for the thread that frees rows, are not shown

_Watch = Callable[[Any, int], None]
_tell: ContextVar[tuple[_Watch, Callable[[], bool]] | None] = ContextVar("xpulab_tell", default=None)


class Waits:
    """What a program without views prints of a call's waits: each other client once, and once more when it has ended.

    Parameters
    ----------
    threads : bool
        Whether other threads of this process count as clients.
    """

    def __init__(self, threads: bool = False) -> None:
        self._since = time.monotonic()
        self._known: set[tuple[int, bool]] = set() if threads else {(os.getpid(), True)}

    def news(self, records: Any, number: int) -> str:
        """Return the task for which the call waits, as `awaited`; empty if it is known, or if the wait is short."""
        if not (pid := awaited_client(records, number)):
            self._since = time.monotonic()
        elif time.monotonic() - self._since > _FIRST and (client := (pid, lives(pid))) not in self._known:
            self._known.add(client)
            return awaited(records, number)
        return ""


@contextlib.contextmanager
def told_by(watch: _Watch, runs: Callable[[], bool]) -> Iterator[None]:
    """Let the report of a call tell of waits until the block ends: ``watch`` follows the tasks that are sent there.

    Ctrl-C at the end of the block may leave `watch` there. It counts while ``runs`` says that its call runs.
    """
    token = _tell.set((watch, runs))
    try:
        yield
    finally:
        _tell.reset(token)


@contextlib.contextmanager
def told_of_waiting(title: str, display: Display = "full") -> Iterator[_Watch]:
    """Return a `watch` for `XPUCluster.call` that opens a report with this title if the call waits for another client.

    Parameters
    ----------
    title : str
        Title of the report.
    display : {"full", "compact", "none"}
        As `XPUCluster.display`.
    """
    if (known := _tell.get()) is not None and known[1]():
        yield known[0]
        return
    with contextlib.ExitStack() as shown:
        handle: progress.ProgressHandle[progress.TaskReport] | None = None
        begun, waits = time.monotonic(), Waits()

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
                if news := waits.news(records, number):
                    handle.say(f"{title}: waiting for {news}")

        yield watch
