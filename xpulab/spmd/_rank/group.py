"""Some of the ranks in place of a cluster: one of them runs the code, and the others take part in its tasks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from xpulab.data import Outgoing
from xpulab.deploy.current import in_place_of_cluster
from xpulab.engine.users_mpi.interruptible import Intracomm
from xpulab.sharing.answers import Reply
from xpulab.sharing.memory import SharedBlock
from xpulab.spmd._rank.ranks import ALONE, ProgramRanks, RanksOfOne, ranks

__all__ = ["RankGroup", "group_of", "groups_of"]

T = TypeVar("T")

_NUMBERS = 1 << 39  # a rank's own tasks and those of its group have different numbers


def groups_of(size: int, n: int) -> list[range]:
    """Divide ranks into `n` groups of neighbours, whose sizes differ by one at most."""
    bounds = [size * group // n for group in range(n + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


@functools.cache
def group_of(members: range) -> RankGroup:
    """Return the group of these ranks, always the same: the number of a task that failed must not come again."""
    return RankGroup(ranks(), members)


class RankGroup(RanksOfOne):
    """Ranks of which the first runs code, in `leading`, while the others are in `serve`.

    Parameters
    ----------
    ranks : ProgramRanks
    members : range
    """

    def __init__(self, ranks: ProgramRanks, members: range) -> None:
        self.engine, self._blocks, self._members = ranks.engine, ranks._blocks, members
        self.facts = [ranks.facts[member] for member in members]
        self.busy, self.last_report, self.interrupted = False, None, None
        self.alone = ranks.alone
        self._number = ALONE + _NUMBERS + (members[0] << 40)
        self._gone: list[str] = []  # handles that the code has deleted, and the ranks still have

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._members)

    def together(self, call: str, work: Callable[[], T]) -> T:
        """Call a function on the first rank."""
        self.busy = True
        try:
            with in_place_of_cluster(self):
                return work()
        finally:
            self.busy = False

    def serve(self) -> None:
        """Take part in the tasks of the first rank, until its context `leading` ends."""
        with self._among() as comm:
            while True:
                name, number, payload, gone = comm.bcast(None)
                self._forget(gone)
                if not name:
                    return
                self._run(name, number, payload)

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Open a context for calls of `together`, while the other ranks are in `serve`."""
        with self._among():
            yield
            self._send("", {})

    @contextlib.contextmanager
    def _among(self) -> Iterator[Intracomm]:
        """Open a context in which tasks are those of the group. All of its ranks call this together."""
        self._comm = self.engine.communicators.of(self._members)
        with self.engine.among(self._members):
            yield self._comm

    def _send(self, name: str, payload: dict[str, object]) -> None:
        """Tell the other ranks of a task, or with an empty name of the end, and of the handles that are gone."""
        gone, self._gone = self._gone, []
        self._forget(gone)
        self._comm.bcast((name, self._number, payload, gone))

    def _forget(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self.engine.handles.pop(handle, None)

    def _replies(self, name: str, payload: dict[str, object]) -> Sequence[Reply]:
        """Run a task on all ranks of the group, and return their replies."""
        self._send(name, payload)
        return self._run(name, self._number, payload)

    def _run(self, name: str, number: int, payload: dict[str, object]) -> list[Reply]:
        """Run a task on all ranks of the group, which call this together, and return their replies."""
        replies: list[Reply] = self._comm.allgather(self.engine.run(name, number, payload))
        if self.engine.board.failed(number):  # some ranks may have left a collective that others never entered
            self.engine.renew_communicators()
        return replies

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the ranks of the group."""
        return Outgoing(self._blocks)

    def release_with(self, owner: object, handle: str, blocks: Sequence[SharedBlock] = ()) -> Any:
        """Free the rows of `handle` at the task after the code has deleted `owner`."""
        keeper = weakref.finalize(owner, self._gone.append, handle)
        keeper.atexit = False
        return keeper
