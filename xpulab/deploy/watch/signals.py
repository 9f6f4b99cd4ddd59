"""Postpone Ctrl-C during operations that must not be interrupted halfway, and say which call it has ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from xpulab.advice import of_interrupt
from xpulab.exceptions import CallInterrupted

__all__ = ["interruptible", "postponed", "uninterrupted"]


@contextlib.contextmanager
def interruptible(call: str, left: str = "") -> Iterator[None]:
    """Turn Ctrl-C in this context, which may also be a decorator, into a `CallInterrupted`.

    Parameters
    ----------
    call, left : str
        As for `of_interrupt`.

    Raises
    ------
    CallInterrupted
        If the body was interrupted. That of a call inside the body is passed on.
    """
    try:
        yield
    except CallInterrupted:
        raise
    except KeyboardInterrupt:
        raise CallInterrupted(of_interrupt(call, left)) from None


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


@contextlib.contextmanager
def postponed() -> Iterator[list[int]]:
    """Postpone Ctrl-C in this context. The list that it yields is not empty after Ctrl-C was pressed."""
    pressed: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, previous)
