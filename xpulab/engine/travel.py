"""Rows between the notebook's host and the engines of other hosts, by MPI.

The notebook writes rows into shared memory of its host, and reads results there. A rank of that host, the carrier,
sends to the ranks of other hosts what a task's payload refers to, before the task begins: to each rank its own rows,
which it puts onto its device, and to each other host one copy of the arrays that all ranks read, in shared memory of
that host. The payload then refers to these, so that tasks do not know of hosts. What they write into a result is sent
to the carrier at the task's end. The carrier is rank 0, or the helper rank if no engine runs on the notebook's host,
see `helper`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import PeerFailed
from xpulab.engine.files import SAMPLE, file_rows, has_same, sample_of
from xpulab.engine.waiting import poll, watched_by
from xpulab.sharing.memory import SharedBlock, file_state
from xpulab.sharing.process_memory import ProcessMemory

__all__ = ["Journey", "travelled"]

_PIECE = 4 << 20  # bytes of a message
_MESSAGES = 8  # messages that are on their way to a rank at a time
_TAG = 771
_LONGEST = 128  # bytes of a path in /proc


@contextlib.contextmanager
def travelled(task: Any, payload: dict[str, Any], partly: type[BaseException]) -> Iterator[dict[str, Any]]:
    """The payload with places in memory of this host. At the end, the carrier writes results to the notebook's memory.

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
    if not task.engine.host.several or task.outer is not None or not (places := list(_places(payload))):
        yield payload
        return
    with _helped(task, places, payload.get("ranks"), partly) as arrived, _cleared(task, payload) as journey:
        there = journey.out(payload)
        journey.travel()
        try:
            yield there
        except partly:
            # All ranks have seen the request to stop. None goes on before all know that the results have arrived.
            journey.stops = False
            journey.back()
            arrived()
            task.comm.end(task.has_raised)
            raise
        journey.back()
        arrived()


@contextlib.contextmanager
def _cleared(task: Any, payload: dict[str, Any]) -> Iterator[Journey]:
    """A context with a journey, whose memory is closed at the end."""
    journey = Journey(task, payload.get("ranks"))
    try:
        yield journey
    finally:
        journey.close()


@contextlib.contextmanager
def _helped(
    task: Any, places: list[dict[str, Any]], owners: list[int] | None, partly: type[BaseException]
) -> Iterator[Callable[[], None]]:
    """A context in which the helper rank takes part in the journey, if there is one: rank 0 asks it to.

    It has a function that waits until the helper rank has written all results to the notebook's memory.
    """
    helper = task.engine.helper
    if helper is None or task.engine.rank != 0:
        yield lambda: None
        return
    helper.ask({"number": task.number, "leaders": task.engine.host.leaders, "places": places, "owners": owners})
    answered = False

    def arrived() -> None:
        nonlocal answered
        if not answered:
            answered = True
            helper.take_answer()

    try:
        yield arrived
    except PeerFailed:
        arrived()  # raises the exception of the helper rank, if this is the rank that has failed
        raise
    except partly:
        raise
    except BaseException:
        task.raised()  # which ends the wait of the helper rank
        with contextlib.suppress(Exception):
            arrived()
        raise


def _places(thing: Any) -> Iterator[dict[str, Any]]:
    """The places in memory or files of the notebook's host to which a payload refers, in the order of `Journey.out`."""
    if isinstance(thing, dict):
        if _is_place(thing):
            yield thing
        else:
            for value in thing.values():
                yield from _places(value)
    elif _has_dicts(thing):
        for each in thing:
            yield from _places(each)


def _has_dicts(thing: Any) -> bool:
    return isinstance(thing, list | tuple) and any(isinstance(each, dict) for each in thing)


def _is_place(thing: dict[str, Any]) -> bool:
    if "memory" in thing:
        return "bounds" in thing
    return bool(thing.keys() & {"parts", "file", "block"}) or ("path" in thing and "shape" in thing)


