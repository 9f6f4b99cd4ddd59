"""Files in the folder of a cluster, by which its processes find each other, and tell what they found.

Of a cluster over several hosts, each host has a folder with the same path, which only this user can read.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ALONE", "BOARD", "HOST", "write_private"]

#: The process with which the engines of this host end, and their environment variables.
HOST = "host.json"

#: Where the board of this host is, and the ranks that write on it.
BOARD = "board.json"

#: Why the ranks do not find each other, if mpiexec and the library of MPI do not belong together.
ALONE = "alone.txt"


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, so that other processes see it as soon as it is complete."""
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    part.rename(path)
