"""The thread of a rank that gives signs of life, and that looks whether the user's code waits for ever."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from xpulab.engine.waiting import end_waits
from xpulab.sharing.hangs import Watch

if TYPE_CHECKING:
    from xpulab.sharing.board import Board

__all__ = ["HEARTBEAT", "Heartbeat"]

HEARTBEAT = 0.5  # seconds between two heartbeats


class Code(Protocol):
    """A user's code that runs, which is a task."""

    number: int
    hopeless: str
    freed: str

    def is_over(self) -> bool:
        """Return whether this rank should leave the call in which it waits."""


class Heartbeat:
    """Writes on the board that this rank lives, and looks where the user's code is.

    Parameters
    ----------
    board : Board
    rank : int

    Attributes
    ----------
    at_each : callable
        Called at each heartbeat.
    """

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._record: Any = board.ranks[rank]
        self._watched: tuple[Code, Watch] | None = None
        self._leaving: Code | None = None  # code that was over at the last heartbeat
        self.at_each: Callable[[], None] = lambda: None
        self._ended = False
        threading.Thread(target=self._beat, name="xpulab-heartbeat", daemon=True).start()

    @contextlib.contextmanager
    def watching(self, code: Code) -> Iterator[None]:
        """Open a context for a user's code, which ends with an error if this rank waits for ever."""
        self._watched = code, Watch(lambda: self._board, self._rank, code.number).answer_signals()
        try:
            yield
        finally:
            self._watched = None
            self._record["waits"] = 0

    def end(self) -> None:
        """End the thread before its next heartbeat."""
        self._ended = True

    def _beat(self) -> None:
        while not self._ended:
            self._record["heartbeat"] = time.time()
            if (watched := self._watched) is not None:
                self._look(*watched)
            self.at_each()
            time.sleep(HEARTBEAT)

    def _look(self, code: Code, watch: Watch) -> None:
        code.hopeless = watch.look()
        before, self._leaving = self._leaving, code if code.is_over() else None
        if watch.in_gloo and code is before is self._leaving:  # what gloo still moved would have ended it by now
            code.freed = code.hopeless
            end_waits()
