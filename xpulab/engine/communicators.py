"""The communicators of MPI that a rank has, and their replacement after a failure."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Sequence

from mpi4py import MPI

from xpulab.engine.hosts.helper import Helper
from xpulab.engine.users_mpi import files, pkl5, windows  # noqa: F401 -- a user's code finds their classes in mpi4py
from xpulab.engine.users_mpi.interruptible import WORLD, Intracomm

__all__ = ["Communicators", "told_by_rank_0"]

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


class Communicators:
    """The communicators of a rank. All ranks create and renew them together.

    Parameters
    ----------
    helper : Helper or None
        The helper rank, if there is one.

    Attributes
    ----------
    tasks : mpi4py.MPI.Intracomm
        All ranks, within a task.
    ends : mpi4py.MPI.Intracomm
        All ranks, at the end of a task.
    token : str
        The same on all ranks, and on no other engines.
    """

    def __init__(self, helper: Helper | None) -> None:
        self._helper = helper
        self.token: str = WORLD.bcast(uuid.uuid4().hex)
        self.tasks, self.ends = WORLD.Dup(), WORLD.Dup()
        self._of_ranks: dict[tuple[int, ...], Intracomm] = {}
        self._generation = 0
        self._abandoned: list[MPI.Intracomm] = []
        self._members: tuple[int, ...] = ()  # the ranks of the tasks, if these are some of all
        self._of_members: dict[tuple[int, ...], tuple[MPI.Intracomm, MPI.Intracomm]] = {}
        self._replace_world()

    def renew(self) -> None:
        """Make new communicators after a failure: on the old ones, ranks left a barrier that others never entered."""
        if self._members:
            self._renew_for_members()
            return
        self._generation += 1
        # Requests may still be pending on the old communicators, so they must not be freed.
        self._abandoned += [self.tasks, self.ends, *self._of_ranks.values()]
        self._abandoned += (comm for both in self._of_members.values() for comm in both)
        self._of_ranks.clear()
        self._of_members.clear()
        self.tasks = WORLD.Create_group(WORLD.group, self._generation)
        self.ends = self.tasks.Dup()
        if self._helper is not None:
            self._helper.renew(self._generation)
        self._replace_world()

    @contextlib.contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator[None]:
        """Open a context in which the tasks are those of some ranks, of which this rank is one. All of them call it."""
        before = self.tasks, self.ends, self._members
        self._members = tuple(ranks)
        if self._members not in self._of_members:
            self._renew_for_members()
        self.tasks, self.ends = self._of_members[self._members]
        try:
            yield
        finally:
            self.tasks, self.ends, self._members = before

    def _renew_for_members(self) -> None:
        self._abandoned += self._of_members.pop(self._members, ())
        self.tasks = self.ends = MPI.COMM_SELF
        if len(self._members) > 1:
            self.tasks = WORLD.Create_group(WORLD.group.Incl(self._members), _OF_MEMBERS)
            self.ends = self.tasks.Dup()
        self._of_members[self._members] = self.tasks, self.ends

    @property
    def pairs(self) -> MPI.Intracomm:
        """A communicator for messages between two ranks within a task, of which the helper rank is a member."""
        return self.tasks if self._helper is None else self._helper.pairs

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
