"""A place in shared memory where the ranks of a host meet, and leave messages for each other.

A rank that comes writes its message, then the number of this meeting, and wakes those that sleep. A rank that waits
reads the numbers of the others. It sleeps in the kernel (a futex): a rank that computes on the same core goes on, and
the one that sleeps runs again some microseconds after the last one has come. A rank that only yields its core gets it
back when the kernel sees fit, after up to some milliseconds if there are more ranks than cores, or other programs.

No lock is needed: x86-64 shows what a processor writes to all others in the order in which it was written.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Meeting"]

_ROOM = 1 << 20  # bytes of the messages of all ranks at one meeting
_LINE = 64  # bytes in which processors exchange memory: no two ranks write in one of them
_COUNTED = 44  # bits of a number that count meetings; those above are the generation
_NUMBER, _WORD, _HEAD = struct.Struct("Q"), struct.Struct("I"), struct.Struct("dQ")

_FUTEX, _WAIT, _WAKE, _ALL = 202, 0, 1, 0x7FFFFFFF  # Linux on x86-64


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_call = ctypes.CDLL(None).syscall  # other threads of Python run during the call
_call.argtypes = (
    *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
    *(ctypes.POINTER(_Time), ctypes.c_void_p, ctypes.c_uint32),
)


class Meeting:
    """Meetings of some ranks of a host, one after the other.

    Each rank has an object of its own. Other ranks may use the same memory for meetings of theirs meanwhile.

    Parameters
    ----------
    memory : memoryview
        `nbytes` bytes of shared memory, all zeros at first.
    size : int
        Number of ranks for which the memory is.
    rank : int
        This rank.
    ranks : sequence of int
        The ranks that meet, in ascending order.
    generation : int
        A number on which these ranks agree. An object of another generation sees nobody come to the meetings of this.

    Attributes
    ----------
    room : int
        Bytes of the longest message.
    """

    def __init__(self, memory: memoryview, size: int, rank: int, ranks: Sequence[int], generation: int = 0) -> None:
        self.room = _room(size)
        self._memory = memory
        whole = np.frombuffer(memory, np.uint8)
        # A message may be read until its reader comes to the next meeting, so two meetings have places in turns.
        places = whole[2 * size * _LINE :].reshape(2, size, -1)
        first, step, over = 2 * size * _LINE, places.strides[1], places.strides[0]
        self._heads = [[first + turn * over + each * step for each in ranks] for turn in (0, 1)]
        self._head = [first + turn * over + rank * step for turn in (0, 1)]
        messages = places[:, :, _HEAD.size :]
        self._message: list[npt.NDArray[np.uint8]] = [messages[turn, rank] for turn in (0, 1)]
        some: Any = slice(ranks[0], ranks[-1] + 1) if len(ranks) == ranks[-1] + 1 - ranks[0] else list(ranks)
        self._messages, self._ranks = messages, some
        self._own = rank * _LINE
        self._others = [each * _LINE for each in ranks if each != rank]
        self._word = (size + ranks[0]) * _LINE  # others that meet meanwhile have another first rank
        self._address = whole.ctypes.data + self._word
        self._number = generation % (1 << 64 - _COUNTED) << _COUNTED
        self._end = self._number + (1 << _COUNTED)
        self._missing: list[int] = []
        self._seen = 0
        self._time = _Time()

    @staticmethod
    def nbytes(size: int) -> int:
        """Return the bytes of the memory for so many ranks."""
        return 2 * size * _LINE + 2 * size * (_HEAD.size + _room(size))

    def come(self, since: float = 0.0, message: npt.NDArray[np.uint8] | None = None, length: int = 0) -> None:
        """Come to the next meeting. The one before is over.

        Parameters
        ----------
        since : float
            A number for the others, such as the moment in seconds.
        message : numpy.ndarray of uint8, optional
            At most `room` bytes for the others.
        length : int
            What the others get as the length of a message that is not given.
        """
        self._number += 1
        turn = self._number & 1
        if message is not None:
            length = len(message)
            self._message[turn][:length] = message
        _HEAD.pack_into(self._memory, self._head[turn], since, length)
        _NUMBER.pack_into(self._memory, self._own, self._number)
        # Two ranks that do this at once may write the same word. Both have written their numbers before, and a rank
        # that is about to sleep reads the word before it reads the numbers, so that it misses neither.
        (word,) = _WORD.unpack_from(self._memory, self._word)
        _WORD.pack_into(self._memory, self._word, (word + 1) & 0xFFFFFFFF)
        _call(_FUTEX, self._address, _WAKE, _ALL, None, None, 0)
        self._missing = self._others

    def is_complete(self) -> bool:
        """Return whether all have come."""
        memory, number, end = self._memory, self._number, self._end
        (self._seen,) = _WORD.unpack_from(memory, self._word)
        self._missing = [at for at in self._missing if not number <= _NUMBER.unpack_from(memory, at)[0] < end]
        return not self._missing

    def sleep(self, seconds: float) -> None:
        """Sleep until a rank comes, for less than a second; not if one has come since `is_complete`."""
        self._time.nanoseconds = int(1e9 * seconds)
        _call(_FUTEX, self._address, _WAIT, self._seen, self._time, None, 0)

    def heads(self) -> list[tuple[float, int]]:
        """Return what each rank has given as `since`, and the length of its message, after all have come."""
        return [_HEAD.unpack_from(self._memory, at) for at in self._heads[self._number & 1]]

    def messages(self, length: int) -> npt.NDArray[np.uint8]:
        """Return the first bytes of each rank's message: shape (number of ranks, length)."""
        return np.array(self._messages[self._number & 1, self._ranks, :length])


def _room(size: int) -> int:
    """Return the bytes of the longest message of each of so many ranks, so that no two share a line."""
    return -(-_ROOM // size // _LINE) * _LINE + _LINE - _HEAD.size
