"""Some of the ranks in place of a cluster: one of them runs the code, and the others take part in its tasks."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from xpulab.data import Outgoing
from xpulab.deploy.current import in_place_of_cluster
from xpulab.sharing.answers import Reply
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import Target
from xpulab.spmd._rank.ranks import ALONE, ProgramRanks

__all__ = ["RankGroup", "groups_of"]

T = TypeVar("T")

_NUMBERS = 1 << 39  # a rank's own tasks and those of its group have different numbers


def groups_of(size: int, n: int) -> list[range]:
    """Divide ranks into `n` groups of neighbours, whose sizes differ by one at most."""
    bounds = [size * group // n for group in range(n + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


class RankGroup(ProgramRanks):
    """Ranks of which the first runs code, in `leading`, while the others are in `serve`.

    Parameters
    ----------
    ranks : ProgramRanks
    members : sequence of int
    """

    rank = 0

    def __init__(self, ranks: ProgramRanks, members: Sequence[int]) -> None:
        self.engine, self._blocks, self._members = ranks.engine, ranks._blocks, members
        self.facts = [ranks.facts[member] for member in members]
        self.busy, self.last_report, self.interrupted = False, None, None
        self.alone = ranks.alone
        self._comm = self.engine.communicators.of(members)
        self._number = ALONE + _NUMBERS + (members[0] << 40)
        self._gone: list[str] = []  # handles that the code has deleted, and the others still have

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
        with self.engine.among(self._members):
            while (sent := self._comm.bcast(None)) is not None:
                name, number, payload, gone = sent
                self._forget(gone)
                self._comm.gather(self.engine.run(name, number, payload))

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Open a context for calls of `together`, while the other ranks are in `serve`."""
        with self.engine.among(self._members):
            yield
            self._comm.bcast(None)

    def _forget(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self.engine.handles.pop(handle, None)

    def _replies(self, name: str, payload: dict[str, object]) -> Sequence[Reply]:
        """Run a task on all ranks of the group, and return their replies."""
        gone, self._gone = self._gone, []
        self._forget(gone)
        self._comm.bcast((name, self._number, payload, gone))
        found: list[Reply] = self._comm.gather(self.engine.run(name, self._number, payload)) or []
        return found

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the ranks of the group."""
        return Outgoing(self._blocks)

    def receive(
        self,
        outgoing: Outgoing,
        bounds: list[int] | None,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        on_disk: bool = False,
    ) -> tuple[Target, np.ndarray[Any, Any]]:
        """Allocate memory for a whole result: of a handle, or of rows of the code."""
        return outgoing.receive(shape, dtype, on_disk)

    def entries(self, X: Any) -> range:
        """Return the indices of all rows."""
        return range(X.shape[0])

    def release_with(self, owner: object, handle: str, blocks: Sequence[SharedBlock] = ()) -> Any:
        """Free the rows of `handle` at the task after the code has deleted `owner`."""
        keeper = weakref.finalize(owner, self._gone.append, handle)
        keeper.atexit = False
        return keeper
