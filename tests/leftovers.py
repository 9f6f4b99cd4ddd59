"""What a run must not leave: processes that were started for it, and shared memory with a name."""

from __future__ import annotations

from pathlib import Path

import psutil

__all__ = ["processes_of", "shared_memory"]


def processes_of(owner: int) -> dict[int, str]:
    """Processes that were started to serve the process `owner` and run still: pid -> command line."""
    found = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            engine = f'"owner": {owner},' in environment.get("XPULAB_ENGINE", "")
            mine = engine or environment.get("XPULAB_OWNER") == str(owner)
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:
            continue
    return found


def shared_memory() -> set[str]:
    """Whatever has a name in /dev/shm."""
    return {f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir()}
