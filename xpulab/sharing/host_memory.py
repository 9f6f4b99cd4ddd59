"""The free memory of this host for this process, and what processes use. A container may have less than the machine.

The Linux kernel kills a process that goes beyond the limit of its control group (cgroup), or of a control group above
it, even if the host has free memory.
"""

from __future__ import annotations

import contextlib
import functools
import math
import resource
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["available", "recently_available", "resident", "total"]

_PROCESS = Path("/proc/self")
_HOST = Path("/proc/meminfo")

_RECENT = 0.1  # seconds; a look takes half a millisecond
_looked: dict[bool, tuple[float, int]] = {}  # whether swap space counts -> when, and what was available

#: Version of cgroups -> file with the limit, file with the memory in use, and entries of memory.stat for cached pages
#: of files, which the kernel can free at any time. Shared memory is not among these pages.
_FILES = {
    "cgroup2": ("memory.max", "memory.current", ("inactive_file", "active_file")),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


def total() -> int:
    """Return the bytes that this process and the other processes of its container or batch job may use together."""
    most = _of_host()["MemTotal"]
    return int(min([most, *(limit for limit, _ in _limits(most))]))


def available(*, swap: bool = False) -> int:
    """Return the bytes that are free, or that the kernel can free because they are cached pages of files.

    Parameters
    ----------
    swap : bool, default=False
        Whether to count the host's free swap space, too. The limits of control groups stay the same.

    Returns
    -------
    int
    """
    host = _of_host()
    free = host["MemAvailable"] + (host["SwapFree"] if swap else 0)
    return int(min([free, *(left for _, left in _limits(host["MemTotal"]))]))


def recently_available(*, swap: bool = False) -> int:
    """Return what `available` has returned at most a tenth of a second ago, for memory that is asked for often."""
    now = time.monotonic()
    when, free = _looked.get(swap, (-_RECENT, 0))
    if now - when >= _RECENT:
        free = available(swap=swap)
        _looked[swap] = now, free
    return free


def resident(pid: int) -> int:
    """Return the bytes of a process of this host that are in memory; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _of_host() -> dict[str, int]:
    """Return the bytes of the host by the kernel's names."""
    lines = (line.split() for line in _HOST.read_text().splitlines())
    return {name.rstrip(":"): int(number) << 10 for name, number, *_ in lines}


def _limits(most: int) -> Iterator[tuple[float, float]]:
    """Yield the limit of each control group, from this process's own up to the root, and the bytes left below it.

    `most` are the bytes of the host: no group can reach a limit beyond it.
    """
    with contextlib.suppress(OSError):  # not Linux, or /proc is hidden
        for kind, group, root in _groups(_PROCESS, (_PROCESS / "cgroup").read_text()):
            names = _FILES[kind]
            while True:
                with contextlib.suppress(OSError, ValueError):
                    yield _limit(group, most, *names)
                if group == root:
                    break
                group = group.parent


def _limit(group: Path, most: int, limit_file: str, use_file: str, cached: tuple[str, ...]) -> tuple[float, float]:
    text = (group / limit_file).read_text().strip()
    limit = math.inf if text == "max" else int(text)
    if limit >= most:
        return limit, math.inf
    used = int((group / use_file).read_text())
    statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return limit, max(0, limit - used + sum(int(statistics.get(name, 0)) for name in cached))


@functools.lru_cache(maxsize=4)
def _groups(process: Path, groups: str) -> list[tuple[str, Path, Path]]:
    """Return version, folder and topmost folder of the control groups of a process that count memory.

    `groups` is the text of the process's file ``cgroup``. Reading where they are mounted takes much longer.
    """
    own: dict[str, PurePosixPath] = {}
    found = []
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            own["cgroup2" if number == "0" else "cgroup"] = PurePosixPath(path)
    for line in (process / "mountinfo").read_text().splitlines():
        place, _, about = line.partition(" - ")
        kind, _, options = about.split(" ", 2)
        if kind in own and (kind == "cgroup2" or "memory" in options.split(",")):
            inside, top = place.split()[3:5]
            mine = own[kind]
            # In a container, the topmost visible group may be the container's own, but the path begins at the host's.
            below = mine.relative_to(inside) if mine.is_relative_to(inside) else PurePosixPath()
            found.append((kind, Path(top) / below, Path(top)))
    return found
