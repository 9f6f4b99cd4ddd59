"""What tells of a task on the way to the engines, and the names of the files that wake them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["LOCK", "About", "bell_of"]

#: Name and number of a task, pid of the client, and the numbers of earlier tasks whose results it may still be reading.
About = tuple[str, int, int, Sequence[int]]

#: The file in a cluster's folder that excludes other writers of tasks.
LOCK = "bell.lock"


def bell_of(folder: Path, rank: int) -> Path:
    """Return the named pipe in a cluster's folder that wakes a rank; it is there if all engines are on this host."""
    return folder / f"bell-{rank}"
