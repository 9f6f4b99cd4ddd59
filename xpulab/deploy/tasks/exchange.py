"""One task on all engines: sends it, follows it on the board, stops it on request, and collects the replies."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from xpulab.deploy.tasks.ways import Way
from xpulab.exceptions import EngineStuckError
from xpulab.sharing.answers import Reply
from xpulab.sharing.board import USERS, Board, awaited, deaf, new_task_number, running
from xpulab.sharing.signals import Pressed

__all__ = ["Exchange"]

_POLL = 0.05  # seconds between two reads of the board while a task runs
_INTERRUPT_GRACE = 10.0  # seconds that a task has to reach its next reduction after an interrupt
_USERS_GRACE = 2.0  # seconds that a user's code has to end after SIGINT
_PRINTED = 2.0  # seconds in which the output of other hosts arrives
_latest: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()  # number of its last task
_latest_lock = threading.Lock()


class _Ending:
    """Decides how long to wait for a task that was asked to end.

    A user's code may be in a long call that cannot be interrupted. If the engines were ended, its variables would be
    lost. Therefore a message informs the user, and only another interrupt ends the engines. A code that the interrupt
    has reached may save its work in ``finally``. It gets the time that this takes, and another interrupt as Python
    gives it.

    Parameters
    ----------
    task : str
        Name of the task.

    Attributes
    ----------
    grace : float
        Seconds that the task may take to end after it was asked to.
    failure : Exception or None
        The error of the caller's `watch`, if this error is the reason to end the task.
    told : str
        What a message has told the user of code that does not end: "deaf" if an interrupt has not reached it, "goes on"
        if one has; empty before.
    """

    def __init__(self, task: str) -> None:
        self.grace = _USERS_GRACE if task in USERS else _INTERRUPT_GRACE
        self.failure: Exception | None = None
        self.told = ""
        self.users = task in USERS
        self._decided = False
        self._deadline = float("inf")

    @property
    def begun(self) -> bool:
        """Whether the task was asked to end."""
        return self._deadline < float("inf")

    def begin(self, is_deaf: bool = False) -> None:
        """Note that the task was asked to end. Asking again gives more time only to a code that goes on.

        `is_deaf` says whether an earlier interrupt has still not reached the code.
        """
        now = time.monotonic()
        self._deadline = now + self.grace if self.told == "goes on" else min(self._deadline, now + self.grace)
        self._decided = self._decided or (self.told == "deaf" and is_deaf)
        self.told = ""

    @property
    def asks(self) -> bool:
        """Whether only the user may decide to end the engines."""
        return self.users and self.failure is None and not self._decided

    def overdue(self) -> bool:
        """Return whether the time in which the task has to end is over."""
        return time.monotonic() > self._deadline


class Exchange:
    """A task that was sent to all engines.

    Create it while Ctrl-C is postponed. Otherwise an interrupt could leave a task that was sent to some engines only,
    and that nothing waits for or stops.

    Parameters
    ----------
    way : Way
        How it is sent.
    board : Board or None
        Board on which the engines write; None until they have sent its path.
    name : str
        Name of the task.
    payload : dict
        Arguments of the task.
    """

    def __init__(self, way: Way, board: Board | None, name: str, payload: dict[str, Any]) -> None:
        self.name = name
        self.number = new_task_number()
        self._board = board
        self._pending = way.send((name, self.number, os.getpid(), _unread(self.number)), payload)

    def wait(
        self, require_well: Callable[[], None], watch: Callable[[Any, int], None] | None, pressed: Pressed
    ) -> list[Reply]:
        """Wait for all ranks, while Ctrl-C is postponed.

        An interrupt or an error of `watch` asks them to stop, and is raised afterwards.

        Parameters
        ----------
        require_well : callable
            Called at every read of the board; raises an error if engines were lost.
        watch : callable, optional
            Called at every read with the board's records and the number of the task.
        pressed : Pressed
            Whether Ctrl-C was pressed since the task was sent. It acts at once only in `watch`: where a thread of
            ipyparallel is told of, it could leave a lock that nobody ever releases.

        Returns
        -------
        list of Reply
            The reply of each rank.

        Raises
        ------
        EngineStuckError
            If ranks do not stop in time.
        KeyboardInterrupt
            If the user interrupted the task, after all ranks have stopped; its argument is the list of replies.
        """
        try:
            return self._wait(require_well, watch, pressed)
        finally:
            # If it has not begun, because another one runs, the engines drop it when its turn comes.
            if self._pending.ready() and self._ranks is not None:
                self._board.forget(self.number)  # type: ignore[union-attr]
            self._pending.forget()

    def _wait(
        self, require_well: Callable[[], None], watch: Callable[[Any, int], None] | None, pressed: Pressed
    ) -> list[Reply]:
        ending = _Ending(self.name)
        while True:
            try:
                while not self._pending.ready():
                    self._require_not(pressed)
                    self._pending.wait(_POLL)
                    if not self._pending.ready():
                        require_well()
                    self._hurry(ending)
                    # What a user's code has printed is read once more when it has ended.
                    over = self.name in USERS and self._pending.ready()
                    if watch is not None and ending.failure is None and not over:
                        with pressed.acts():
                            self._look(watch, ending)
                self._require_not(pressed)
                return self._collected(ending)
            except KeyboardInterrupt:
                if self._ranks is None or self._cancel():
                    raise
                ending.begin(bool(deaf(self._ranks, self.number)))

    @staticmethod
    def _require_not(pressed: Pressed) -> None:
        if pressed:
            pressed.forget()
            raise KeyboardInterrupt

    def _look(self, watch: Callable[[Any, int], None], ending: _Ending) -> None:
        """Call `watch`. If it raises an error, ask the engines to stop, because the caller will not use the result."""
        if (ranks := self._ranks) is None:
            return
        try:
            watch(ranks, self.number)
        except Exception as error:
            ending.failure = error
            if self._cancel():
                raise
            ending.begin()

    def _hurry(self, ending: _Ending) -> None:
        """Pass requests to stop on to a user's code. Raise an error if the time in which a task has to end is over."""
        if ending.begun and ending.users:
            self._board.signal(self.number)  # type: ignore[union-attr]
        if not ending.overdue():
            return
        if not ending.asks:
            raise self._stuck(ending) from ending.failure
        if waiting := deaf(self._ranks, self.number):
            if ending.told != "deaf":
                ending.told = "deaf"
                print(
                    f"{_named(waiting)} is still in a call that cannot be interrupted; the code ends when this call "
                    "returns. Interrupt once more to end the engines now: the variables of %%xpu cells and the rows on "
                    "the engines are then lost",
                    file=sys.stderr,
                )
        elif ending.told != "goes on" and self._busy():
            ending.told = "goes on"
            print(
                f"{self._busy()} was interrupted, and the code goes on, such as in finally or except, or after its own "
                "handler of SIGINT. Interrupt once more to interrupt that, too",
                file=sys.stderr,
            )

    def _stuck(self, ending: _Ending) -> EngineStuckError:
        if ending.users and ending.failure is None:
            return EngineStuckError(
                f"{self._busy()} was in a call that cannot be interrupted, and all engines were ended at your second "
                "interrupt"
            )
        return EngineStuckError(
            f"{self._busy()} did not end the task {self.name!r} within {ending.grace:.0f} s of "
            f"{'the interrupt' if ending.failure is None else 'a failed callback'}; type: %xpu_cluster restart"
        )

    def _collected(self, ending: _Ending) -> list[Reply]:
        """Return the replies of all ranks, after they have ended. Raises the error of `watch`, if there is one."""
        if ending.failure is not None:
            raise ending.failure
        replies: list[Reply] = list(self._pending.get())
        if self.name in USERS:
            self._await_output(replies)
        if ending.begun:  # an interrupt that came after the ranks were done still ends the caller
            for reply in replies:
                reply["status"] = "interrupted" if reply["status"] == "ok" else reply["status"]
        return replies

    def _await_output(self, replies: list[Reply]) -> None:
        """Wait until the relay has copied what the ranks of other hosts have printed in a user's code."""
        outcomes = [(reply["result"] or {}).get("outcome", "left out") for reply in replies]
        ran = [rank for rank, outcome in enumerate(outcomes) if outcome != "left out"]
        deadline = time.monotonic() + _PRINTED
        while self._ranks is not None and time.monotonic() < deadline:
            if (self._ranks["ended"][ran] == self.number).all():
                return
            time.sleep(_POLL / 5)

    @property
    def _ranks(self) -> Any:
        """The board's records, or None without a board."""
        return self._board.ranks if self._board is not None else None

    def _cancel(self) -> bool:
        """Ask the engines to end the task. True if it has not begun, because another task runs; it is then dropped."""
        if (ranks := self._ranks) is None:
            return False
        self._board.cancel(self.number)  # type: ignore[union-attr]
        return awaited(ranks, self.number) != ""

    def _busy(self) -> str:
        """Return the ranks that are still running the task, such as ``"rank 1, 3"``."""
        return _named(running(self._ranks, self.number))


def _named(ranks: list[int]) -> str:
    """Return the ranks as words; empty without any."""
    return f"rank {', '.join(map(str, ranks))}" if ranks else ""


def _unread(number: int) -> list[int]:
    """Note the number of a new task. Returns those of the last tasks of other threads, which may read the results."""
    with _latest_lock:
        _latest[threading.current_thread()] = number
        return [last for thread, last in list(_latest.items()) if thread.is_alive() and last != number]
