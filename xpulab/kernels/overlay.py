"""Shared blocks as the memory of a CPU device: its kernels compute on them where they are."""

from __future__ import annotations

import mmap
from typing import Any

import dpctl.memory
import numpy as np

from xpulab.kernels.device import Array, Device
from xpulab.sharing.memory import SharedBlock, restore

__all__ = ["is_overlaid", "overlaid"]


class _Overlaid(dpctl.memory.MemoryUSMShared):
    """USM memory with a shared block in its place.

    A CPU device computes on any memory of the process, but dpctl takes no pointer that SYCL has not given out. So the
    memory is SYCL's, and nobody has touched it when the block is put there: it costs addresses only.
    """

    def __del__(self) -> None:
        restore(self._pointer, self.nbytes)  # SYCL finds it as it was given out


def overlaid(device: Device, block: SharedBlock, nbytes: int, size: int, dtype: np.dtype[Any]) -> Array:
    """A flat device array that begins with the first `nbytes` of a block; changes of either are changes of both.

    Parameters
    ----------
    device : Device
        A CPU.
    block : SharedBlock
        Writable; its memory lives as long as the array, also when it is closed.
    nbytes : int
    size : int
        Elements of the array: at least `nbytes`. What is beyond those is not initialised.
    dtype : numpy.dtype
    """
    pages = -(-size * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = _Overlaid(pages, alignment=mmap.PAGESIZE, queue=device.queue)
    block.overlay(memory._pointer, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return Array(memory, size, dtype)


def is_overlaid(array: Array) -> bool:
    """Whether the memory of an array is a shared block's."""
    return isinstance(array.memory, _Overlaid)
