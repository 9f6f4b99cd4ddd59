"""Blocks of memory that the notebook and the engines of one host share, with no name and no clean-up to forget."""

from __future__ import annotations

import mmap
import os
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

__all__ = ["SharedBlock"]


class SharedBlock:
    """A memfd, mapped.

    Another process of the same user reaches it through ``/proc/<pid>/fd/<n>``; other users are refused by the kernel.
    It is freed when the last process that maps it lets go or ends, so that no failure leaves memory behind.
    """

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        self._descriptor = -1  # not ours to close until it is mapped
        self.nbytes = nbytes
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, max(nbytes, 1), access=access)
        self._descriptor = descriptor

    @classmethod
    def create(cls, nbytes: int, name: str = "xpulab") -> SharedBlock:
        """New memory, all zeros.

        Raises
        ------
        MemoryError
            If the host has not that much left.
        """
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, max(nbytes, 1))
            return cls(descriptor, nbytes, writable=True)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise MemoryError(f"no shared block of {nbytes:,} bytes: {error}; {available:,} bytes are free") from error

    @classmethod
    def open(cls, path: str, *, writable: bool = False) -> SharedBlock:
        """Map a block that another process made; see `path`."""
        descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        return cls(descriptor, os.fstat(descriptor).st_size, writable=writable)

    @property
    def path(self) -> str:
        """Where other processes of this user find the block, as long as this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def array(self, shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> np.ndarray[Any, Any]:
        """The memory from `offset` (in bytes) as an array; it keeps the memory alive after `close`."""
        return np.frombuffer(self._map, dtype, int(np.prod(shape)), offset).reshape(shape)

    def close(self) -> None:
        """Drop the descriptor; the memory goes with the last array over it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> SharedBlock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
