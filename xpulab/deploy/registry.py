"""The clusters of this process: which of them is active, and what to do when the last one has ended."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from xpulab.sharing.descriptions import EngineDescription

__all__ = ["Member", "Registry"]


class _Life(Protocol):
    @property
    def has_run(self) -> bool:
        """Whether engines have started."""


class Member(Protocol):
    """A cluster of this process."""

    @property
    def life(self) -> _Life:
        """Its part that starts and ends its engines."""

    @property
    def running(self) -> bool:
        """Whether it has running engines."""

    @property
    def facts(self) -> list[EngineDescription]:
        """Description of each engine."""

    @property
    def label(self) -> str:
        """Name and size for messages."""

    def end(self) -> None:
        """End or leave the engines, when this process ends."""


MemberT = TypeVar("MemberT", bound=Member)


class Registry(Generic[MemberT]):
    """The clusters of a process. A forked process has none at first: its parent owns the sockets.

    Attributes
    ----------
    running : list
        The running clusters; the last one is active.
    latest : list
        The cluster that was active last, which may have ended; then one that did not start.
    of_parent : list
        In a forked process: the clusters that its parent uses.
    """

    def __init__(self) -> None:
        self.running: list[MemberT] = []
        self.latest: list[MemberT] = []
        self.of_parent: list[MemberT] = []
        self._at_the_last_end: list[Callable[[], None]] = []
        os.register_at_fork(after_in_child=self._leave_to_parent)
        atexit.register(self._end_all)

    def _leave_to_parent(self) -> None:
        """In a forked process: forget the clusters of the parent, which goes on to use them."""
        self.of_parent[:] = self.running or self.of_parent
        self.running.clear()
        self.latest.clear()
        self._at_the_last_end.clear()

    def _end_all(self) -> None:
        for cluster in self.running.copy():
            cluster.end()

    def activate(self, cluster: MemberT) -> None:
        """Make a running cluster the active one."""
        self.latest[:] = [cluster]
        self.running.append(cluster)
        if self.running.count(cluster) > 1:  # removed afterwards, so that other threads always find an active cluster
            self.running.remove(cluster)

    def forget(self, cluster: MemberT) -> None:
        """Forget a cluster: it has stopped, or this process no longer uses it."""
        if cluster in self.running:
            self.running.remove(cluster)

    def failed(self, cluster: MemberT) -> None:
        """Note that a cluster did not start. It is the latest one, after a cluster that has run."""
        self.latest[:] = [*(each for each in self.latest if each.life.has_run and each is not cluster), cluster]

    def at_the_last_end(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function when this process no longer has a cluster; see `xpulab.deploy.current`."""
        self._at_the_last_end.append(call)

        def take_back() -> None:
            if call in self._at_the_last_end:
                self._at_the_last_end.remove(call)

        return take_back

    def tell_of_an_end(self) -> None:
        """Call these functions if this process has no cluster."""
        if not self.running:
            for call in self._at_the_last_end.copy():
                call()
