"""Remove the files that MPI leaves when its processes are killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["NAMES", "remove_leftovers"]

_FOLDER = Path("/dev/shm")

#: Names of the files of Intel MPI, MPICH, and Open MPI 4 and 5.
NAMES = ("Intel_MPI_*", "mpich_shm_*", "vader_segment.*", "sm_segment.*")

#: MPICH's descriptions of the host in /tmp, and the program that writes them and removes them at its end. The ranks
#: read them while they start.
_DESCRIPTIONS, _DESCRIBING = "hydra_hwloc_xmlfile_*", "hydra_pmi_proxy"


def remove_leftovers() -> None:
    """Remove those of MPI's files of this user that no process has open.

    Intel MPI unlinks each file as soon as all ranks have opened it, so only an interrupted start leaves one. The other
    MPIs unlink them at the end.
    """
    left = [path for names in NAMES for path in _FOLDER.glob(names) if _is_ours(path)]
    if left:
        used = set(_used())
        for path in left:
            if str(path) not in used:
                path.unlink(missing_ok=True)
    described = [path for path in Path("/tmp").glob(_DESCRIPTIONS) if _is_ours(path)]
    if described and not _runs(_DESCRIBING):
        for path in described:
            path.unlink(missing_ok=True)


def _runs(name: str) -> bool:
    """Return whether a process of this user has this name."""
    mine = os.getuid()
    found = psutil.process_iter(["name", "uids"])
    return any(each.info["name"] == name and each.info["uids"] and each.info["uids"].real == mine for each in found)


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
