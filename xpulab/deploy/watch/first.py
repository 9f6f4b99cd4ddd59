"""Notes which of several processes ends first."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterable

__all__ = ["FirstToEnd"]


class FirstToEnd:
    """Notes which of some processes ends first, in a thread that waits for nothing else.

    mpiexec ends the other ranks within milliseconds after that. A loop that has other work finds several ended.

    Parameters
    ----------
    descriptors : iterable of int
        Descriptors of the processes, from ``os.pidfd_open``. They must stay open until one of the processes has ended.
    """

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._ended: list[int] = []
        self._poll = select.poll()
        for descriptor in descriptors:
            self._poll.register(descriptor, select.POLLIN)
        self._thread = threading.Thread(target=self._wait, name="xpulab-first-to-end", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self._ended = [descriptor for descriptor, _ in self._poll.poll()]

    def __call__(self) -> list[int]:
        """Wait until one has ended, and return the descriptors of those that were the first."""
        self._thread.join()
        return self._ended
