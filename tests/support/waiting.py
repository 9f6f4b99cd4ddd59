"""Waiting for something that a busy machine may delay."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

__all__ = ["until", "until_none"]


def until(
    condition: Callable[[], object], seconds: float = 120.0, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Return when the condition holds.

    The pauses between two looks grow with what a look takes, so that looking costs a fifth of a core at most: a
    condition may ask other programs, such as Slurm's, or look at all processes.

    Parameters
    ----------
    condition : callable
    seconds : float
        Seconds after which the wait fails.
    meanwhile : callable
        What to do between two looks at the condition.

    Raises
    ------
    AssertionError
        If the condition does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < deadline, f"not within {seconds:g} s"
        meanwhile()
        time.sleep(min(0.5, max(0.02, 4 * (time.monotonic() - began))))


def until_none(find: Callable[[], Collection[object]], seconds: float = 60.0) -> None:
    """Return when there is nothing more to find; the error says what is left after these seconds."""
    left: list[object] = []

    def none() -> bool:
        left[:] = find()
        return not left

    try:
        until(none, seconds)
    except AssertionError as late:
        raise AssertionError(f"{late}: {left}") from None
