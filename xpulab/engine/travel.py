"""Rows between the notebook's host and the engines of other hosts, by MPI.

The notebook writes rows into shared memory of its host, and reads results there. Rank 0, which runs on that host, sends
to the ranks of other hosts what a task's payload refers to, before the task begins: to each rank its own rows, and to
each other host one copy of the arrays that all ranks read. There the memory is of that host, and the payload refers to
it, so that tasks do not know of hosts. What they write into a result is sent to rank 0 at the task's end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.files import file_rows
from xpulab.engine.waiting import poll, watched_by
from xpulab.sharing.memory import SharedBlock

__all__ = ["travelled"]

_PIECE = 4 << 20  # bytes of a message
_MESSAGES = 8  # messages that are on their way to a rank at a time
_TAG = 771
_LONGEST = 128  # bytes of a path in /proc


@contextlib.contextmanager
def travelled(task: Any, payload: dict[str, Any], partly: type[BaseException]) -> Iterator[dict[str, Any]]:
    """The payload with places in memory of this host. At the end, rank 0 writes the results to the notebook's memory.

    Parameters
    ----------
    task : Task
    payload : dict
        Arguments of the task.
    partly : type
        The exception with which a task ends on all ranks together, after it has written what it has computed.

    Raises
    ------
    PeerFailed, KeyboardInterrupt
        If another rank has raised an exception, or this one has seen a request to stop.
    """
    if not task.engine.host.several or task.outer is not None:
        yield payload
        return
    journey = _Journey(task, payload)
    try:
        there = journey.out(payload)
        journey.travel()
        try:
            yield there
        except partly:
            # All ranks have seen the request to stop. None goes on before all know that the results have arrived.
            journey.stops = False
            journey.back()
            task.comm.end(task.has_raised)
            raise
        journey.back()
    finally:
        journey.close()


class _Journey:
    """What travels for one task."""

    def __init__(self, task: Any, payload: dict[str, Any]) -> None:
        self.task = task
        self.host = task.engine.host
        self.comm = task.engine.pairs
        self.rank = task.engine.rank
        # The parts of what is scattered to some ranks are in the order of these.
        self.owners: list[int] = payload.get("ranks") or list(range(task.engine.size))
        self.stops = True  # whether a request to stop ends the journey
        self.held: list[SharedBlock] = []
        self.results: list[SharedBlock | None] = []  # None on ranks that write to the notebook's memory themselves
        self.sends: list[tuple[int, Iterator[np.ndarray]]] = []
        self.receives: list[np.ndarray] = []
        self.shared: list[tuple[list[int], str]] = []  # ranks of this host that read a block, and its path
        self.takes: list[dict[str, Any]] = []  # places whose path the leader of this host tells

    def close(self) -> None:
        """Close the memory, which lives on where arrays use it."""
        for block in (*self.held, *self.results):
            if block is not None:
                block.close()

    def out(self, thing: Any) -> Any:
        """A part of the payload with places in memory of this host. All ranks walk through it in the same order."""
        if isinstance(thing, dict):
            if "parts" in thing:
                return self._parts(thing)
            if "file" in thing or "block" in thing:
                return self._rows(thing)
            if "path" in thing and "shape" in thing:
                return self._result(thing) if thing.get("result") else self._whole(thing)
            return {key: self.out(value) for key, value in thing.items()}
        if isinstance(thing, list | tuple) and any(isinstance(each, dict) for each in thing):
            return type(thing)(self.out(each) for each in thing)
        return thing

    def _elsewhere(self, rank: int) -> bool:
        return self.host.leaders[rank] != self.host.leaders[0]

    def _new(self, nbytes: int) -> SharedBlock:
        block = SharedBlock.create(nbytes)
        self.held.append(block)
        return block

    def _opened(self, path: str) -> SharedBlock:
        block = SharedBlock.open(path)
        self.held.append(block)
        return block

    def _parts(self, source: dict[str, Any]) -> dict[str, Any]:
        """Rows that are in a block for each rank."""
        row_bytes = int(np.prod(source["shape"][1:])) * np.dtype(source["dtype"]).itemsize
        parts = list(source["parts"])
        for part, rank in enumerate(self.owners):
            nbytes = (source["bounds"][part + 1] - source["bounds"][part]) * row_bytes
            if self._elsewhere(rank) and self.rank == 0:
                self.sends.append((rank, _cut(self._opened(parts[part]).array((nbytes,), np.uint8))))
            elif self._elsewhere(rank) and self.rank == rank:
                block = self._new(nbytes)
                self.receives.append(block.array((nbytes,), np.uint8))
                parts[part] = block.path
        return {**source, "parts": parts}

    def _rows(self, source: dict[str, Any]) -> dict[str, Any]:
        """Rows of a file of the notebook's host, or of a result in its memory."""
        bounds, shape, dtype = source["bounds"], source["shape"], np.dtype(source["dtype"])
        row_bytes = shape[1] * dtype.itemsize
        if self.rank == 0:
            if "file" in source:
                every = file_rows(source)
            else:
                every = self._opened(source["block"]).array(tuple(shape), dtype, source["offset"])
            for rank in filter(self._elsewhere, range(self.task.engine.size)):
                self.sends.append((rank, _cut_rows(every[bounds[rank] : bounds[rank + 1]], row_bytes)))
        if not self._elsewhere(self.rank):
            return source
        first, last = bounds[self.rank : self.rank + 2]
        block = self._new((last - first) * row_bytes)
        self.receives.append(block.array(((last - first) * row_bytes,), np.uint8))
        known = {key: value for key, value in source.items() if key not in ("file", "state", "order")}
        return {**known, "block": block.path, "offset": 0, "first": first}

    def _whole(self, place: dict[str, Any]) -> dict[str, Any]:
        """An array that all ranks read: one copy for each other host, which its first rank receives."""
        nbytes = int(np.prod(place["shape"])) * np.dtype(place["dtype"]).itemsize
        if self.rank == 0:
            here = self._opened(place["path"]).array((nbytes,), np.uint8, place["offset"])
            self.sends += ((rank, _cut(here)) for rank in sorted({*filter(self._elsewhere, self.host.leaders)}))
        if not self._elsewhere(self.rank):
            return place
        there = {**place, "offset": 0}
        if self.host.leads:
            block = self._new(nbytes)
            self.receives.append(block.array((nbytes,), np.uint8))
            there["path"] = block.path
            self.shared.append((self.host.followers, block.path))
        else:
            self.takes.append(there)
        return there

    def _result(self, place: dict[str, Any]) -> dict[str, Any]:
        """Memory for this rank's part of a result. Only pages that are written take memory."""
        number = len(self.results)
        if self._elsewhere(self.rank):
            block = SharedBlock.create(int(np.prod(place["shape"])) * np.dtype(place["dtype"]).itemsize)
            self.results.append(block)
            return {**place, "path": block.path, "number": number}
        self.results.append(SharedBlock.open(place["path"], writable=True) if self.rank == 0 else None)
        return place

    def travel(self) -> None:
        """Send and receive the rows, and then tell the ranks of a host where their copy is."""
        self.task.show(doing="sending rows to other hosts")
        with self._on_the_way():
            self._send_rows()
            self._share_copies()

    @contextlib.contextmanager
    def _on_the_way(self) -> Iterator[None]:
        """Count the seconds as transfer. An exception of another rank ends the wait, and so does a request to stop."""

        def look() -> None:
            self.task.check_peers()
            if self.stops:
                self.task.leave_if_cancelled()

        started = time.perf_counter()
        with watched_by(look):
            yield
        self.task.transfer += time.perf_counter() - started

    def _send_rows(self) -> None:
        pieces = ((rank, piece) for rank, parts in self.sends for piece in parts)
        self._in_turn(self.comm.Isend(piece, rank, _TAG) for rank, piece in pieces)
        self._in_turn(self.comm.Irecv(piece, 0, _TAG) for whole in self.receives for piece in _cut(whole))

    def _share_copies(self) -> None:
        """Tell the ranks of this host where its copies are. The first rank holds a copy until all have opened it."""
        for followers, path in self.shared:
            text = np.frombuffer(path.encode().ljust(_LONGEST), np.uint8)
            self._in_turn(self.comm.Isend(text, rank, _TAG) for rank in followers)
        for place in self.takes:
            text = np.empty(_LONGEST, np.uint8)
            self._wait(self.comm.Irecv(text, self.host.leaders[self.rank], _TAG))
            place["path"] = self._opened(text.tobytes().decode().rstrip()).path
        for followers, _ in self.shared:
            self._in_turn(self.comm.Irecv(np.empty(1, np.uint8), rank, _TAG) for rank in followers)
        for _ in self.takes:
            self._wait(self.comm.Isend(np.zeros(1, np.uint8), self.host.leaders[self.rank], _TAG))

    def back(self) -> None:
        """Send what the ranks of other hosts have written into results to rank 0, which writes it there."""
        if not self.results or (self.host.here and self.rank != 0):
            return
        with self._on_the_way():
            if self.rank != 0:
                self._in_turn(self._parts_written())
            else:
                for rank in filter(self._elsewhere, range(self.task.engine.size)):
                    self._receive_from(rank)

    def _parts_written(self) -> Iterator[MPI.Request]:
        written = np.array(self.task.written, np.int64).reshape(-1, 3)
        yield self.comm.Isend(np.array([len(written)], np.int64), 0, _TAG)
        yield self.comm.Isend(written, 0, _TAG)
        for number, offset, nbytes in written.tolist():
            block = self.results[number]
            assert block is not None
            for piece in _cut(block.array((nbytes,), np.uint8, offset)):
                yield self.comm.Isend(piece, 0, _TAG)

    def _receive_from(self, rank: int) -> None:
        count = np.empty(1, np.int64)
        self._wait(self.comm.Irecv(count, rank, _TAG))
        written = np.empty((int(count[0]), 3), np.int64)
        self._wait(self.comm.Irecv(written, rank, _TAG))
        buffer = np.empty(_PIECE, np.uint8)
        for number, offset, nbytes in written.tolist():
            block = self.results[number]
            assert block is not None
            for first in range(0, nbytes, _PIECE):
                piece = buffer[: min(_PIECE, nbytes - first)]
                self._wait(self.comm.Irecv(piece, rank, _TAG))
                block.write(piece, offset + first)

    def _in_turn(self, messages: Iterator[MPI.Request]) -> None:
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


def _cut(whole: np.ndarray) -> Iterator[np.ndarray]:
    """The pieces of an array of bytes."""
    return (whole[first : first + _PIECE] for first in range(0, len(whole), _PIECE))


def _cut_rows(rows: np.ndarray, row_bytes: int) -> Iterator[np.ndarray]:
    """The pieces of the bytes of rows in C order, of the same sizes as those of `_cut`."""
    if rows.flags.c_contiguous:
        yield from _cut(rows.reshape(-1).view(np.uint8))
        return
    rest = np.empty(0, np.uint8)
    step = max(1, _PIECE // row_bytes)
    for first in range(0, len(rows), step):
        rest = np.concatenate([rest, np.ascontiguousarray(rows[first : first + step]).reshape(-1).view(np.uint8)])
        while len(rest) >= _PIECE:
            yield rest[:_PIECE]
            rest = rest[_PIECE:]
    if len(rest):
        yield rest
