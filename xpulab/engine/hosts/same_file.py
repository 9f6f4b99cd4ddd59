"""Whether another host has the same file, or folder of files, as the notebook's host."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import os
import random
import stat
import struct
from collections.abc import Sequence

__all__ = ["SAMPLE", "has_same", "sample_of"]

_PLACES = 64  # parts that are compared, besides the beginning and the end
_PART = 4096  # bytes of each
_DIGEST = 32
_SAMPLE = struct.Struct(f"{3 + _PLACES}q{_DIGEST}s")  # the size, the places, a digest of names, sizes and parts

#: Bytes of a sample.
SAMPLE = _SAMPLE.size


def sample_of(path: str) -> bytes:
    """Size and parts of a file, with which another host can tell whether it has the same file under this path.

    The files of a folder, as those of Zarr, count as one long file in the order of their names, which are compared as
    well. The places are drawn anew for each call. Files that differ elsewhere only, and have the same size, are not
    told apart.
    """
    files = _files_of(path)
    size = sum(size for _, size in files)
    last = max(0, size - _PART)
    places = [0, last, *(random.randint(0, last) for _ in range(_PLACES))]
    return _SAMPLE.pack(size, *places, _digest(path, files, places))


def has_same(path: str, sample: bytes) -> bool:
    """Return whether this host has a file with this path from which `sample_of` would make the same sample."""
    size, *places, digest = _SAMPLE.unpack(sample)
    with contextlib.suppress(OSError):
        files = _files_of(path)
        return sum(size for _, size in files) == size and _digest(path, files, places) == digest
    return False


def _files_of(path: str) -> list[tuple[str, int]]:
    """Return the name and the size of each regular file in a folder; of a file its size alone."""
    about = os.stat(path)
    if not stat.S_ISDIR(about.st_mode):
        return [("", about.st_size)] if stat.S_ISREG(about.st_mode) else []
    names = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    every = ((os.path.relpath(name, path), os.stat(name)) for name in names)
    return [(name, each.st_size) for name, each in every if stat.S_ISREG(each.st_mode)]


def _digest(path: str, files: Sequence[tuple[str, int]], places: Sequence[int]) -> bytes:
    found = hashlib.blake2b(repr(files).encode(), digest_size=_DIGEST)
    begins = list(itertools.accumulate((size for _, size in files), initial=0))
    for place in places:
        number = bisect.bisect_right(begins, place) - 1
        if number < len(files):  # else there is no byte at this place
            name = files[number][0]
            with open(os.path.join(path, name) if name else path, "rb") as file:
                found.update(os.pread(file.fileno(), _PART, place - begins[number]))
    return found.digest()
