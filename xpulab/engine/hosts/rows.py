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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import Interrupted, PeerFailed
from xpulab.engine.host import RankHost
from xpulab.engine.hosts.messages import PIECE, TAG, Messages, piece_sizes, pieces_of, rows_of_a_piece
from xpulab.engine.hosts.same_file import SAMPLE, has_same, sample_of
from xpulab.engine.waiting import watched_by
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import (
    BlockRows,
    CSRRows,
    ReadRows,
    SharedArray,
    SharedRows,
    Source,
    Target,
)

__all__ = ["Journey", "Place", "Written", "travelled"]

_LONGEST = 128  # bytes of a path in /proc

#: What refers to memory or files of the notebook's host.
Place = SharedArray | SharedRows | CSRRows | ReadRows


@dataclass(frozen=True)
class Written:
    """A part of a result that a rank of another host has written.

    Attributes
    ----------
    number : int
        `Target.number` of the result.
    offset, nbytes : int
        Where the part is in the memory of the result, and its size.
    parts : iterable of numpy.ndarray or None
        Makes the rows; None if the rank has written them into its own memory for the result.
    """

    number: int
    offset: int
    nbytes: int
    parts: Iterable[np.ndarray] | None


@contextlib.contextmanager
def travelled(task: Any, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Open a context with the payload for this host. At the end, the carrier writes results to the notebook's memory.

    Parameters
    ----------
    task : Task
    payload : dict
        Arguments of the task.

    Raises
    ------
    PeerFailed, KeyboardInterrupt
        If another rank has raised an exception, or this one has seen a request to stop.
    """
    if not task.engine.host.several or task.outer is not None or not (places := list(_places(payload))):
        yield payload
        return
    owners = payload.get("ranks") or list(range(task.engine.size))
    with _helped(task, places, owners) as arrived, _cleared(task, owners) as journey:
        made = journey.travel(places)
        try:
            yield _replaced(payload, iter(made))
        except Interrupted:
            # All ranks have seen the request to stop. None goes on before all know that the results have arrived.
            journey.stops = False
            journey.back()
            arrived()
            task.comm.end(task.has_raised)
            raise
        journey.back()
        arrived()


@contextlib.contextmanager
def _cleared(task: Any, owners: list[int]) -> Iterator[Journey]:
    """Open a context with a journey, whose memory is closed at the end."""
    journey = Journey(task, task.engine.host, task.engine.communicators.pairs, owners)
    try:
        yield journey
    finally:
        journey.close()


@contextlib.contextmanager
def _helped(task: Any, places: list[Place], owners: list[int]) -> Iterator[Callable[[], None]]:
    """Open a context in which the helper rank takes part in the journey, if there is one: rank 0 asks it to.

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
    except Interrupted:
        raise
    except BaseException:
        task.raised()  # which ends the wait of the helper rank
        with contextlib.suppress(Exception):
            arrived()
        raise


def _places(thing: object) -> Iterator[Place]:
    """Yield what in a payload refers to memory or files of the notebook's host, in the order of `_replaced`."""
    if isinstance(thing, Place):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _places(value)
    elif _has_places(thing):
        for each in thing:
            yield from _places(each)


def _replaced(thing: object, made: Iterator[Source | SharedArray]) -> Any:
    """Return a payload with the next of `made` for each of its places."""
    if isinstance(thing, Place):
        return next(made)
    if isinstance(thing, dict):
        return {key: _replaced(value, made) for key, value in thing.items()}
    if _has_places(thing):
        return type(thing)(_replaced(each, made) for each in thing)
    return thing


def _has_places(thing: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(thing, list | tuple) and any(isinstance(each, dict | Place) for each in thing)


def _not_there(source: BlockRows, ranks: list[int]) -> str:
    """Return why rows that do not fit into memory cannot be read in passes by these ranks."""
    named = f"engine {ranks[0]}" if len(ranks) == 1 else f"engines {', '.join(map(str, ranks))}"
    first, *more = source.rows.files
    files = f"{first} and {len(more)} more" if more else str(first)
    return (
        f"the rows of {source.argument} do not fit into memory, and would be read again in each pass, but {named} "
        f"cannot read them, because the host does not have the same file: {files}\nput it where all hosts have it "
        "under one path, or give the cluster more memory"
    )


class Traveller(Protocol):
    """What a journey uses of its task: a `Task` of an engine, or what the helper rank has in its place."""

    #: Parts of results that this rank has written.
    written: list[Written]

    def transferring(self) -> contextlib.AbstractContextManager[None]:
        """Count the seconds of the body as transfer."""

    def show(self, *, doing: str) -> None:
        """Show on the board what this rank does."""

    def leave_if_cancelled(self) -> None:
        """End the task on this rank, if it has seen the request to stop."""

    def check_peers(self) -> None:
        """End the task on this rank, if another rank has raised an exception."""

    def await_message(self, comm: MPI.Intracomm, rank: int, tag: int) -> None:
        """Wait for the first message of a rank's results."""

    def read_in_order(self, source: Source, fill: Callable[[int, np.ndarray], None]) -> Source:
        """Read this rank's rows to the device with a function that gives them from the first to the last."""


class Journey:
    """What travels for one task.

    Parameters
    ----------
    task : Traveller
    host : RankHost
    pairs : mpi4py.MPI.Intracomm
        For messages between two ranks.
    owners : list of int
        The ranks of the parts of what is scattered.
    """

    def __init__(self, task: Traveller, host: RankHost, pairs: MPI.Intracomm, owners: list[int]) -> None:
        self.task, self.host, self.owners = task, host, owners
        self.messages = Messages(pairs)
        self.rank = host.rank
        self.stops = True  # whether a request to stop ends the journey
        self.held: list[SharedBlock] = []
        self.results: list[SharedBlock | None] = []  # None on ranks that write to the notebook's memory themselves
        self.sends: list[tuple[int, Iterator[np.ndarray]]] = []
        self.receives: list[Callable[[], None]] = []  # what takes the messages that come, in their order
        self.shared: list[tuple[list[int], str]] = []  # ranks of this host that read a block, and its path
        self.takes: list[Callable[[str], None]] = []  # what take a path that the leader of this host tells

    def close(self) -> None:
        """Close the memory, which lives on where arrays use it, and leave the rows to the task."""
        self.receives.clear()
        self.task.written.clear()
        for block in (*self.held, *self.results):
            if block is not None:
                block.close()

    def travel(self, places: Sequence[Place]) -> list[Source | SharedArray]:
        """Send and receive what is in these places, and return each as it is in memory of this host.

        All ranks pass the places in the same order.
        """
        made = [self._sent(place) for place in places]
        self.task.show(doing="sending rows to other hosts")
        with self._on_the_way():
            self._send_rows()
            self._share_copies()
        return [make() for make in made]

    def _sent(self, place: Place) -> Callable[[], Source | SharedArray]:
        """Prepare the messages of a place. Returns a function that is called when these have arrived."""
        if isinstance(place, SharedRows):
            return self._parts(place)
        if isinstance(place, CSRRows):
            data, indices, indptr = (self._whole(part) for part in (place.data, place.indices, place.indptr))
            return lambda: replace(place, data=data(), indices=indices(), indptr=indptr())
        if isinstance(place, ReadRows):
            return self._rows(place)
        return self._result(place) if isinstance(place, Target) else self._whole(place)

    def _copy(self, nbytes: int) -> SharedBlock:
        """Make memory of this host into which so many bytes will be received."""
        block = SharedBlock.create(nbytes)
        self.held.append(block)
        self.receives.append(functools.partial(self._receive, self.host.carrier, [(block, 0, nbytes)]))
        return block

    def _opened(self, path: str) -> SharedBlock:
        block = SharedBlock.open(path)
        self.held.append(block)
        return block

    def _parts(self, source: SharedRows) -> Callable[[], SharedRows]:
        """Prepare an array of any dtype that is in a block for each rank."""
        paths = list(source.paths)
        for part, rank in enumerate(self.owners):
            nbytes = (source.bounds[part + 1] - source.bounds[part]) * source.row_bytes
            if self.host.elsewhere(rank) and self.host.carries:
                self.sends.append((rank, pieces_of(self._opened(paths[part]).array((nbytes,), np.uint8))))
            elif self.host.elsewhere(rank) and self.rank == rank:
                paths[part] = self._copy(nbytes).path
        return lambda: replace(source, paths=paths)

    def _rows(self, source: ReadRows) -> Callable[[], Source]:
        """Prepare rows of files of the notebook's host, of the notebook's own memory, or of a result.

        A rank reads the files itself if its host has the same.

        Raises
        ------
        NotEnoughMemoryError
            If the ranks cannot keep the rows, and some have no files from which to read them in each pass.
        """
        files = source.rows.files if isinstance(source, BlockRows) else ()
        reading = self._reading(files) if files else []
        if self.host.carries:
            if isinstance(source, BlockRows):
                source.rows.require_unchanged()
            others = [rank for rank in self.host.others() if rank not in reading]
            if others and isinstance(source, BlockRows) and source.kept is not None:
                raise NotEnoughMemoryError(_not_there(source, others))
            self.sends += ((rank, self._cut(source, rank)) for rank in others)
        if self.host.here:
            return lambda: source
        if isinstance(source, BlockRows) and reading:
            here = replace(source, rows=source.rows.on_this_host())
            return lambda: here
        return self._arriving(source)

    def _arriving(self, source: Source) -> Callable[[], Source]:
        """Prepare rows that will be on the device when they have travelled."""
        found: list[Source] = []
        self.receives.append(lambda: found.append(self._arrived(source)))
        return lambda: found[0]

    def _arrived(self, source: Source) -> Source:
        """Read this rank's rows from messages, as `Rows.read` does from other memory."""
        nbytes = (source.bounds[self.rank + 1] - source.bounds[self.rank]) * source.row_bytes
        sizes = piece_sizes(nbytes, rows_of_a_piece(source.row_bytes) * source.row_bytes)
        pieces = self.messages.incoming(self.host.carrier, sizes)
        rest = np.empty(0, np.uint8)

        def fill(_: int, part: np.ndarray) -> None:
            nonlocal rest
            empty = part.reshape(-1).view(np.uint8)
            while len(empty):
                rest = rest if len(rest) else next(pieces)
                n = min(len(empty), len(rest))
                empty[:n] = rest[:n]
                empty, rest = empty[n:], rest[n:]

        return self.task.read_in_order(source, fill)

    def _cut(self, source: ReadRows, rank: int) -> Iterator[np.ndarray]:
        """Yield the pieces of a rank's rows. Each is valid until `Messages` gives its memory again."""
        n, n_features = source.shape_of(rank)
        step = rows_of_a_piece(source.row_bytes)
        with source.reading(rank) as fill:
            for first in range(0, n, step):
                rows = min(step, n - first)
                piece = self.messages.buffer(rows * source.row_bytes)
                fill(first, piece.view(source.dtype).reshape(rows, n_features))
                yield piece

    def _reading(self, files: Sequence[str]) -> list[int]:
        """Return the ranks of other hosts that read the same files themselves; on such a rank itself only."""
        with self._on_the_way():
            if self.host.carries:
                samples, others = np.frombuffer(b"".join(map(sample_of, files)), np.uint8), self.host.others()
                same = np.zeros(len(others), np.uint8)
                self.messages.in_turn(self.messages.begin_send(samples, rank) for rank in others)
                self.messages.in_turn(
                    self.messages.begin_receive(same[at : at + 1], rank) for at, rank in enumerate(others)
                )
                return [rank for rank, reads in zip(others, same, strict=True) if reads]
            if self.host.here:
                return []
            samples = np.empty((len(files), SAMPLE), np.uint8)
            self.messages.receive(samples, self.host.carrier)
            reads = all(has_same(path, sample.tobytes()) for path, sample in zip(files, samples, strict=True))
            self.messages.send(np.array([reads], np.uint8), self.host.carrier)
            return [self.rank] if reads else []

    def _whole(self, array: SharedArray) -> Callable[[], SharedArray]:
        """Prepare an array that all ranks read: one copy for each other host, which its first rank receives."""
        if self.host.carries:
            here = self._opened(array.path).array((array.nbytes,), np.uint8, array.offset)
            self.sends += ((rank, pieces_of(here)) for rank in self.host.others() if self.host.leaders[rank] == rank)
        if self.host.here:
            return lambda: array
        paths: list[str] = []
        if self.host.leads:
            paths.append(self._copy(array.nbytes).path)
            self.shared.append((self.host.followers, paths[0]))
        else:
            self.takes.append(paths.append)
        return lambda: replace(array, path=paths[0], offset=0)

    def _result(self, target: Target) -> Callable[[], Target]:
        """Make memory for this rank's part of a result. Only pages that are written take memory."""
        if self.host.here:
            self.results.append(SharedBlock.open(target.path, writable=True) if self.host.carries else None)
            return lambda: target
        block = SharedBlock.create(target.nbytes)
        there = replace(target, path=block.path, number=len(self.results))
        self.results.append(block)
        return lambda: there

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
        self.messages.in_turn(self.messages.begin_send(piece, rank) for rank, piece in pieces)
        for receive in self.receives:
            receive()

    def _share_copies(self) -> None:
        """Tell the ranks of this host where its copies are. The first rank holds a copy until all have opened it."""
        for followers, path in self.shared:
            text = np.frombuffer(path.encode().ljust(_LONGEST), np.uint8)
            self.messages.in_turn(self.messages.begin_send(text, rank) for rank in followers)
        for take in self.takes:
            text = np.empty(_LONGEST, np.uint8)
            self.messages.receive(text, self.host.leaders[self.rank])
            take(self._opened(text.tobytes().decode().rstrip()).path)
        for followers, _ in self.shared:
            self.messages.in_turn(self.messages.begin_receive(np.empty(1, np.uint8), rank) for rank in followers)
        for _ in self.takes:
            self.messages.send(np.zeros(1, np.uint8), self.host.leaders[self.rank])

    def back(self) -> None:
        """Send what the ranks of other hosts have written into results to the carrier, which writes it there."""
        if not self.results or (self.host.here and not self.host.carries):
            return
        with self._on_the_way():
            if not self.host.carries:
                self.messages.in_turn(self._parts_written())
            else:
                for rank in self.host.others():
                    self._receive_from(rank)

    def _parts_written(self) -> Iterator[MPI.Request]:
        facts = [(each.number, each.offset, each.nbytes) for each in self.task.written]
        written = np.array(facts, np.int64).reshape(-1, 3)
        yield self.messages.begin_send(np.array([len(written)], np.int64), self.host.carrier)
        yield self.messages.begin_send(written, self.host.carrier)
        for each in self.task.written:
            block = self.results[each.number]
            assert block is not None
            if each.parts is None:
                made = pieces_of(block.array((each.nbytes,), np.uint8, each.offset))
            else:
                made = self.messages.joined(each.parts, each.nbytes)
            for piece in made:
                yield self.messages.begin_send(piece, self.host.carrier)

    def _receive_from(self, rank: int) -> None:
        self.task.await_message(self.messages.comm, rank, TAG)
        count = np.empty(1, np.int64)
        self.messages.receive(count, rank)
        written = np.empty((int(count[0]), 3), np.int64)
        self.messages.receive(written, rank)
        parts = ((self.results[number], offset, nbytes) for number, offset, nbytes in written.tolist())
        self._receive(rank, ((block, offset, nbytes) for block, offset, nbytes in parts if block is not None))

    def _receive(self, rank: int, parts: Iterable[tuple[SharedBlock, int, int]]) -> None:
        """Receive bytes for places in shared memory, in pieces."""
        places = [
            (block, offset + first, size)
            for block, offset, nbytes in parts
            for first, size in zip(range(0, nbytes, PIECE), piece_sizes(nbytes), strict=True)
        ]
        pieces = self.messages.incoming(rank, (size for *_, size in places))
        for (block, place, _), piece in zip(places, pieces, strict=True):
            block.write(piece, place)
