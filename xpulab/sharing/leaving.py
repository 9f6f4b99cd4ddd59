"""Tells when a process leaves by `os._exit`, with which a rank ends without a word.

A launcher of MPI then ends the other ranks. Some launchers do not say which rank has left, and none does if its status
is 0.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NoReturn

__all__ = ["tell_exits"]


def tell_exits(tell: Callable[[int], None]) -> None:
    """Call a function with the exit status before this process leaves by `os._exit`. Forked children do not call it."""
    leave, me = os._exit, os.getpid()

    def _exit(status: int) -> NoReturn:
        if os.getpid() == me:
            with contextlib.suppress(Exception):  # nothing may keep the process
                tell(status & 0xFF)
        leave(status)

    os._exit = _exit
