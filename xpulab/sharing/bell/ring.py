"""A ring of messages in shared memory: many processes write, and each rank reads every message, in one order."""

from __future__ import annotations

import struct

__all__ = ["ROOM", "SLOTS", "Ring"]

_SLOT = 16384  # bytes
_LENGTH = struct.Struct("I")
_NUMBER = struct.Struct("Q")
_FIRST = 64  # the ranks' counters begin here, after that of the messages

#: Messages that may wait for the slowest rank.
SLOTS = 128

#: Bytes of the longest message.
ROOM = _SLOT - _LENGTH.size


class Ring:
    """A ring of messages for the ranks of a cluster.

    A writer needs a lock that excludes all others. A message is there for all ranks at the same moment, when the
    counter of messages rises, so that no rank gets a message that another one misses, even if the writer is killed.

    Parameters
    ----------
    memory : memoryview
        `nbytes` bytes of shared memory, all zeros at first.
    size : int
        Number of ranks.
    """

    def __init__(self, memory: memoryview, size: int) -> None:
        self._memory, self._size = memory, size
        self._slots = self.nbytes(size) - SLOTS * _SLOT

    @staticmethod
    def nbytes(size: int) -> int:
        """Return the bytes of a ring for so many ranks."""
        return _FIRST + -(-size * _NUMBER.size // _FIRST) * _FIRST + SLOTS * _SLOT

    @property
    def written(self) -> int:
        """Number of messages so far."""
        return int(_NUMBER.unpack_from(self._memory, 0)[0])

    def taken(self, rank: int) -> int:
        """Return the number of messages that a rank has taken."""
        return int(_NUMBER.unpack_from(self._memory, _FIRST + rank * _NUMBER.size)[0])

    @property
    def taken_by_all(self) -> int:
        """Number of messages that all ranks have taken."""
        return min(map(self.taken, range(self._size)))

    def put(self, message: bytes) -> int | None:
        """Write a message of at most `ROOM` bytes; return its number, counted from 1, or None if the ring is full."""
        number = self.written + 1
        if number - self.taken_by_all > SLOTS:
            return None
        at = self._slots + number % SLOTS * _SLOT
        _LENGTH.pack_into(self._memory, at, len(message))
        self._memory[at + _LENGTH.size : at + _LENGTH.size + len(message)] = message
        _NUMBER.pack_into(self._memory, 0, number)
        return number

    def next_of(self, rank: int) -> bytes | None:
        """Return the next message for a rank, which `take` takes; None if there is none."""
        number = self.taken(rank) + 1
        if number > self.written:
            return None
        at = self._slots + number % SLOTS * _SLOT
        (length,) = _LENGTH.unpack_from(self._memory, at)
        return bytes(self._memory[at + _LENGTH.size : at + _LENGTH.size + length])

    def take(self, rank: int) -> None:
        """Note that a rank has read its next message, whose place may be used again when all ranks have."""
        _NUMBER.pack_into(self._memory, _FIRST + rank * _NUMBER.size, self.taken(rank) + 1)
