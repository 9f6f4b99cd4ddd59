"""The state of a fit in memory that outlives the engines, so that new engines can continue the fit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from xpulab.sharing.memory import SharedBlock

__all__ = ["Checkpoint"]


class Checkpoint:
    """A place in shared memory for the latest state of a fit.

    One process writes, one reads, at any moment: there are two slots, and a number that says which one is whole. A
    writer that is killed in the middle leaves the other as it was. Where memory is shared, only processes of the same
    user reach it, which is why what is read may be unpickled.

    Parameters
    ----------
    block : SharedBlock
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self._head: Any = block.array((3,), np.int64)  # states written; bytes of each slot
        self._room = (block.nbytes - self._head.nbytes) // 2
        self._slots: Any = block.array((2, self._room), np.uint8, self._head.nbytes)

    @classmethod
    def create(cls, nbytes: int) -> Checkpoint:
        """A place for states of up to `nbytes`; nothing is written yet."""
        return cls(SharedBlock.create(24 + 2 * nbytes, "xpulab-checkpoint"))

    @classmethod
    def open(cls, path: str) -> Checkpoint:
        """The one that another process made."""
        return cls(SharedBlock.open(path, writable=True))

    @property
    def path(self) -> str:
        """The argument for `open` in another process of the same user on this host."""
        return self._block.path

    def write(self, state: dict[str, Any]) -> None:
        """Keep this state in the place of the one before; one that is too large for the slot is passed over."""
        packed = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        if len(packed) > self._room:
            return
        slot = (int(self._head[0]) + 1) % 2
        self._slots[slot, : len(packed)] = np.frombuffer(packed, np.uint8)
        self._head[1 + slot] = len(packed)
        self._head[0] += 1  # now the slot is whole

    def read(self) -> dict[str, Any] | None:
        """The latest state; None if no state was written."""
        written = int(self._head[0])
        if not written:
            return None
        slot = written % 2
        state: dict[str, Any] = pickle.loads(self._slots[slot, : self._head[1 + slot]].tobytes())
        return state

    def close(self) -> None:
        """Let the memory go."""
        self._head = self._slots = None
        self._block.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
