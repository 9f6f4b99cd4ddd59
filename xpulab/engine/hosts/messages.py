"""Long messages between ranks of two hosts: pieces, of which a few are on their way at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from mpi4py import MPI

from xpulab.engine.waiting import poll

__all__ = ["PIECE", "TAG", "Messages", "piece_sizes", "pieces_of", "rows_of_a_piece"]

#: Bytes of a message, at most.
PIECE = 4 << 20
TAG = 771
_MESSAGES = 8  # messages that are on their way to a rank at a time


class Messages:
    """The messages of one rank. Each wait ends when the user asks for it, or when another rank has raised an exception.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self._buffers: list[np.ndarray] = []  # the first one was used first

    def begin_send(self, array: np.ndarray, rank: int) -> MPI.Request:
        """Begin to send an array to a rank."""
        return self.comm.Isend(array, rank, TAG)

    def begin_receive(self, array: np.ndarray, rank: int) -> MPI.Request:
        """Begin to receive an array from a rank."""
        return self.comm.Irecv(array, rank, TAG)

    def send(self, array: np.ndarray, rank: int) -> None:
        """Send an array to a rank."""
        self._wait(self.begin_send(array, rank))

    def receive(self, array: np.ndarray, rank: int) -> None:
        """Receive an array from a rank."""
        self._wait(self.begin_receive(array, rank))

    def buffer(self, nbytes: int) -> np.ndarray:
        """Return memory for a message. It is used again for the message that comes `_MESSAGES` later."""
        if nbytes > PIECE:  # a single row
            return np.empty(nbytes, np.uint8)
        if not self._buffers:
            self._buffers = [np.empty(PIECE, np.uint8) for _ in range(_MESSAGES)]
        self._buffers.append(self._buffers.pop(0))
        return self._buffers[-1][:nbytes]

    def joined(self, parts: Iterable[np.ndarray], nbytes: int) -> Iterator[np.ndarray]:
        """Yield the bytes of all parts in pieces of `piece_sizes`. Each is valid until `_MESSAGES` others are made."""
        sizes = piece_sizes(nbytes)
        piece = empty = np.empty(0, np.uint8)
        for part in parts:
            rest = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            while len(rest):
                if not len(empty):
                    piece = empty = self.buffer(next(sizes))
                n = min(len(empty), len(rest))
                empty[:n] = rest[:n]
                empty, rest = empty[n:], rest[n:]
                if not len(empty):
                    yield piece

    def incoming(self, rank: int, sizes: Iterable[int]) -> Iterator[np.ndarray]:
        """Receive messages of these numbers of bytes from a rank, a few at a time, and yield each.

        Their memory is used again and again, so that a piece is valid until the next one. To receive a message into new
        pages would take longer, because the kernel would clear each of them, and handle a page fault for it.
        """
        pending: list[tuple[MPI.Request, np.ndarray]] = []

        def taken() -> np.ndarray:
            message, piece = pending.pop(0)
            self._wait(message, [other for other, _ in pending])
            return piece

        for size in sizes:
            if len(pending) == _MESSAGES:
                yield taken()
            piece = self.buffer(size)
            pending.append((self.begin_receive(piece, rank), piece))
        while pending:
            yield taken()

    def in_turn(self, messages: Iterator[MPI.Request]) -> None:
        """Begin messages, a few at a time, and wait until all have been sent or received."""
        pending: list[MPI.Request] = []
        for message in messages:
            pending.append(message)
            if len(pending) == _MESSAGES:
                self._wait(pending.pop(0), pending)
        while pending:
            self._wait(pending.pop(0), pending)

    @staticmethod
    def _wait(message: MPI.Request, others: list[MPI.Request] | None = None) -> None:
        poll(message.Test, (message, others))  # which keeps their memory if the wait is left


def piece_sizes(nbytes: int, most: int = PIECE) -> Iterator[int]:
    """Return the numbers of bytes of the messages for so many bytes."""
    return (min(most, nbytes - first) for first in range(0, nbytes, most))


def pieces_of(whole: np.ndarray) -> Iterator[np.ndarray]:
    """Return the pieces of an array of bytes."""
    return (whole[first : first + PIECE] for first in range(0, len(whole), PIECE))


def rows_of_a_piece(row_bytes: int) -> int:
    """Return how many rows of so many bytes a message has: a row is never cut, so that it is read into the message."""
    return max(1, PIECE // row_bytes)
