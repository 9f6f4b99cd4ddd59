"""Postpone Ctrl-C during operations that must not be interrupted halfway."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["Pressed", "interrupted_after", "postponed", "uninterrupted"]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C in this context, for example while processes are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class Pressed:
    """What is known of Ctrl-C while it is postponed: it is true after Ctrl-C was pressed.

    Parameters
    ----------
    handler : callable, optional
        What Ctrl-C calls if it is not postponed; None if it cannot be postponed.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any] | None = None) -> None:
        self._handler = handler
        self._pressed = False
        self._ended = False

    def __bool__(self) -> bool:
        return self._pressed

    def note(self, *_: object) -> None:
        """Note that Ctrl-C was pressed."""
        self._pressed = True

    def forget(self) -> None:
        """Forget that Ctrl-C was pressed."""
        self._pressed = False

    def end(self) -> None:
        """Note that Ctrl-C is not postponed any more."""
        self._ended = True

    @contextlib.contextmanager
    def acts(self) -> Iterator[None]:
        """Open a context in which Ctrl-C is not postponed, for code of the user."""
        if self._handler is None:
            yield
            return
        signal.signal(signal.SIGINT, self._handler)
        try:
            yield
        finally:
            # Where Ctrl-C kept this context from being left, it is left only when the garbage collector finds it.
            if not self._ended:
                signal.signal(signal.SIGINT, self.note)


@contextlib.contextmanager
def postponed() -> Iterator[Pressed]:
    """Postpone Ctrl-C in this context, which yields what is known of it; its end raises no `KeyboardInterrupt`."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield Pressed()
        return
    pressed = Pressed(handler)
    # To block the signal would not be enough: Python calls the handler also if another thread has got the signal.
    signal.signal(signal.SIGINT, pressed.note)
    try:
        yield pressed
    finally:
        pressed.end()
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def interrupted_after() -> Iterator[None]:
    """Postpone Ctrl-C to the end of this context, in which for example a process is started and noted.

    Raises
    ------
    KeyboardInterrupt
        At the end, if Ctrl-C was pressed, and if no other handler of it is set.
    """
    with postponed() as pressed:
        yield
    if pressed:
        signal.raise_signal(signal.SIGINT)
