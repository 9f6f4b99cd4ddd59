"""Waiting for something that a busy machine may delay."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(
    condition: Callable[[], object], seconds: float = 60.0, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Return when the condition holds.

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
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        meanwhile()
        time.sleep(0.02)
