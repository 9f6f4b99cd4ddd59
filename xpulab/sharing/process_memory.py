"""Reads memory of another process of this host, so that the engines take rows from the notebook without another copy.

The Linux kernel copies from one process to another with `process_vm_readv` [1]_. It allows this if the reader may trace
the other process: both are processes of one user, and the Yama security module, where it is in use, has been told of
the reader [2]_.

References
----------
.. [1] Linux manual page process_vm_readv(2).
.. [2] Linux kernel documentation, "Yama", section "ptrace_scope".
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ProcessMemory", "allow", "can_read"]

_libc = ctypes.CDLL(None, use_errno=True)
_SET_PTRACER = 0x59616D61  # PR_SET_PTRACER of prctl(2)


class _Part(ctypes.Structure):
    """The C structure ``iovec``."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


_read = _libc.process_vm_readv
_read.restype = ctypes.c_ssize_t
_read.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Part), ctypes.c_ulong) * 2, ctypes.c_ulong)


@dataclass(frozen=True)
class ProcessMemory:
    """The memory of a process from an address on.

    Attributes
    ----------
    pid : int
    started : str
        When the process started, in clock ticks since the system's start: the system uses pids again.
    address : int
    """

    pid: int
    started: str
    address: int

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> ProcessMemory:
        """Return the memory of this process that has an array. The caller keeps the array alive."""
        return cls(os.getpid(), _started(os.getpid()), array.ctypes.data)

    def read(self, offset: int, to: npt.NDArray[Any]) -> None:
        """Fill an array with bytes of the process.

        Parameters
        ----------
        offset : int
            Number of bytes after the address.
        to : numpy.ndarray
            Contiguous and writable.

        Raises
        ------
        OSError
            If the process has ended, if it has no memory there, or if this process may not read its memory.
        """
        address, place, left = self.address + offset, to.ctypes.data, to.nbytes
        while left:
            done = _read(self.pid, _Part(place, left), 1, _Part(address, left), 1, 0)
            if done <= 0:
                error = ctypes.get_errno()
                raise OSError(error, f"the memory of process {self.pid} cannot be read: {os.strerror(error)}")
            place, address, left = place + done, address + done, left - done

    def require_running(self) -> None:
        """Raise `ProcessLookupError` if the process has ended, so that what was read may be another one's memory."""
        if _started(self.pid) != self.started:
            raise ProcessLookupError(f"process {self.pid}, whose memory has the rows, has ended")


def can_read(memory: ProcessMemory, expected: bytes) -> bool:
    """Return whether this process reads these bytes in the memory of another one.

    Parameters
    ----------
    memory : ProcessMemory
    expected : bytes
    """
    found = np.zeros(len(expected), np.uint8)
    try:
        memory.read(0, found)
    except OSError:
        return False
    return found.tobytes() == expected


def _started(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def allow(pid: int) -> None:
    """Allow a process and its descendants to read the memory of this process, until it ends or another is allowed.

    Without Yama this has no effect, because nothing has to be allowed.
    """
    _libc.prctl(_SET_PTRACER, *map(ctypes.c_ulong, (pid, 0, 0, 0)))
