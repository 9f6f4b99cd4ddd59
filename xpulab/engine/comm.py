"""The communicator of a rank: collectives that measure their time, and end when another rank has failed.

While a rank waits for the other ranks, it reads the board. It therefore leaves a collective soon after the exception of
another rank. There are two kinds of collectives:

- A message of few bytes goes to all ranks in one exchange, with the moment at which its sender arrived. `wait` is the
  time until the last rank arrived, and `communicate` the time from then on. On one host, the messages lie in shared
  memory, see `xpulab.sharing.bell.meeting`. Between hosts, they go by a call of MPI that does not block; their clocks
  differ, so that a barrier before it shows when all ranks have arrived.
- Before a longer message, the ranks meet. The collective after that is an ordinary one of MPI, or several if the
  message is very long. Until it ends, Ctrl-C in a user's code is held back, because the other ranks rely on this one
  to take part.

At the end of a task the ranks meet in a separate place. A rank that ends its task early therefore never matches a
collective in which another rank still is.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from mpi4py import MPI

from xpulab.engine.waiting import LAST, Pauses, held, interrupted
from xpulab.sharing.bell.meeting import Meeting

__all__ = ["Communicator", "Interrupted", "Meetings", "PeerFailed"]

T = TypeVar("T")

#: Seconds of polling at full speed. A CPU device's thread polls for up to 0.15 ms after a launch. A rank that yields
#: its core to it waits until Linux takes the core away again: a reduction then takes 0.3 ms in place of 0.02.
_SPIN = 200e-6
_YIELD = 2e-3  # until then other processes may use the core between two polls: ranks may share a core
_NAP = 20e-6  # seconds of sleep between two later polls, which grow with the wait by this share of it
_NAPS_SHARE = 0.01
_SLEEP = 2e-3  # the most seconds in a meeting until the next look at the board; a rank that comes ends the sleep
#: Bytes of all ranks together up to which everything is sent to all ranks. Where nothing else runs, MPI's reduction of
#: so many bytes takes 0.1 ms less. But a rank that waits in it keeps its core from the device's threads and from other
#: programs, and on a busy core it can take 100 ms.
FEW = 1 << 20
#: Most bytes of a message. Open MPI 5.0 refuses to send 2**31 items at once, such as bytes, which others do.
MOST = 1 << 30
#: Fewest items of an array that a collective call of MPI cannot address: it has 32 bits for an index.
ITEMS = 1 << 31

_OPS: dict[np.ufunc, MPI.Op] = {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX}

_left: list[MPI.Request] = []  # exchanges that other ranks never entered: MPI may still write to their memory


class PeerFailed(Exception):
    """Another rank has raised an exception, so this rank leaves the task. Users see the error of the other rank."""


class Interrupted(Exception):
    """The task was cancelled, on all ranks at the same point.

    Attributes
    ----------
    result : dict
        The result of the task so far.
    """

    def __init__(self, result: dict[str, object] | None = None) -> None:
        super().__init__()
        self.result = result or {}


class Meetings(NamedTuple):
    """Where the ranks of one host meet within a task, and at its end.

    Attributes
    ----------
    crowded : bool
        Whether there are fewer cores than ranks: one that waits then leaves its core to the others at once.
    """

    tasks: Meeting
    ends: Meeting
    crowded: bool = False


class Communicator:
    """Messages between the ranks of one task.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks of the task.
    failed : callable
        Returns True once a rank of the task has raised an exception.
    ends : mpi4py.MPI.Intracomm
        A communicator of the same ranks that only `end` uses.
    meetings : Meetings, optional
        If the ranks run on one host, so that they can compare times, and share a board.

    Attributes
    ----------
    wait, communicate : float
        Seconds spent waiting for the other ranks, and in the collectives themselves.
    """

    def __init__(
        self, comm: MPI.Intracomm, failed: Callable[[], bool], ends: MPI.Intracomm, meetings: Meetings | None = None
    ) -> None:
        self._comm, self._ends, self._meetings = comm, ends, meetings
        self._failed = failed
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.wait = 0.0
        self.communicate = 0.0

    def allreduce(self, values: np.ndarray, op: np.ufunc = np.add) -> np.ndarray:
        """Combine arrays of one shape and dtype over the ranks; every rank gets the same bits.

        `op` is `numpy.add`, `numpy.minimum` or `numpy.maximum`.

        If there are few bytes, each rank combines the arrays itself, in the order of the ranks. Otherwise the method
        calls Reduce and Bcast instead of Allreduce: MPI does not promise that Allreduce adds in the same order on all
        ranks, and ranks whose results differ in the last bit could take different branches.
        """
        values = _in_order(values)
        if self.size == 1:
            return values.copy()
        if self.size * values.nbytes <= FEW:
            every = self.allgather_arrays(values.ravel())
            return op.reduce(every, axis=0, dtype=values.dtype).reshape(values.shape)
        flat, result = values.reshape(-1), np.empty(values.size, values.dtype)

        def reduce() -> None:
            for part in _parts(flat.size, flat.itemsize):
                self._comm.Reduce(flat[part], result[part], _OPS[op], 0)
                self._comm.Bcast(result[part], 0)

        return self._together(reduce, result.reshape(values.shape))

    def reduce(self, values: np.ndarray, root: int = 0) -> np.ndarray | None:
        """Sum arrays of one shape and dtype over the ranks. Only `root` gets the sum; the other ranks get None."""
        if self._meeting_for(values.nbytes) is not None:
            total = self.allreduce(values)
            return total if self.rank == root else None
        flat = _in_order(values).reshape(-1)
        result = np.empty(flat.size if self.rank == root else 0, values.dtype)

        def reduce() -> None:
            for part in _parts(flat.size, flat.itemsize):
                self._comm.Reduce(flat[part], result[part] if self.rank == root else None, MPI.SUM, root)

        self._together(reduce)
        return result.reshape(values.shape) if self.rank == root else None

    def sum_of_share(self, values: np.ndarray) -> np.ndarray:
        """Sum arrays of shape (size * m, k) over the ranks, and return m rows of the sum: rank r has the r-th part."""
        if self._meeting_for(values.nbytes) is not None:
            return np.array(np.split(self.allreduce(values), self.size)[self.rank])
        shares = _in_order(values).reshape(self.size, -1, values.shape[1])
        result = np.empty(shares.shape[1:], values.dtype)

        def reduce() -> None:
            for part in _parts(len(result), shares[:, :1].nbytes):
                self._comm.Reduce_scatter_block(_in_order(shares[:, part]), result[part], MPI.SUM)

        return self._together(reduce, result)

    def exclusive_sums(self, value: float) -> np.ndarray:
        """Sum `value` over the ranks before each rank, and over all ranks: float64 of shape (size + 1,).

        The values are added in the order of the ranks, so that all ranks get the same result.
        """
        return np.concatenate([[0.0], np.cumsum(self.allgather_arrays(np.array([value])))])

    def allgather_arrays(self, values: np.ndarray) -> np.ndarray:
        """Collect arrays of one shape (m,) and dtype from all ranks: shape (size, m)."""
        if self.size == 1:
            return values[None].copy()
        if (meeting := self._meeting_for(values.nbytes)) is not None:
            self._meet(meeting, _in_order(values).view(np.uint8))
            return meeting.messages(values.nbytes).view(values.dtype)
        as_float64 = values.dtype.kind == "f" or values.dtype.itemsize < 8  # exactly
        if self._meetings is None and as_float64 and self.size * values.nbytes <= FEW:
            return self._allgather_as_float64(values)
        values = _in_order(values)
        every = np.empty((self.size, len(values)), values.dtype)
        return self._together(lambda: self._gather_parts(values, every), every)

    def _allgather_as_float64(self, values: np.ndarray) -> np.ndarray:
        self._arrive()
        entered, every = time.perf_counter(), np.empty((self.size, len(values)))
        self._poll_request(self._comm.Iallgather(values.astype(float), every), entered)
        self.communicate += time.perf_counter() - entered
        return every.astype(values.dtype, copy=False)

    def allgather_rows(self, rows: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
        """Collect the rows of all ranks, in the order of the ranks; all of them know how many each has."""
        counts = np.asarray(counts)
        padded = np.zeros((int(counts.max()), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        every = self.allgather_arrays(padded.ravel()).reshape(self.size, *padded.shape)
        return np.concatenate([part[:count] for part, count in zip(every, counts.tolist(), strict=True)])

    def allgather(self, thing: T) -> list[T]:
        """Collect one small Python object from each rank, in the order of the ranks."""
        if self.size == 1:
            return [thing]
        every = None if self._meetings is None else self._short(np.frombuffer(pickle.dumps(thing, -1), np.uint8))
        if every is None:
            return self._together(lambda: self._comm.allgather(thing))
        return [pickle.loads(each.data) for each in every]

    def bcast(self, thing: T, root: int = 0) -> T:
        """Send a small Python object from `root` to all ranks."""
        return self.allgather(thing if self.rank == root else cast(T, None))[root]

    def bcast_array(self, values: np.ndarray, root: int = 0) -> np.ndarray:
        """Return the values of `root` on all ranks. On the other ranks, `values` has the same shape and dtype."""
        if (meeting := self._meeting_for(values.nbytes)) is not None:
            self._meet(meeting, _in_order(values).reshape(-1).view(np.uint8) if self.rank == root else None)
            return meeting.messages(values.nbytes)[root].view(values.dtype).reshape(values.shape)
        found = _in_order(values) if self.rank == root else np.empty_like(values, order="C")
        flat = found.reshape(-1)

        def send() -> None:
            for part in _parts(flat.size, flat.itemsize):
                self._comm.Bcast(flat[part], root)

        return found if self.size == 1 else self._together(send, found)

    def gather_blocks(self, block: np.ndarray, root: int = 0) -> np.ndarray | None:
        """Join one-dimensional blocks of different lengths in the order of the ranks. Only `root` gets the result."""
        block = _in_order(block)
        if (every := self._short(block.view(np.uint8))) is not None:
            return np.concatenate([each.view(block.dtype) for each in every]) if self.rank == root else None
        counts = self.allgather(len(block))
        joined = np.empty(sum(counts), block.dtype) if self.rank == root else None

        def gather() -> None:
            for part in _parts(max(counts), self.size * block.itemsize):
                place = _within(part, np.array(counts))
                if sum(counts) < ITEMS:
                    self._comm.Gatherv(block[part], None if joined is None else [joined, place], root)
                else:
                    sent = [block[part] if rank == root else block[:0] for rank in range(self.size)]
                    self._exchange_pairs(sent, [] if joined is None else _slices(joined, place))

        self._together(gather)
        return joined

    def exchange_rows(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Send rows to each rank, and receive rows from each rank (MPI's Alltoallv).

        Parameters
        ----------
        rows : numpy.ndarray of shape (n, n_columns)
            The rows for rank 0 come first, then the rows for rank 1, and so on.
        counts : numpy.ndarray of int of shape (size,)
            Number of rows for each rank.

        Returns
        -------
        numpy.ndarray of shape (m, n_columns)
            The received rows, in the order of the ranks that sent them.
        """
        if self.size == 1:
            return rows.copy()
        rows = _in_order(rows)
        every = self.allgather_arrays(np.asarray(counts, np.int64))
        came = every[:, self.rank]
        if (parts := self._short(rows.reshape(-1).view(np.uint8))) is not None:
            each = (part.view(rows.dtype).reshape(-1, rows.shape[1]) for part in parts)
            firsts = np.cumsum(every, axis=1)[:, self.rank] - came
            return np.concatenate([part[i : i + n] for part, i, n in zip(each, firsts, came, strict=True)])
        found = np.empty((int(came.sum()), rows.shape[1]), rows.dtype)
        row = MPI.BYTE.Create_contiguous(rows.shape[1] * rows.itemsize).Commit()

        def exchange() -> None:
            for part in _parts(int(every.max()), row.size):
                sent, taken = _within(part, every[self.rank]), _within(part, came)
                if max(every.sum(axis=0).max(), every.sum(axis=1).max()) < ITEMS:
                    self._comm.Alltoallv([rows, sent, row], [found, taken, row])
                else:
                    self._exchange_pairs(_slices(rows, sent), _slices(found, taken))

        try:
            return self._together(exchange, found)
        finally:
            row.Free()

    def _gather_parts(self, values: np.ndarray, every: np.ndarray) -> None:
        """Collect arrays of shape (m,) in `every`, of shape (size, m)."""
        for part in _parts(len(values), self.size * values.itemsize):
            place = every[:, part]
            whole = place.flags.c_contiguous
            found = place if whole else np.empty_like(place, order="C")
            self._comm.Allgather(values[part], found)
            if not whole:
                place[:] = found

    def _exchange_pairs(self, sent: list[np.ndarray], taken: list[np.ndarray]) -> None:
        """Send an array to each rank, and receive one from each; those of no length are not sent."""
        into = [self._comm.Irecv([each, MPI.BYTE], rank) for rank, each in enumerate(taken) if each.size]
        out = [self._comm.Isend([each, MPI.BYTE], rank) for rank, each in enumerate(sent) if each.size]
        MPI.Request.Waitall(into + out)

    def _together(self, collective: Callable[[], Any], result: object = None) -> Any:
        """Wait until every rank has arrived, run the collective, and add up the time of both."""
        with held():
            self._arrive()
            arrived = time.perf_counter()
            returned = collective()
            self.communicate += time.perf_counter() - arrived
        return result if result is not None else returned

    def end(self, raised: bool) -> bool:
        """Wait until every rank has reached the end of the task.

        Parameters
        ----------
        raised : bool
            Whether this rank has raised an exception.

        Returns
        -------
        bool
            Whether a rank of several hosts has; their boards may not show it yet. On one host False: see the board.

        Raises
        ------
        PeerFailed
            If another rank has raised an exception, and will not arrive.
        """
        if self._meetings is not None:
            self._meet(self._meetings.ends)
            return False
        entered, every = time.perf_counter(), np.empty(self.size, np.int8)
        self._poll_request(self._ends.Iallgather(np.array([raised], np.int8), every), entered)
        self.wait += time.perf_counter() - entered
        return bool(every.any())

    def _arrive(self) -> None:
        """Wait until every rank has arrived."""
        if self._meetings is not None:
            self._meet(self._meetings.tasks)
            return
        entered = time.perf_counter()
        self._poll_request(self._comm.Ibarrier(), entered)
        self.wait += time.perf_counter() - entered

    def _meeting_for(self, nbytes: int) -> Meeting | None:
        """Return where ranks of one host leave messages of so many bytes each, if these are few."""
        if self._meetings is None or not self._is_short(self._meetings.tasks, nbytes):
            return None
        return self._meetings.tasks

    def _is_short(self, meeting: Meeting, nbytes: int) -> bool:
        return nbytes <= meeting.room and self.size * nbytes <= FEW

    def _short(self, message: np.ndarray) -> list[np.ndarray] | None:
        """Collect bytes of all ranks of one host; None on all ranks if a message is long."""
        if self._meetings is None:
            return None
        meeting, length = self._meetings.tasks, len(message)
        lengths = self._meet(meeting, message if self._is_short(meeting, length) else None, length)
        if not self._is_short(meeting, max(lengths)):
            return None
        messages = meeting.messages(max(lengths))
        return [each[:n] for each, n in zip(messages, lengths, strict=True)]

    def _meet(self, meeting: Meeting, message: np.ndarray | None = None, length: int = 0) -> list[int]:
        """Come to a meeting with a message, wait for all ranks, and return the lengths of their messages."""
        entered = time.perf_counter()
        meeting.come(entered, message, length)
        crowded = self._meetings is not None and self._meetings.crowded
        pauses = Pauses(0.0 if crowded else _YIELD, _SLEEP, sleep=meeting.sleep)
        self._poll(meeting.is_complete, pauses.pause, entered, 0.0 if crowded else _SPIN)
        now = time.perf_counter()
        heads = meeting.heads()
        last = min(max(heads)[0], now)
        self.wait += last - entered
        self.communicate += now - last
        return [length for _, length in heads]

    def _poll_request(self, request: MPI.Request, entered: float) -> None:
        """Wait until the request is complete, which means that every rank has made the same call."""
        try:
            self._poll(request.Test, Pauses(_YIELD, _NAP, _NAPS_SHARE).pause, entered, _SPIN)
        except BaseException:
            _left.append(request)
            raise

    def _poll(self, ready: Callable[[], bool], pause: Callable[[float], None], entered: float, spin: float) -> None:
        leaving = float("inf")
        while not ready():
            waited = time.perf_counter() - entered
            if waited > spin:
                # A reduction among ranks that arrive together is over by now, and never pays for reading the board.
                if self._failed() or interrupted():
                    leaving = min(leaving, waited + LAST)
                    if waited > leaving:
                        raise PeerFailed
                pause(waited)


def _in_order(values: np.ndarray) -> np.ndarray:
    """Return the values without gaps and in C order, as MPI's collectives read them from the memory of each rank.

    MPI sends memory as it lies, so that a rank with Fortran order would add its columns to the rows of another rank.
    """
    return np.asarray(values, order="C")


def _parts(n: int, nbytes: int) -> Iterator[slice]:
    """Yield slices of `n` items of so many bytes, each of at most `MOST` bytes, or one item."""
    step = max(1, MOST // max(1, nbytes))
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _slices(rows: np.ndarray, place: tuple[list[int], list[int]]) -> list[np.ndarray]:
    """Return slices of an array, of which the lengths and the first indices are given."""
    return [rows[first : first + n] for n, first in zip(*place, strict=True)]


def _within(part: slice, counts: np.ndarray) -> tuple[list[int], list[int]]:
    """Return how many items of each rank are in this part of the rank's block, and the index of the first of them."""
    before = np.minimum(counts, part.start)
    return (np.minimum(counts, part.stop) - before).tolist(), (np.cumsum(counts) - counts + before).tolist()