class Journey:
    """What travels for one task.

    Parameters
    ----------
    task : Task or Errand
    owners : list of int, optional
        The ranks of the parts of what is scattered to some ranks; by default all.
    """

    def __init__(self, task: Any, owners: list[int] | None = None) -> None:
        self.task = task
        self.host = task.engine.host
        self.comm = task.engine.pairs
        self.rank = self.host.rank
        self.owners = owners or list(range(task.engine.size))
        self.stops = True  # whether a request to stop ends the journey
        self.held: list[SharedBlock] = []
        self.results: list[SharedBlock | None] = []  # None on ranks that write to the notebook's memory themselves
        self.sends: list[tuple[int, Iterator[np.ndarray]]] = []
        self.receives: list[Callable[[], None]] = []  # what takes the messages that come, in their order
        self.shared: list[tuple[list[int], str]] = []  # ranks of this host that read a block, and its path
        self._buffers: list[np.ndarray] = []  # the first one was used first
        self.takes: list[dict[str, Any]] = []  # places whose path the leader of this host tells

    def close(self) -> None:
        """Close the memory, which lives on where arrays use it, and leave the rows to the task."""
        self.receives.clear()
        self.task.written.clear()
        for block in (*self.held, *self.results):
            if block is not None:
                block.close()

    def out(self, thing: Any) -> Any:
        """A part of the payload with places in memory of this host. All ranks walk through it in the same order."""
        if isinstance(thing, dict):
            if not _is_place(thing):
                return {key: self.out(value) for key, value in thing.items()}
            if "parts" in thing:
                return self._parts(thing)
            if "path" not in thing:
                return self._rows(thing)
            return self._result(thing) if thing.get("result") else self._whole(thing)
        if _has_dicts(thing):
            return type(thing)(self.out(each) for each in thing)
        return thing

    def _copy(self, nbytes: int) -> SharedBlock:
        """Memory of this host into which so many bytes will be received."""
        block = SharedBlock.create(nbytes)
        self.held.append(block)
        self.receives.append(functools.partial(self._receive, self.host.carrier, [(block, 0, nbytes)]))
        return block

    def _opened(self, path: str) -> SharedBlock:
        block = SharedBlock.open(path)
        self.held.append(block)
        return block

    def _parts(self, source: dict[str, Any]) -> dict[str, Any]:
        """An array of any dtype that is in a block for each rank."""
        row_bytes = int(np.prod(source["shape"][1:])) * np.dtype(source["dtype"]).itemsize
        parts = list(source["parts"])
        for part, rank in enumerate(self.owners):
            nbytes = (source["bounds"][part + 1] - source["bounds"][part]) * row_bytes
            if self.host.elsewhere(rank) and self.host.carries:
                self.sends.append((rank, _cut(self._opened(parts[part]).array((nbytes,), np.uint8))))
            elif self.host.elsewhere(rank) and self.rank == rank:
                parts[part] = self._copy(nbytes).path
        return {**source, "parts": parts}

    def _rows(self, source: dict[str, Any]) -> dict[str, Any]:
        """Rows of a file of the notebook's host, of the notebook's own memory, or of a result in shared memory.

        A rank reads a file itself if its host has the same.
        """
        bounds, shape, dtype = source["bounds"], source["shape"], np.dtype(source["dtype"])
        row_bytes = shape[1] * dtype.itemsize
        reading = self._reading(source["file"]) if "file" in source else []
        if self.host.carries:
            if "memory" in source:
                cut = functools.partial(self._cut_memory, source["memory"], row_bytes)
            elif "file" in source:
                cut = functools.partial(_cut_rows, file_rows(source), row_bytes)
            else:
                every = self._opened(source["block"]).array(tuple(shape), dtype, source["offset"])
                cut = functools.partial(_cut_rows, every, row_bytes)
            self.sends += (
                (rank, cut(bounds[rank], bounds[rank + 1])) for rank in self.host.others() if rank not in reading
            )
        if self.host.here:
            return source
        if reading:
            return {**source, "state": file_state(source["file"])}
        return self._arriving(source, (bounds[self.rank + 1] - bounds[self.rank]) * row_bytes)

    def _arriving(self, source: dict[str, Any], nbytes: int) -> dict[str, Any]:
        """Rows that will be on the device when they have travelled, as ``arrived``, and whether all are finite."""
        known = ("bounds", "shape", "dtype", "finite", "nan", "hold")
        there = {key: source[key] for key in known if key in source}
        self.receives.append(functools.partial(self._arrive, there, nbytes))
        return there

    def _arrive(self, there: dict[str, Any], nbytes: int) -> None:
        """Read this rank's rows from messages, as `Rows.read` does from other memory."""
        pieces = self._incoming(self.host.carrier, _sizes(nbytes))
        rest = np.empty(0, np.uint8)

        def fill(_: int, part: np.ndarray) -> None:
            nonlocal rest
            empty = part.reshape(-1).view(np.uint8)
            while len(empty):
                rest = rest if len(rest) else next(pieces)
                n = min(len(empty), len(rest))
                empty[:n] = rest[:n]
                empty, rest = empty[n:], rest[n:]

        n_features = int(np.prod(there["shape"][1:]))
        shape = nbytes // (n_features * np.dtype(there["dtype"]).itemsize), n_features
        there["arrived"] = self.task.read_in_order(shape, there["dtype"], fill)

    def _cut_memory(self, memory: dict[str, Any], row_bytes: int, first: int, last: int) -> Iterator[np.ndarray]:
        """The pieces of rows in the notebook's own memory. A piece is valid until `_MESSAGES` others were made."""
        process = {key: value for key, value in memory.items() if key != "address"}
        theirs, nbytes = ProcessMemory(**process), (last - first) * row_bytes
        for start in range(0, nbytes, _PIECE):
            piece = self._buffer(min(_PIECE, nbytes - start))
            theirs.read(memory["address"] + first * row_bytes + start, piece)
            yield piece
        theirs.require_running()

    def _buffer(self, nbytes: int) -> np.ndarray:
        """Memory for a message; it is that of the last message but `_MESSAGES`."""
        if not self._buffers:
            self._buffers = [np.empty(_PIECE, np.uint8) for _ in range(_MESSAGES)]
        self._buffers.append(self._buffers.pop(0))
        return self._buffers[-1][:nbytes]

    def _reading(self, path: str) -> list[int]:
        """The ranks of other hosts that have the same file, and read it themselves; on such a rank itself only."""
        with self._on_the_way():
            if self.host.carries:
                sample, others = np.frombuffer(sample_of(path), np.uint8), self.host.others()
                same = np.zeros(len(others), np.uint8)
                self._in_turn(self.comm.Isend(sample, rank, _TAG) for rank in others)
                self._in_turn(self.comm.Irecv(same[at : at + 1], rank, _TAG) for at, rank in enumerate(others))
                return [rank for rank, reads in zip(others, same, strict=True) if reads]
            if self.host.here:
                return []
            sample = np.empty(SAMPLE, np.uint8)
            self._wait(self.comm.Irecv(sample, self.host.carrier, _TAG))
            reads = has_same(path, sample.tobytes())
            self._wait(self.comm.Isend(np.array([reads], np.uint8), self.host.carrier, _TAG))
            return [self.rank] if reads else []

    def _whole(self, place: dict[str, Any]) -> dict[str, Any]:
        """An array that all ranks read: one copy for each other host, which its first rank receives."""
        nbytes = int(np.prod(place["shape"])) * np.dtype(place["dtype"]).itemsize
        if self.host.carries:
            here = self._opened(place["path"]).array((nbytes,), np.uint8, place["offset"])
            self.sends += ((rank, _cut(here)) for rank in self.host.others() if self.host.leaders[rank] == rank)
        if self.host.here:
            return place
        there = {**place, "offset": 0}
        if self.host.leads:
            there["path"] = self._copy(nbytes).path
            self.shared.append((self.host.followers, there["path"]))
        else:
            self.takes.append(there)
        return there

    def _result(self, place: dict[str, Any]) -> dict[str, Any]:
        """Memory for this rank's part of a result. Only pages that are written take memory."""
        number = len(self.results)
        if not self.host.here:
            block = SharedBlock.create(int(np.prod(place["shape"])) * np.dtype(place["dtype"]).itemsize)
            self.results.append(block)
            return {**place, "path": block.path, "number": number}
        self.results.append(SharedBlock.open(place["path"], writable=True) if self.host.carries else None)
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

        with self.task.transferring(), watched_by(look):
            yield

    def _send_rows(self) -> None:
        pieces = ((rank, piece) for rank, parts in self.sends for piece in parts)
        self._in_turn(self.comm.Isend(piece, rank, _TAG) for rank, piece in pieces)
        for receive in self.receives:
            receive()

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
        """Send what the ranks of other hosts have written into results to the carrier, which writes it there."""
        if not self.results or (self.host.here and not self.host.carries):
            return
        with self._on_the_way():
            if not self.host.carries:
                self._in_turn(self._parts_written())
            else:
                for rank in self.host.others():
                    self._receive_from(rank)

    def _parts_written(self) -> Iterator[MPI.Request]:
        written = np.array([each[:3] for each in self.task.written], np.int64).reshape(-1, 3)
        yield self.comm.Isend(np.array([len(written)], np.int64), self.host.carrier, _TAG)
        yield self.comm.Isend(written, self.host.carrier, _TAG)
        for number, offset, nbytes, parts in self.task.written:
            block = self.results[number]
            assert block is not None
            made = _cut(block.array((nbytes,), np.uint8, offset)) if parts is None else self._joined(parts, nbytes)
            for piece in made:
                yield self.comm.Isend(piece, self.host.carrier, _TAG)

    def _joined(self, parts: Iterable[np.ndarray], nbytes: int) -> Iterator[np.ndarray]:
        """The bytes of all parts in pieces of `_sizes`. A piece is valid until `_MESSAGES` others were made."""
        sizes = _sizes(nbytes)
        piece = empty = np.empty(0, np.uint8)
        for part in parts:
            rest = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            while len(rest):
                if not len(empty):
                    piece = empty = self._buffer(next(sizes))
                n = min(len(empty), len(rest))
                empty[:n] = rest[:n]
                empty, rest = empty[n:], rest[n:]
                if not len(empty):
                    yield piece

    def _receive_from(self, rank: int) -> None:
        self.task.await_message(self.comm, rank, _TAG)
        count = np.empty(1, np.int64)
        self._wait(self.comm.Irecv(count, rank, _TAG))
        written = np.empty((int(count[0]), 3), np.int64)
        self._wait(self.comm.Irecv(written, rank, _TAG))
        parts = ((self.results[number], offset, nbytes) for number, offset, nbytes in written.tolist())
        self._receive(rank, ((block, offset, nbytes) for block, offset, nbytes in parts if block is not None))

    def _receive(self, rank: int, parts: Iterable[tuple[SharedBlock, int, int]]) -> None:
        """Receive bytes for places in shared memory, in pieces."""
        places = [
            (block, offset + first, size)
            for block, offset, nbytes in parts
            for first, size in zip(range(0, nbytes, _PIECE), _sizes(nbytes), strict=True)
        ]
        pieces = self._incoming(rank, (size for *_, size in places))
        for (block, place, _), piece in zip(places, pieces, strict=True):
            block.write(piece, place)

    def _incoming(self, rank: int, sizes: Iterable[int]) -> Iterator[np.ndarray]:
        """Messages of these numbers of bytes, a few of which are on their way at a time.

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
            piece = self._buffer(size)
            pending.append((self.comm.Irecv(piece, rank, _TAG), piece))
        while pending:
            yield taken()

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


def _sizes(nbytes: int) -> Iterator[int]:
    """The numbers of bytes of the messages for so many bytes."""
    return (min(_PIECE, nbytes - first) for first in range(0, nbytes, _PIECE))


def _cut(whole: np.ndarray) -> Iterator[np.ndarray]:
    """The pieces of an array of bytes."""
    return (whole[first : first + _PIECE] for first in range(0, len(whole), _PIECE))


def _cut_rows(every: np.ndarray, row_bytes: int, begin: int, end: int) -> Iterator[np.ndarray]:
    """The pieces of the bytes of some rows in C order, of the same sizes as those of `_cut`."""
    rows = every[begin:end]
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
