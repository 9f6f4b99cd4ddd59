"""How far the clock of another host is ahead of this host's, as the messages between the two show it.

A monotonic clock counts from the start of its host, so that those of two hosts may differ by months. Each message says
when it was sent. By the receiver's clock it comes later by the difference of the clocks and the time that it travels;
the message that travelled least tells most. As in NTP, what remains of the travels cancels out if they take as long in
one direction as in the other: the error is at most half of the time to there and back.
"""

from __future__ import annotations

import time
from collections import deque

__all__ = ["Lateness", "ahead"]

_MESSAGES = 20  # latest messages that count: of two to ten seconds, in which clocks hardly drift apart


class Lateness:
    """How late the messages of another host come, by the clock of this host."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_MESSAGES)

    def add(self, sent: float) -> None:
        """Add a message that has come now, and was sent at this moment by the other host's `time.perf_counter`."""
        self._latest.append(time.perf_counter() - sent)

    @property
    def least(self) -> float | None:
        """Seconds of the message that was the least late; None before the first."""
        return min(self._latest, default=None)


def ahead(there: float, here: float) -> float:
    """Return by how many seconds the clock of another host is ahead of this host's.

    Parameters
    ----------
    there : float
        The least lateness that the other host found of this host's messages.
    here : float
        The least lateness that this host found of the other host's messages.
    """
    return (there - here) / 2
