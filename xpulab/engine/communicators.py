"""The communicators and meetings that a rank has, and their replacement after a failure."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpi4py import MPI

from xpulab.engine.comm import Meetings
from xpulab.engine.hosts.helper import Helper
from xpulab.engine.users_mpi import files, pkl5, windows  # noqa: F401 -- a user's code finds their classes in mpi4py
from xpulab.engine.users_mpi.interruptible import WORLD, Intracomm
from xpulab.sharing.bell.meeting import Meeting
from xpulab.sharing.board import Board

__all__ = ["Communicators", "Ways", "told_by_rank_0"]

_OF_MEMBERS = (1 << 14) + 1  # tag of the creation of communicators of some ranks; those of all count from 1
_LOOK = 2e-3  # seconds between two looks whether all ranks have started


def told_by_rank_0(world: MPI.Intracomm, value: str) -> str:
    """Return rank 0's value, after all ranks have come. Those that still import need the cores.

    A blocking call would use one of them.
    """
    arrived = world.Ibarrier()
    while not arrived.Test():
        time.sleep(_LOOK)
    return str(world.bcast(value))


class Ways(NamedTuple):
    """What the ranks of a task have for messages within it and at its end; no meetings if they are on several hosts."""

    tasks: MPI.Intracomm
    ends: MPI.Intracomm
    meetings: Meetings | None


class Communicators:
    """The communicators of a rank. All ranks create and renew them together.

    Parameters
    ----------
    helper : Helper or None
        The helper rank, if there is one.
    board : Board
        The board of this host.
    several : bool
        Whether there are ranks on several hosts.

    Attributes
    ----------
    ways : Ways
        Those of the tasks.
    token : str
        The same on all ranks, and on no other engines.
    """

    def __init__(self, helper: Helper | None, board: Board, several: bool) -> None:
        self._helper, self._board, self._several = helper, board, several
        self.token: str = WORLD.bcast(uuid.uuid4().hex)
        every = [] if several else WORLD.allgather(os.sched_getaffinity(0))
        self._crowded = len(set().union(*every)) < WORLD.size
        self._of_ranks: dict[tuple[int, ...], Intracomm] = {}
        self._generation = 0
        self._of_members: dict[tuple[int, ...], Ways] = {}
        self._made = 0  # for some of the ranks, if this one is the first of them
        self._members: tuple[int, ...] = ()  # the ranks of the tasks, if these are some of all
        self._abandoned: list[MPI.Intracomm] = []
        self.ways = self._of_all(WORLD.Dup())
        self._replace_world()

    def _of_all(self, tasks: MPI.Intracomm) -> Ways:
        every, meetings = range(WORLD.size), None
        if not self._several:
            meetings = self._meetings(self._board.meetings[:2], every, self._generation)
        return Ways(tasks, tasks.Dup(), meetings)

    def _meetings(self, memory: Sequence[memoryview], ranks: Sequence[int], generation: int) -> Meetings:
        tasks, ends = (Meeting(each, WORLD.size, WORLD.rank, ranks, generation) for each in memory)
        return Meetings(tasks, ends, self._crowded)

    def renew(self) -> None:
        """Make new communicators after a failure: on the old ones, ranks left a barrier that others never entered."""
        if self._members:
            self._renew_for_members()
            return
        self._generation += 1
        # Requests may still be pending on the old communicators, so they must not be freed.
        self._abandoned += [*self.ways[:2], *self._of_ranks.values()]
        self._abandoned += (comm for ways in self._of_members.values() for comm in ways[:2])
        self._of_ranks.clear()
        self._of_members.clear()
        self.ways = self._of_all(WORLD.Create_group(WORLD.group, self._generation))
        if self._helper is not None:
            self._helper.renew(self._generation)
        self._replace_world()

    @contextlib.contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator[None]:
        """Open a context in which the tasks are those of some ranks, of which this rank is one. All of them call it."""
        before = self.ways, self._members
        self._members = tuple(ranks)
        if self._members not in self._of_members:
            self._renew_for_members()
        self.ways = self._of_members[self._members]
        try:
            yield
        finally:
            self.ways, self._members = before

    def _renew_for_members(self) -> None:
        ranks = self._members
        if ranks in self._of_members:
            self._abandoned += self._of_members.pop(ranks)[:2]
        tasks = ends = MPI.COMM_SELF
        if len(ranks) > 1:
            tasks = WORLD.Create_group(WORLD.group.Incl(ranks), _OF_MEMBERS)
            ends = tasks.Dup()
        self._made += 1
        generation: int = tasks.bcast(self._made * WORLD.size + WORLD.rank)  # no other first rank has the same
        meetings = self._meetings(self._board.meetings[2:], ranks, generation)
        self._of_members[ranks] = self.ways = Ways(tasks, ends, meetings)

    @property
    def pairs(self) -> MPI.Intracomm:
        """A communicator for messages between two ranks within a task, of which the helper rank is a member."""
        return self.ways.tasks if self._helper is None else self._helper.pairs

    def of(self, ranks: Sequence[int]) -> Intracomm:
        """Return the communicator of these ranks for a user's code. Only these ranks take part in its creation."""
        ranks = tuple(ranks)
        if ranks not in self._of_ranks:
            self._of_ranks[ranks] = Intracomm(WORLD.Create_group(WORLD.group.Incl(ranks)))
        return self._of_ranks[ranks]

    def _replace_world(self) -> None:
        """Replace `MPI.COMM_WORLD` by a communicator whose calls can be interrupted."""
        world = self.of(range(WORLD.size))
        world.name = "MPI_COMM_WORLD"
        setattr(MPI, "COMM_WORLD", world)  # noqa: B010 -- mpi4py declares it final
