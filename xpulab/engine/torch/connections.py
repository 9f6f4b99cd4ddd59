"""The communicators of ranks that are a process group of torch.distributed; groups of the same ranks share them."""

from __future__ import annotations

import itertools

from mpi4py import MPI

from xpulab.engine.engine import this_engine
from xpulab.engine.torch.collective_queue import CollectiveQueue
from xpulab.engine.users_mpi.interruptible import WORLD, Intracomm

__all__ = ["Connection", "connection"]


class Connection:
    """The communicators of some ranks, and the queue of their collectives."""

    def __init__(self, base: MPI.Intracomm) -> None:
        self.base = base
        self.comm, self.pairs = base.Dup(), base.Dup()
        self.queue = CollectiveQueue()
        self.numbers = itertools.count()


_connections: dict[tuple[int, ...], Connection] = {}


def connection(ranks: tuple[int, ...]) -> Connection:
    """Return the connection of these ranks. Groups of the same ranks share it.

    A rank may make its group anew when others do not, such as after a cell on some of the ranks. The communicators,
    which all ranks make together, therefore do not belong to a group.
    """
    engine, known = this_engine(), _connections.get(ranks)
    if engine is not None:
        base: MPI.Intracomm = engine.communicators.of(ranks)
    else:
        base = known.base if known is not None else Intracomm(WORLD.Create_group(WORLD.group.Incl(ranks)))
    if known is None or known.base is not base:
        _connections[ranks] = known = Connection(base)
    return known
