"""Blocks of memory that the notebook and the engines of one host share, with no name and no clean-up to forget."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
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
        self._writable = writable
        self._map = _map(descriptor, max(nbytes, 1), writable)
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
        except (OSError, OverflowError) as error:
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
        array = np.frombuffer(memoryview(self._map), dtype, int(np.prod(shape)), offset).reshape(shape)
        array.flags.writeable = self._writable
        return array

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


def _map(descriptor: int, length: int, writable: bool) -> ctypes.Array[ctypes.c_char]:
    """Map a file; it is unmapped when the last array over the buffer is gone.

    Not Python's mmap: it keeps a descriptor of its own open, one for each array of results that a user holds.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, length, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    buffer = (ctypes.c_char * length).from_address(address)
    weakref.finalize(buffer, _libc.munmap, address, length).atexit = False
    return buffer


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
