"""Rows of a file that the notebook has mapped into its memory, and whether another host has the same file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from xpulab.sharing.memory import file_state

__all__ = ["SAMPLE", "file_rows", "has_same", "sample_of"]

_PLACES = 64  # parts of a file that are compared, besides its beginning and its end
_PART = 4096  # bytes of each
_DIGEST = 32
_SAMPLE = struct.Struct(f"{3 + _PLACES}q{_DIGEST}s")  # the size, the places, a digest of the parts

#: Bytes of a sample.
SAMPLE = _SAMPLE.size


def file_rows(source: dict[str, Any]) -> np.ndarray:
    """The rows of all ranks, mapped from the file.

    Parameters
    ----------
    source : dict
        ``file``, ``state``, ``shape``, ``dtype``, ``offset`` and ``order``, see `xpulab.data.mapped`.

    Raises
    ------
    ValueError
        If the file has changed since the notebook has mapped it.
    """
    shape, dtype, offset = tuple(source["shape"]), np.dtype(source["dtype"]), source["offset"]
    # Reading mapped pages beyond the end of the file would kill this process.
    has, needs = os.path.getsize(source["file"]), offset + int(np.prod(shape)) * dtype.itemsize
    if has < needs:
        raise ValueError(
            f"{source['file']} has {has:,} bytes, and the rows of the memory-mapped X end at {needs:,}; it was "
            "written to since: map it again"
        )
    if file_state(source["file"]) != source["state"]:
        raise ValueError(
            f"{source['file']} was written to or replaced since the call began; end what writes to it, and map it again"
        )
    return np.memmap(source["file"], dtype, "r", offset, shape, source["order"])


def sample_of(path: str) -> bytes:
    """Size and parts of a file, with which another host can tell whether it has the same file under this path.

    The places are drawn anew for each call. Files that differ elsewhere only, and have the same size, are not told
    apart.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        last = max(0, size - _PART)
        places = [0, last, *(random.randint(0, last) for _ in range(_PLACES))]
        return _SAMPLE.pack(size, *places, _digest(file.fileno(), places))


def has_same(path: str, sample: bytes) -> bool:
    """Whether this host has a file with this path from which `sample_of` would make the same sample."""
    size, *places, digest = _SAMPLE.unpack(sample)
    with contextlib.suppress(OSError):
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode) and about.st_size == size:
            with open(path, "rb") as file:
                return _digest(file.fileno(), places) == digest
    return False


def _digest(descriptor: int, places: Sequence[int]) -> bytes:
    parts = hashlib.blake2b(digest_size=_DIGEST)
    for place in places:
        parts.update(os.pread(descriptor, _PART, place))
    return parts.digest()
