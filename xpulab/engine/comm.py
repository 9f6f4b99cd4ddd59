"""The communicator of a rank: MPI's collectives, with their time split in two, and a way out when another rank failed.

Nobody stands in a collective for ever: while a rank waits for the others it polls, and watches the board, so that it
leaves soon after another has raised. Few bytes go to all in one exchange that does not block; with each comes the
moment at which its rank arrived, so that `wait` is the time until the last one did, and `communicate` what it took from
there. More begin with a barrier that does not block, after which the collective is an ordinary one; Ctrl-C in a user's
code is held back from the barrier to the collective's end, because the others count on this rank. The ranks end a
task on a communicator of its own: there, what a rank does at its end never matches a collective in which another rank
still is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from xpulab.engine.waiting import LAST, held, interrupted

__all__ = ["Communicator", "PeerFailed"]

T = TypeVar("T")

_SPIN = 50e-6  # seconds of polling at full speed; a reduction among busy ranks takes less
_YIELD = 2e-3  # then other processes may have the core between polls: ranks may be more than cores
_NAP = 20e-6  # seconds, for which it is then left to them
_FEW = 1 << 18  # bytes of all ranks: so many are sent to all sooner than a reduction has had its turns

_OPS: dict[np.ufunc, MPI.Op] = {np.add: MPI.SUM, np.minimum: MPI.MIN, np.maximum: MPI.MAX}

_left: list[MPI.Request] = []  # exchanges that other ranks never entered: MPI may still write to their memory


class PeerFailed(Exception):
    """Another rank has raised; this one leaves the task. Never shown: the failing rank's error is."""


