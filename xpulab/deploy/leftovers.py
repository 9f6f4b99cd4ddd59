"""Remove the files that Intel MPI leaves in /dev/shm when a rank is killed while it starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["remove_leftovers"]

_FOLDER = Path("/dev/shm")
_NAMES = "Intel_MPI_*"


def remove_leftovers() -> None:
    """Remove those of Intel MPI's files of this user that no process has open.

    MPI unlinks each file as soon as all ranks have opened it, so only an interrupted start leaves one.
    """
    left = [path for path in _FOLDER.glob(_NAMES) if _is_ours(path)]
    if left:
        used = set(_used())
        for path in left:
            if str(path) not in used:
                path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_uid == os.getuid()
    return False


def _used() -> Iterator[str]:
    """Names of the files in the folder that a process of this user maps, or has open."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                if str(_FOLDER) in line:
                    yield line.split(maxsplit=5)[-1]
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    yield str(descriptor.readlink())
