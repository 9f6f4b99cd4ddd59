"""Calls of MPI before which the ranks tell each other a number, or that they are there: mpi4py blocks for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.users_mpi.large_collectives import items_of
from xpulab.engine.users_mpi.messages import NOTHING
from xpulab.engine.waiting import look

__all__ = ["Neighbours", "loads_each", "meet_in_group", "with_counts"]

_TAGS = 1 << 10  # tags, the largest ones that MPI allows, by which the ranks of a new group meet
_LEAST = 32767  # the largest tag that each MPI allows


class Neighbours:
    """What communicators with neighbours do with objects."""

    def neighbor_allgather(self: Any, sendobj: object) -> list[Any]:
        """As mpi4py's: None from a neighbour that a grid does not have at its border."""
        return self._exchanged(MPI.pickle.dumps(sendobj), None)

    def neighbor_alltoall(self: Any, sendobj: Sequence[object]) -> list[Any]:
        """As mpi4py's: None from a neighbour that a grid does not have at its border."""
        things = list(sendobj)
        if len(things) != self.outdegree:
            raise ValueError(f"received {len(things)} objects, expected {self.outdegree}, one for each neighbour")
        pieces = [MPI.pickle.dumps(thing) for thing in things]
        return self._exchanged(b"".join(pieces), np.array([len(piece) for piece in pieces], np.int64))

    def _exchanged(self: Any, data: bytes, sending: np.ndarray | None) -> list[Any]:
        """Return the objects of the neighbours: each sends all of the data to all, or so many bytes to each."""
        receiving = np.zeros(self.indegree, np.int64)
        if sending is None:
            self.Neighbor_allgather(np.array([len(data)]), receiving)
            joined = bytearray(int(receiving.sum()))
            self.Neighbor_allgatherv([data, MPI.BYTE], [joined, receiving, MPI.BYTE])
        else:
            self.Neighbor_alltoall(sending, receiving)
            joined = bytearray(int(receiving.sum()))
            self.Neighbor_alltoallv([data, sending, MPI.BYTE], [joined, receiving, MPI.BYTE])
        return loads_each(joined, receiving)


def loads_each(joined: bytearray, sizes: np.ndarray) -> list[Any]:
    """Return the objects of so many bytes each; None for none."""
    ends, data = np.cumsum(sizes), memoryview(joined)
    return [MPI.pickle.loads(data[end - size : end]) if size else None for size, end in zip(sizes, ends, strict=True)]


def with_counts(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method like this `Reduce_scatter` that asks the other ranks for `recvcounts` if they are not given."""

    @functools.wraps(call)
    def with_recvcounts(
        self: Any,
        sendbuf: object,
        recvbuf: object,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        *rest: Any,
        **named: Any,
    ) -> Any:
        items = items_of(recvbuf)
        if recvcounts is None and items is not None:  # mpi4py refuses what is no message
            counts = np.empty(self.size, np.int64)
            self.Allgather(np.array([items]), counts)
            recvcounts = counts.tolist()
        return call(self, sendbuf, recvbuf, recvcounts, op, *rest, **named)

    return with_recvcounts


def meet_in_group(comm: Any, group: MPI.Group, tag: int) -> None:
    """Wait until all ranks of a group of the communicator's ranks are here. The wait can be left."""
    if group.rank == MPI.UNDEFINED:
        return
    ranks = MPI.Group.Translate_ranks(group, range(group.size), comm.group)
    most: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # None if an engine's world, a copy, does not have it
    tag = (most or _LEAST) - tag % _TAGS
    if group.rank == 0:
        for rank in ranks[1:]:
            comm.Recv(NOTHING, rank, tag)
        for rank in ranks[1:]:
            comm.Send(NOTHING, rank, tag)
    else:
        comm.Sendrecv(NOTHING, ranks[0], tag, NOTHING, ranks[0], tag)
    look()  # a rank that left the meeting has raised an exception
