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
        self._replace_world()

    def renew(self) -> None:
        """Make new communicators after a failure: on the old ones, ranks left a barrier that others never entered."""
        if self.tasks is MPI.COMM_SELF:
            return
        self._generation += 1
        # Requests may still be pending on the old communicators, so they must not be freed.
        self._abandoned += [self.tasks, self.ends, *self._of_ranks.values()]
        self._of_ranks.clear()
        self.tasks = WORLD.Create_group(WORLD.group, self._generation)
        self.ends = self.tasks.Dup()
        if self._helper is not None:
            self._helper.renew(self._generation)
        self._replace_world()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Open a context in which the tasks are those of this rank only."""
        before = self.tasks, self.ends
        self.tasks = self.ends = MPI.COMM_SELF
        try:
            yield
        finally:
            self.tasks, self.ends = before

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
