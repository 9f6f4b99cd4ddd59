"""Blocks of memory that the notebook and the engines of one host share, with no name and no clean-up to forget."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from xpulab.sharing import host_memory

__all__ = ["LEAST_SHARED", "BlockPool", "SharedBlock", "file_state", "keep_reachable", "reachable", "restore"]


class SharedBlock:
    """A memfd, mapped where it is looked at.

    Another process of the same user reaches it through ``/proc/<pid>/fd/<n>``; other users are refused by the kernel.
    It is freed when the last process that maps it lets go or ends, so that no failure leaves memory behind.
    """

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        self._descriptor = descriptor
        self.nbytes = nbytes
        self._writable = writable

    @classmethod
    def create(cls, nbytes: int, name: str = "xpulab") -> SharedBlock:
        """New memory, all zeros.

        Raises
        ------
        MemoryError
            If the host has not that much left.
        """
        if nbytes >= _LEAST_KEPT:
            # Pages are given out as they are written to: asking for too many shows only then, and ends a process.
            free = host_memory.available(swap=True)
            if nbytes > free:
                raise MemoryError(f"no shared block of {nbytes:,} bytes: {free:,} bytes are free")
        try:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        except OSError as error:
            raise MemoryError(f"no shared block of {nbytes:,} bytes: {error}") from error
        block = cls(descriptor, nbytes, writable=True)
        try:
            os.ftruncate(descriptor, max(nbytes, 1))
        except OSError as error:
            block.close()
            raise MemoryError(f"no shared block of {nbytes:,} bytes: {error}") from error
        return block

    @classmethod
    def open(cls, path: str, *, writable: bool = False) -> SharedBlock:
        """Map a block that another process made; see `path`.

        Raises
        ------
        FileNotFoundError
            If that process holds it no more; its descriptor may be another block's by now.
        """
        descriptor_path, _, inode = path.partition("?")
        descriptor = os.open(descriptor_path, os.O_RDWR if writable else os.O_RDONLY)
        status = os.fstat(descriptor)
        if str(status.st_ino) != inode:
            os.close(descriptor)
            raise FileNotFoundError(f"the shared block {path} is gone")
        return cls(descriptor, status.st_size, writable=writable)

    @functools.cached_property
    def _map(self) -> ctypes.Array[ctypes.c_char]:
        return _map(self._descriptor, max(self.nbytes, 1), self._writable)

    @property
    def path(self) -> str:
        """The path at which other processes of this user find the block, as long as this process holds it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}?{os.fstat(self._descriptor).st_ino}"

    def array(self, shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> np.ndarray[Any, Any]:
        """The memory from `offset` (in bytes) as an array; it keeps the memory alive after `close`."""
        if self._descriptor < 0:
            raise ValueError("this block is closed")
        array = np.frombuffer(memoryview(self._map), dtype, int(np.prod(shape)), offset).reshape(shape)
        array.flags.writeable = self._writable
        return array

    def write(self, data: np.ndarray[Any, Any], offset: int) -> None:
        """Copy a contiguous array to `offset` (in bytes).

        Not through a mapping: the kernel would fill each new page with zeros first, and be called for each of them.
        Threads that write into one block wait for each other.

        Raises
        ------
        MemoryError
            If the host has not that much left.
        """
        rest = data.reshape(-1).view(np.uint8).data
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
        except OSError as error:
            raise MemoryError(f"no shared memory for {len(rest):,} bytes more: {error}") from error

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Make other processes and threads that claim the block wait, for a tenth of a second at most.

        A process that is stopped in between does not hold up the others for ever.
        """
        # Opened anew: a lock belongs to an open file, and threads of this process share the descriptor.
        descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY)
        deadline = time.monotonic() + _LONGEST_CLAIM
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(1e-4)
            yield
        finally:
            os.close(descriptor)  # and the lock goes with it

    def overlay(self, address: int, nbytes: int) -> None:
        """Put the block's first `nbytes` in the place of memory that this process has, a whole number of pages.

        It stays there, also after `close`, until `restore`.
        """
        _map_at(address, nbytes, mmap.MAP_SHARED, self._descriptor)

    def close(self) -> None:
        """Drop the descriptor; the memory goes with the last array over it."""
        descriptor, self._descriptor = self._descriptor, -1  # in this order: Ctrl-C may come between the two
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> SharedBlock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class BlockPool:
    """Blocks that are no longer used, kept for the next requests because the system has given them pages already.

    Together they are never more than was in use at one time: where none fits, all go. They also go when nobody came for
    them in a while, and are not kept where memory is short.
    """

    def __init__(self) -> None:
        self._blocks: list[SharedBlock] = []
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that wait here."""
        return sum(block.nbytes for block in self._blocks)

    def take(self, nbytes: int) -> SharedBlock:
        """A block of at least so many bytes; it holds data of its last use.

        Raises
        ------
        MemoryError
            If the host has not that much left.
        """
        with self._lock:
            fitting = [block for block in self._blocks if nbytes <= block.nbytes <= 1.25 * nbytes]
            if fitting:
                block = min(fitting, key=lambda block: block.nbytes)
                self._blocks.remove(block)
                return block
        if nbytes >= _LEAST_KEPT:
            self.clear()
        return SharedBlock.create(nbytes)

    def give(self, block: SharedBlock) -> None:
        """A block that nobody writes to or reads any more."""
        with self._lock:
            if block.nbytes < _LEAST_KEPT or 4 * (self.nbytes + block.nbytes) > host_memory.available():
                block.close()
                return
            self._blocks.append(block)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(_KEPT, self.clear)
            self._timer.daemon = True
            self._timer.start()

    def clear(self) -> None:
        """Close all blocks."""
        with self._lock:
            for block in self._blocks:
                block.close()
            self._blocks.clear()


def keep_reachable(block: SharedBlock) -> None:
    """Let engines find the block of a result by an array over it, see `reachable`, as long as such an array lives.

    Of the results that live, only the latest few are found: each takes a descriptor of this process.
    """
    buffer = block._map
    address = ctypes.addressof(buffer)
    with _reachable_lock:
        _reachable[address] = SharedBlock(os.dup(block._descriptor), block.nbytes, writable=False)
        while len(_reachable) > _MOST_REACHABLE:
            _reachable.pop(next(iter(_reachable))).close()
    weakref.finalize(buffer, _not_reachable, address).atexit = False


def reachable(array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
    """Path of the block that holds the memory of an array, and the array's offset in bytes; None if no block does."""
    address = array.__array_interface__["data"][0]
    with _reachable_lock:
        for start, block in _reachable.items():
            if start <= address and address + array.nbytes <= start + block.nbytes:
                return block.path, address - start
    return None


def _not_reachable(address: int) -> None:
    with _reachable_lock:
        block = _reachable.pop(address, None)
    if block is not None:
        block.close()


def restore(address: int, nbytes: int) -> None:
    """Replace the memory that `SharedBlock.overlay` has mapped by ordinary memory, all zeros."""
    _map_at(address, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def file_state(file: int | str) -> list[int]:
    """Device, inode, and ns of the last change: numbers that show whether a file is the same as before."""
    status = os.stat(file)
    return [status.st_dev, status.st_ino, status.st_mtime_ns]


def _map_at(address: int, length: int, flags: int, descriptor: int) -> None:
    if _libc.mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, descriptor, 0) == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


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


#: Bytes from which on an array between processes travels through a shared block instead of a message.
LEAST_SHARED = 64 << 10
_LEAST_KEPT = 1 << 20  # bytes of a block: the pages of smaller ones are soon filled
_KEPT = 30.0  # seconds
_MOST_REACHABLE = 8  # results
_reachable: dict[int, SharedBlock] = {}  # address of a mapping -> its block, which maps nothing itself
_reachable_lock = threading.RLock()  # again: the collector may end an array's life while it is held
_LONGEST_CLAIM = 0.1  # seconds; the work under a claim takes microseconds
_MAP_FIXED = 0x10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
