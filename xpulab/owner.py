"""End with the owner: a process that serves a notebook must not outlive it, however the notebook ends."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

__all__ = ["end_with"]

_GRACE = 3.0  # seconds between asking this process to end and ending it


def end_with(pid: int) -> None:
    """End this process when the process `pid` of this host is gone; SIGTERM first, SIGKILL 3 s later.

    Waits on a pidfd: no polling, and no mistake when the number is used again.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise SystemExit(f"the process {pid} that asked for this one has ended") from None
    threading.Thread(target=_wait_and_end, args=(descriptor,), name="xpulab-owner", daemon=True).start()


def _wait_and_end(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll():
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
