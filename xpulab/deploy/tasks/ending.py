"""End the call that runs on the engines, of whichever process and thread."""

from __future__ import annotations

import time

from xpulab.deploy.tasks.engines import Engines
from xpulab.sharing.board import USERS

__all__ = ["end_call"]


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
    while (board.ranks["task"] == number).any():
        engines.require_running()
        if name in USERS:
            board.signal(number)
        time.sleep(0.05)
    board.forget(number)
    return name
