"""End the call that runs on the engines, of whichever process and thread."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from xpulab.deploy.tasks.engines import Engines
from xpulab.sharing.board import USERS, Board, running

__all__ = ["end_call"]

_AGAIN = 0.5  # seconds until SIGINT is repeated, because an engine that is about to begin the task ignores it


def end_call(engines: Engines) -> str:
    """End the call that runs on the engines; see `XPUCluster.stop_call`.

    Parameters
    ----------
    engines : Engines

    Returns
    -------
    str
        Name of the call; empty if none ran.
    """
    engines.require_running()
    board = engines.board
    if board is None or not (number := int(board.ranks["task"].max())):
        return ""
    name: str = board.ranks["name"][board.ranks["task"].argmax()].decode()
    board.cancel(number)
    signalled = 0.0
    while (board.ranks["task"] == number).any():
        engines.require_running()
        if name in USERS and time.monotonic() - signalled > _AGAIN:
            signalled = time.monotonic()
            _signal(board, number)
        time.sleep(0.05)
    board.forget(number)
    return name


def _signal(board: Board, number: int) -> None:
    """Send SIGINT to the engines of this host that run a user's code, which does not read the board."""
    for rank in running(board.ranks, number):
        if pid := int(board.ranks["pid"][rank]):  # the agents of other hosts signal their engines
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
