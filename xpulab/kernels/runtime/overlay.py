"""Makes a shared block usable as SYCL memory, so that the kernels of a CPU compute on the block itself."""

from __future__ import annotations

import mmap

import dpctl.memory

from xpulab.sharing.memory import SharedBlock, restore

__all__ = ["Overlaid"]


class Overlaid(dpctl.memory.MemoryUSMShared):
    """USM memory over which a shared block is mapped.

    A CPU device can use any memory of the process, but dpctl accepts only pointers that SYCL has allocated. Therefore
    SYCL allocates memory, and the block is mapped over it. SYCL's memory was never written, so it takes no pages.
    """

    @classmethod
    def over(cls, queue: dpctl.SyclQueue, block: SharedBlock, nbytes: int, size: int) -> Overlaid:
        """Return at least `size` bytes, of which the first `nbytes` are the block's, and the rest is uninitialised."""
        memory = cls(_whole_pages(size), alignment=mmap.PAGESIZE, queue=queue)
        block.overlay(memory._pointer, _whole_pages(nbytes))
        return memory

    def __del__(self) -> None:
        restore(self._pointer, self.nbytes)  # SYCL needs ordinary memory to free


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
