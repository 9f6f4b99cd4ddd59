"""Blocks of memory that the notebook and the engines of one host share. They have no name and need no clean-up."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import pickle
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from xpulab.sharing import host_memory

__all__ = [
    "LEAST_SHARED",
    "BlockPool",
    "MemoryPool",
    "SharedBlock",
    "keep_reachable",
    "prefer_huge_pages",
    "reachable",
    "restore",
    "shared_or_sent",
]


class SharedBlock:
    """Shared memory without a name (memfd), which is mapped at its first use.

    Another process of the same user opens it through ``/proc/<pid>/fd/<n>``; the Linux kernel rejects other users. The
    kernel frees it when the last process that maps it unmaps it or ends, so no failure leaves memory behind.

    Parameters
    ----------
    descriptor : int
        File descriptor, which this object owns.
    nbytes : int
        Size in bytes.
    writable : bool
        Whether this process may write to the memory.
    """

    _descriptor = -1  # until `__init__` has begun, which Ctrl-C may prevent

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        self._descriptor = descriptor
        self.nbytes = nbytes
        self._writable = writable
        self._mapped: ctypes.Array[ctypes.c_char] | None = None

    @classmethod
    def create(cls, nbytes: int, name: str = "xpulab") -> SharedBlock:
        """Create a block, all zeros.

        Parameters
        ----------
        nbytes : int
            Size in bytes.
        name : str, default="xpulab"
            The name in ``/proc/<pid>/maps``, which tells blocks apart there.

        Raises
        ------
        MemoryError
            If the host has too little memory.
        """
        if nbytes >= _LEAST_KEPT:
            # The kernel allocates pages only when they are written. If there are too few, it then kills a process.
            free = host_memory.recently_available(swap=True) if nbytes < _MUCH else host_memory.available(swap=True)
            if nbytes > free:
                raise MemoryError(
                    f"no shared block of {nbytes:,} bytes: {free:,} bytes are free; delete arrays or stop other "
                    "processes, or use fewer rows"
                )
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
    def create_on_disk(cls, nbytes: int, folder: str | None = None) -> SharedBlock:
        """Create a block, all zeros, in a file without a name, whose pages the system writes to the disk when it needs.

        Parameters
        ----------
        nbytes : int
            Size in bytes.
        folder : str, optional
            Where the file is; by default the folder that the environment variable TMPDIR names, or /var/tmp, which no
            system keeps in memory.

        Raises
        ------
        MemoryError
            If the folder's disk has too little space.
        """
        folder = folder or os.environ.get("TMPDIR", "/var/tmp")
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
                return cls(os.dup(file.fileno()), nbytes, writable=True)
        except OSError as error:
            raise MemoryError(
                f"no file of {nbytes:,} bytes in {folder}: {error}; set the environment variable TMPDIR to a folder on "
                "a larger disk"
            ) from error

    @classmethod
    def open(cls, path: str, *, writable: bool = False) -> SharedBlock:
        """Open a block that another process created.

        Parameters
        ----------
        path : str
            `path` of the block in that process.
        writable : bool, default=False
            Whether this process may write to the memory.

        Raises
        ------
        FileNotFoundError
            If that process has closed the block; another file may have its descriptor now.
        """
        descriptor_path, _, inode = path.partition("?")
        descriptor = os.open(descriptor_path, os.O_RDWR if writable else os.O_RDONLY)
        status = os.fstat(descriptor)
        if str(status.st_ino) != inode:
            os.close(descriptor)
            raise FileNotFoundError(f"the shared block {path} is gone")
        return cls(descriptor, status.st_size, writable=writable)

    @property
    def _map(self) -> ctypes.Array[ctypes.c_char]:
        if self._mapped is None:  # a cached_property has a lock for all blocks of the process, up to Python 3.11
            self._mapped = _map(self._descriptor, max(self.nbytes, 1), self._writable)
        return self._mapped

    @property
    def path(self) -> str:
        """The path with which other processes of this user open the block, until this process closes it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}?{os.fstat(self._descriptor).st_ino}"

    def array(self, shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> np.ndarray[Any, Any]:
        """Return the memory from `offset` (in bytes) on as an array, which stays valid after `close`.

        Raises
        ------
        ValueError
            If the block is closed.
        """
        if self._descriptor < 0:
            raise ValueError("this block is closed")
        array = np.frombuffer(memoryview(self._map), dtype, int(np.prod(shape)), offset).reshape(shape)
        array.flags.writeable = self._writable
        return array

    def write(self, data: np.ndarray[Any, Any], offset: int) -> None:
        """Copy a contiguous array to `offset` (in bytes).

        It uses `os.pwrite` rather than a mapping, with which the kernel would handle a page fault for each new page,
        and fill it with zeros. Threads that write into the same block wait for each other.

        Raises
        ------
        MemoryError
            If the host has too little memory.
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
        """Open a context in which only one process or thread uses the block; the others wait for at most 0.1 s.

        Because of this limit, a process that is stopped in this context does not block the others for ever.
        """
        # A lock belongs to an open file, and threads of this process share the descriptor. So the file is opened again.
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
            os.close(descriptor)  # this releases the lock

    def overlay(self, address: int, nbytes: int) -> None:
        """Map the block's first `nbytes` bytes at `address`, in place of other memory of this process.

        Both are multiples of the page size. The mapping lasts until `restore`, also after `close`.
        """
        _map_at(address, nbytes, mmap.MAP_SHARED, self._descriptor)

    def close(self) -> None:
        """Close the descriptor. The memory is freed when the last array that uses it is deleted."""
        descriptor, self._descriptor = self._descriptor, -1  # first, so that Ctrl-C cannot make it be closed twice
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


class Closable(Protocol):
    """Memory that a pool can keep."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def close(self) -> None:
        """Free the memory."""


Memory = TypeVar("Memory", bound=Closable)
Shared = TypeVar("Shared")


class MemoryPool(Generic[Memory]):
    """Keeps memory for the next requests, because the system has already allocated its pages.

    If no memory of the pool fits a request, all of it is freed, so the pool never has more than was in use at one time.
    Memory is also freed after some seconds without use, and it is not kept if the host has little free memory.

    Parameters
    ----------
    create : callable
        Returns new memory of a number of bytes.
    """

    def __init__(self, create: Callable[[int], Memory]) -> None:
        self._create = create
        self._blocks: list[Memory] = []
        self._lock = threading.RLock()  # reentrant, because Python may delete an array while this thread holds the lock
        self._used = 0.0  # when memory was given
        self._looks = False  # whether a thread will look whether the memory is still used

    @property
    def nbytes(self) -> int:
        """Bytes in the pool."""
        return sum(block.nbytes for block in self._blocks)

    def take(self, nbytes: int) -> Memory:
        """Return memory of at least `nbytes` bytes, which may contain data of an earlier use.

        Raises
        ------
        MemoryError
            If the host has too little memory.
        """
        with self._lock:
            fitting = [block for block in self._blocks if nbytes <= block.nbytes <= 1.25 * nbytes]
            if fitting:
                block = min(fitting, key=lambda block: block.nbytes)
                self._blocks.remove(block)
                return block
        if nbytes >= _LEAST_KEPT:
            self.clear()
        return self._create(nbytes)

    def give(self, block: Memory) -> None:
        """Give memory to the pool. Nobody may read or write it any more."""
        with self._lock:
            if block.nbytes < _LEAST_KEPT or 4 * (self.nbytes + block.nbytes) > host_memory.recently_available():
                block.close()
                return
            self._blocks.append(block)
            self._used = time.monotonic()
            if not self._looks:
                self._look_after(_KEPT)

    def _look_after(self, seconds: float) -> None:
        """Have a thread free all memory that is not used for a while. A thread for each use would take time."""
        self._looks = True
        timer = threading.Timer(seconds, self._look)
        timer.daemon = True
        timer.start()

    def _look(self) -> None:
        with self._lock:
            self._looks = False
            left = self._used + _KEPT - time.monotonic()
            if left > 0 and self._blocks:
                self._look_after(left)
                return
            self.clear()

    def clear(self) -> None:
        """Free all memory of the pool."""
        with self._lock:
            for block in self._blocks:
                block.close()
            self._blocks.clear()


class BlockPool(MemoryPool[SharedBlock]):
    """Keeps shared blocks for the next requests."""

    def __init__(self) -> None:
        super().__init__(SharedBlock.create)


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask the system for pages of 2 MiB, which it allocates and finds much faster; without them nothing changes."""
    first, last = -(-address // _HUGE) * _HUGE, (address + nbytes) // _HUGE * _HUGE
    if last > first:
        _libc.madvise(first, last - first, _MADV_HUGEPAGE)


def keep_reachable(block: SharedBlock) -> None:
    """Make `reachable` find the block of a result from an array in it, as long as such an array exists.

    Only the latest few results are found, because each needs an open descriptor in this process.
    """
    buffer = block._map
    address = ctypes.addressof(buffer)
    with _reachable_lock:
        _reachable[address] = SharedBlock(os.dup(block._descriptor), block.nbytes, writable=False)
        while len(_reachable) > _MOST_REACHABLE:
            _reachable.pop(next(iter(_reachable))).close()
    weakref.finalize(buffer, _not_reachable, address).atexit = False


def reachable(array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
    """Return the path of the block that contains an array, and its offset in bytes; None if no known block does."""
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


def shared_or_sent(
    buffers: Sequence[pickle.PickleBuffer], share: Callable[[np.ndarray[Any, Any]], Shared]
) -> list[bytes | Shared]:
    """Return the buffers of a pickle for another process: the bytes of small buffers, and where large ones are.

    Parameters
    ----------
    buffers : sequence of pickle.PickleBuffer
    share : callable
        Copies a large buffer, an array of uint8, into shared memory, and returns where it is.
    """
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return [share(raw) if raw.nbytes >= LEAST_SHARED else raw.tobytes() for raw in arrays]


def restore(address: int, nbytes: int) -> None:
    """Replace the memory that `SharedBlock.overlay` has mapped by ordinary memory, filled with zeros."""
    _map_at(address, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def _map_at(address: int, length: int, flags: int, descriptor: int) -> None:
    if _libc.mmap(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, descriptor, 0) == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _map(descriptor: int, length: int, writable: bool) -> ctypes.Array[ctypes.c_char]:
    """Map a file. It is unmapped when the last array that uses the buffer is deleted.

    Python's mmap would keep another descriptor open for each result that a user holds.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, length, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    buffer = (ctypes.c_char * length).from_address(address)
    weakref.finalize(buffer, _libc.munmap, address, length).atexit = False
    return buffer


#: An array of at least this many bytes is passed between processes in a shared block instead of a message.
LEAST_SHARED = 64 << 10
_MUCH = 64 << 20  # bytes of a block for which the free memory is looked at in any case
_LEAST_KEPT = 1 << 19  # a pool keeps blocks of at least this many bytes; new pages of smaller blocks are filled quickly
_KEPT = 30.0  # seconds that a pool keeps unused blocks
_MOST_REACHABLE = 8  # number of results that `reachable` can find
_reachable: dict[int, SharedBlock] = {}  # address of a mapping -> its block, which has no mapping of its own
_reachable_lock = threading.RLock()  # reentrant, because Python may delete an array while this thread holds the lock
_LONGEST_CLAIM = 0.1  # seconds; the work under a claim takes microseconds
_MAP_FIXED = 0x10
_HUGE = 2 << 20
_MADV_HUGEPAGE = 14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
]  # fmt: skip
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
