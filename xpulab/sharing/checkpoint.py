"""The state of a fit in memory that outlives the engines, so that new engines can continue the fit."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from xpulab.sharing.memory import SharedBlock

__all__ = ["Checkpoint"]


class Checkpoint:
    """Shared memory for the latest state of a fit.

    One process writes, and another may read at any moment. The memory has two slots, and a number that says which slot
    is complete. If the writer is killed while it writes, the other slot still has the last state. It is safe to
    unpickle the state, because only processes of the same user can write to the memory.

    Parameters
    ----------
    block : SharedBlock
        The memory, which `create` or `open` returns.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        self._head: Any = block.array((3,), np.int64)  # number of states written; bytes used in each slot
        self._room = (block.nbytes - self._head.nbytes) // 2
        self._slots: Any = block.array((2, self._room), np.uint8, self._head.nbytes)

    @classmethod
    def create(cls, nbytes: int) -> Checkpoint:
        """Create an empty checkpoint for states of up to `nbytes` bytes."""
        return cls(SharedBlock.create(24 + 2 * nbytes, "xpulab-checkpoint"))

    @classmethod
    def open(cls, path: str) -> Checkpoint:
        """Open the checkpoint that another process created."""
        return cls(SharedBlock.open(path, writable=True))

    @property
    def path(self) -> str:
        """The argument for `open` in another process of the same user on this host."""
        return self._block.path

    def write(self, state: Mapping[str, object]) -> None:
        """Keep this state instead of the last one. A state that is too large for a slot is ignored."""
        self.write_packed(pickle.dumps(state, pickle.HIGHEST_PROTOCOL))

    def write_packed(self, packed: bytes) -> None:
        """Keep a state that is pickled already."""
        if len(packed) > self._room:
            return
        slot = (int(self._head[0]) + 1) % 2
        self._slots[slot, : len(packed)] = np.frombuffer(packed, np.uint8)
        self._head[1 + slot] = len(packed)
        self._head[0] += 1  # the slot is complete now

    def read(self) -> dict[str, Any] | None:
        """Return the latest state; None if no state was written."""
        written = int(self._head[0])
        if not written:
            return None
        slot = written % 2
        state: dict[str, Any] = pickle.loads(self._slots[slot, : self._head[1 + slot]].tobytes())
        return state

    def close(self) -> None:
        """Close the shared memory."""
        self._head = self._slots = None
        self._block.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
