"""Rows that several calls use stay on the engines between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.scanning import Scan
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import Handle, Source

__all__ = ["SentOnce"]


class SentOnce:
    """An array that several calls use. It is checked once and sent once.

    The engines keep the array until Python deletes this object.

    Parameters
    ----------
    given : array-like
        The array as the user passed it.

    Attributes
    ----------
    checked : Any
        The array as `checked_rows` returned it; None before the check.
    spool : tuple of (Scan, callable) or None
        What `spooled` has returned, if the rows do not fit into memory.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.checked: Any = None
        self.spool: tuple[Scan, Callable[[], None]] | None = None
        self._handle: ShardedArray | None = None

    def hold(self, cluster: Ranks, X: Any, bounds: list[int], blocks: list[SharedBlock]) -> Handle:
        """Make a handle for the rows that are sent now, and return what makes the engines keep the rows.

        The `blocks`, which are their memory, live as long as the handle.
        """
        self._handle = cluster.made_handle(X.shape, X.dtype, bounds, blocks=blocks)
        return self._handle.handle

    def discard(self) -> None:
        """Free the rows, because the call that sent them has failed."""
        self.spool = None
        if self._handle is not None:
            self._handle.discard()
            self._handle = None

    def are_on(self, cluster: Ranks, X: Any) -> bool:
        """Return whether the engines keep these rows."""
        return X is self.checked and self.source(cluster) is not None

    def source(self, cluster: Ranks) -> Source | None:
        """Return what tells the engines to use the rows that they keep; None if they do not have them (any more)."""
        there = self._handle is not None and self._handle.is_on(cluster)
        return self._handle.source(cluster) if self._handle is not None and there else None