class Communicator:
    """MPI for one task.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks of the task.
    failed : callable
        Returns True once a rank of the task has raised.
    ends : mpi4py.MPI.Intracomm
        The same ranks; used for nothing but `end`.

    Attributes
    ----------
    wait, communicate : float
        Seconds spent waiting for the other ranks, and in the collectives themselves.
    """

    def __init__(self, comm: MPI.Intracomm, failed: Callable[[], bool], ends: MPI.Intracomm) -> None:
        self._comm = comm
        self._ends = ends
        self._failed = failed
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.wait = 0.0
        self.communicate = 0.0

    def allreduce(self, values: np.ndarray, op: np.ufunc = np.add) -> np.ndarray:
        """Combine arrays of one shape and dtype over the ranks; every rank gets the same bits.

        `op` is `numpy.add`, `numpy.minimum` or `numpy.maximum`.

        Few bytes are combined by each rank, in the order of ranks. For more, Reduce and Bcast instead of Allreduce:
        MPI does not promise that an Allreduce adds in the same order everywhere, and ranks that disagree in a last bit
        could take different turns.
        """
        if self.size == 1:
            return values.copy()
        if self.size * values.nbytes <= _FEW:
            every = self.allgather_arrays(values.ravel())
            return op.reduce(every, axis=0, dtype=values.dtype).reshape(values.shape)
        result = np.empty_like(values)

        def reduce() -> None:
            self._comm.Reduce(values, result, _OPS[op], 0)
            self._comm.Bcast(result, 0)

        return self._together(reduce, result)

    def reduce(self, values: np.ndarray, root: int = 0) -> np.ndarray | None:
        """Sum arrays of one shape and dtype over the ranks, for `root` alone; the other ranks get None."""
        result = np.empty_like(values) if self.rank == root else None
        return self._together(lambda: self._comm.Reduce(values, result, MPI.SUM, root), result)

    def exclusive_sums(self, value: float) -> np.ndarray:
        """Sums of `value` over the ranks before each rank, and over all: float64 of shape (size + 1,).

        Added in the order of the ranks, so that the result is the same on each.
        """
        return np.concatenate([[0.0], np.cumsum(self.allgather_arrays(np.array([value])))])

    def allgather_arrays(self, values: np.ndarray) -> np.ndarray:
        """Arrays of one shape (m,) and dtype from all ranks: shape (size, m)."""
        if self.size == 1:
            return values[None].copy()
        as_float64 = values.dtype.kind == "f" or values.dtype.itemsize < 8  # exactly
        if self.size * values.nbytes > _FEW or not as_float64:
            every = np.empty((self.size, len(values)), values.dtype)
            return self._together(lambda: self._comm.Allgather(values, every), every)
        entered = time.perf_counter()
        message = np.empty(1 + len(values))
        message[0], message[1:] = entered, values
        messages = np.empty((self.size, len(message)))
        self._poll(self._comm.Iallgather(message, messages), entered)
        now = time.perf_counter()
        last = min(max(messages[:, 0].tolist()), now)
        self.wait += last - entered
        self.communicate += now - last
        return messages[:, 1:].astype(values.dtype, copy=False)

    def allgather(self, thing: T) -> list[T]:
        """The things of all ranks, by rank; small Python objects only."""
        return self._together(lambda: self._comm.allgather(thing))

    def bcast(self, thing: T, root: int = 0) -> T:
        """The thing of one rank, on all."""
        return self._together(lambda: self._comm.bcast(thing, root))

    def gather_blocks(self, block: np.ndarray, root: int = 0) -> np.ndarray | None:
        """One-dimensional blocks of different lengths, joined in the order of the ranks, on `root` alone."""
        counts = self.allgather(len(block))
        joined = np.empty(sum(counts), block.dtype) if self.rank == root else None
        return self._together(
            lambda: self._comm.Gatherv(block, [joined, counts] if joined is not None else None, root), joined
        )

    def exchange_rows(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Send rows to each rank, and receive rows from each rank (MPI's Alltoallv).

        Parameters
        ----------
        rows : numpy.ndarray of shape (n, n_columns)
            Those for rank 0 first, then those for rank 1, and so on.
        counts : numpy.ndarray of int of shape (size,)
            How many there are for each rank.

        Returns
        -------
        numpy.ndarray of shape (m, n_columns)
            In the order of the ranks that they came from.
        """
        if self.size == 1:
            return rows.copy()
        rows = np.ascontiguousarray(rows)
        every = self.allgather_arrays(np.asarray(counts, np.int64))
        came = every[:, self.rank]
        found = np.empty((int(came.sum()), rows.shape[1]), rows.dtype)
        # A type of a whole row: counts in bytes would pass the 2**31 that MPI counts to.
        row = MPI.BYTE.Create_contiguous(rows.shape[1] * rows.itemsize).Commit()

        def exchange() -> None:
            sent = [rows, (every[self.rank].tolist(), _offsets(every[self.rank])), row]
            self._comm.Alltoallv(sent, [found, (came.tolist(), _offsets(came)), row])

        try:
            return self._together(exchange, found)
        finally:
            row.Free()

    def _together(self, collective: Callable[[], Any], result: Any = None) -> Any:
        """Wait until every rank is here, run the collective, account for both."""
        with held():
            self._arrive(self._comm)
            arrived = time.perf_counter()
            returned = collective()
            self.communicate += time.perf_counter() - arrived
        return result if result is not None else returned

    def end(self) -> None:
        """Wait until every rank has come to the end of the task.

        Raises
        ------
        PeerFailed
            If another rank has raised, and so will not come.
        """
        self._arrive(self._ends)

    def _arrive(self, comm: MPI.Intracomm) -> None:
        entered = time.perf_counter()
        self._poll(comm.Ibarrier(), entered)
        self.wait += time.perf_counter() - entered

    def _poll(self, request: MPI.Request, entered: float) -> None:
        """Wait until every rank has come to this, too."""
        leaving = float("inf")
        while not request.Test():
            waited = time.perf_counter() - entered
            if waited > _SPIN:
                # The board is read outside of the fast path only: a reduction among ranks in step never gets here.
                if self._failed() or interrupted():
                    leaving = min(leaving, waited + LAST)
                    if waited > leaving:
                        _left.append(request)
                        raise PeerFailed
                if waited < _YIELD:
                    os.sched_yield()
                else:
                    time.sleep(_NAP)


def _offsets(counts: np.ndarray) -> list[int]:
    """Where each part begins."""
    return [0, *np.cumsum(counts)[:-1].tolist()]
