"""End with the owner: a process that serves a notebook must not outlive it, however the notebook ends."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["RECORD", "end_with", "successors"]

#: The file in a cluster's folder that says who owns it; `xpulab.deploy.record` writes it.
RECORD = "cluster.json"

_GRACE = 3.0  # seconds between asking this process to end and ending it


def end_with(pid: int, then: Callable[[], Sequence[int]] = list) -> None:
    """End this process when the process `pid` of this host is gone; SIGTERM first, SIGKILL 3 s later.

    Waits on a pidfd: no polling, and no mistake when the number is used again.

    Parameters
    ----------
    pid : int
    then : callable, optional
        Asked when it is gone: with the first end of which processes this one ends from then on. Of none: at once.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise SystemExit(f"the process {pid} that asked for this one has ended") from None
    threading.Thread(target=_wait_and_end, args=(descriptor, then), name="xpulab-owner", daemon=True).start()


def successors(folder: str) -> list[int]:
    """With whom the processes of a cluster end once its owner is gone: with each other, if it was detached.

    Parameters
    ----------
    folder : str
        The cluster's.
    """
    try:
        record = json.loads(Path(folder, RECORD).read_text())
    except (OSError, ValueError):  # it was stopped
        return []
    return [pid for pid, _ in record["processes"].values()] if record["detached"] else []


def _wait_and_end(descriptor: int, then: Callable[[], Sequence[int]]) -> None:
    try:
        _wait_for_one([descriptor])
        others = then()
        if others:
            _wait_for_one([os.pidfd_open(pid) for pid in others])
    finally:  # also if one of the processes has ended already
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_one(descriptors: list[int]) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while not poll.poll():
        pass
