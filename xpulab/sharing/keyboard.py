"""Standard input of a rank that has none: mpiexec passes it on to rank 0 only, and the others would wait for ever."""

from __future__ import annotations

import os

__all__ = ["close"]


def close() -> None:
    """Let this process, and the processes that it starts, read the end of the file from standard input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
