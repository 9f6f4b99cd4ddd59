"""Memory that SYCL takes for its own, and that is a shared block: a CPU's kernels compute on the block in place."""

from __future__ import annotations

import mmap
from typing import Any

import dpctl.memory

from xpulab.sharing.memory import SharedBlock, restore

__all__ = ["Overlaid"]


class Overlaid(dpctl.memory.MemoryUSMShared):
    """USM memory with a shared block in its place.

    A CPU device computes on any memory of the process, but dpctl only takes pointers that SYCL has allocated. So SYCL
    allocates the memory, and the block is mapped over it before anything has touched it: it costs addresses only.
    """

    @classmethod
    def over(cls, queue: Any, block: SharedBlock, nbytes: int, size: int) -> Overlaid:
        """Memory of at least `size` bytes whose first `nbytes` are the block's; the rest is not initialised."""
        memory = cls(_whole_pages(size), alignment=mmap.PAGESIZE, queue=queue)
        block.overlay(memory._pointer, _whole_pages(nbytes))
        return memory

    def __del__(self) -> None:
        restore(self._pointer, self.nbytes)  # SYCL frees the memory that it has allocated


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
