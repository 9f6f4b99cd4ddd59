"""Notes which of several processes, on one host or on several, ends first."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable

__all__ = ["FirstOfHosts", "FirstToEnd"]


class FirstToEnd:
    """Notes which of some processes ends first, in a thread that waits for nothing else.

    mpiexec ends the other ranks within milliseconds after that. A loop that has other work finds several ended.

    Parameters
    ----------
    descriptors : iterable of int
        Descriptors of the processes, from ``os.pidfd_open``. They must stay open until one of the processes has ended.

    Attributes
    ----------
    moment : float
        When the first one ended, by `time.perf_counter`.
    """

    def __init__(self, descriptors: Iterable[int]) -> None:
        self.moment = 0.0
        self._ended: list[int] = []
        self._poll = select.poll()
        for descriptor in descriptors:
            self._poll.register(descriptor, select.POLLIN)
        self._thread = threading.Thread(target=self._wait, name="xpulab-first-to-end", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self._ended = [descriptor for descriptor, _ in self._poll.poll()]
        self.moment = time.perf_counter()

    def __call__(self) -> list[int]:
        """Wait until one has ended, and return the descriptors of those that were the first."""
        self._thread.join()
        return self._ended


class FirstOfHosts:
    """Notes which ranks were the first to end on each host, and says which were the first of all.

    mpiexec ends the ranks of the other hosts within milliseconds after the first. What a host says of its ranks may
    come later than that.

    Parameters
    ----------
    patience : float
        Seconds to wait for the other hosts after one has said something.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._found: list[tuple[float, tuple[int, ...]]] = []
        self._until = float("inf")

    def __bool__(self) -> bool:
        """Whether a rank has ended."""
        return bool(self._found)

    def add(self, moment: float, ranks: Iterable[int]) -> None:
        """Note the first ranks of a host that ended, and when, by the clock of this host."""
        self._found.append((moment, tuple(sorted(ranks))))
        self._until = min(self._until, time.monotonic() + self._patience)

    def ranks(self, hosts: int) -> tuple[int, ...]:
        """Return the ranks that ended first; none before all of so many hosts have said theirs, or time is up."""
        known = self._found and (len(self._found) >= hosts or time.monotonic() >= self._until)
        return min(self._found)[1] if known else ()
