"""Make a process end with the notebook that it serves, also after a crash; how a process ends, and whether it runs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

__all__ = [
    "RECORD",
    "end_forks_with_this",
    "end_with",
    "is_stopped",
    "lives",
    "lock_holder",
    "successors",
    "tell_exits",
    "watched",
]

#: The file in a cluster's folder that names its owner; `xpulab.deploy.processes.record` writes it.
RECORD = "cluster.json"

_GRACE = 3.0  # seconds between SIGTERM and SIGKILL


def lives(pid: int) -> bool:
    """Return whether a process of this host runs. A zombie does not."""
    return _state(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    """Return whether a process of this host was stopped, as by Ctrl-Z in its terminal or SIGSTOP."""
    return _state(pid) in ("T", "t")


def lock_holder(descriptor: int) -> int:
    """Return the pid of the process that holds a lock (`fcntl.flock`) on a file; 0 if that is not known."""
    about = os.fstat(descriptor)
    name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, *fields = line.split()
            if kind == "FLOCK" and name in fields:
                return max(0, int(fields[2]))
    return 0


def _state(pid: int) -> str:
    """Return the letter of the system for what a process of this host does; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def tell_exits(tell: Callable[[int], None]) -> None:
    """Call a function with the exit status before this process leaves by `os._exit`. Forked children do not call it.

    A launcher of MPI then ends the other ranks. Some launchers do not say which rank has left, and none does if its
    status is 0.
    """
    leave, me = os._exit, os.getpid()

    def _exit(status: int) -> NoReturn:
        if os.getpid() == me:
            with contextlib.suppress(Exception):  # nothing may keep the process
                tell(status & 0xFF)
        leave(status)

    os._exit = _exit


def end_with(pid: int, then: Callable[[], Sequence[int]] = list, last: Callable[[], object] = lambda: None) -> None:
    """End this process after the process `pid` of this host has ended: with SIGTERM, and with SIGKILL 3 s later.

    A thread waits on a pidfd, so it needs no polling, and is not misled if the system reuses the pid.

    Parameters
    ----------
    pid : int
        Pid of the owner.
    then : callable, optional
        Called after the owner has ended. It returns pids of other processes: this process then ends when the first of
        these ends, or at once if there are none.
    last : callable, optional
        Called before this process ends.

    Raises
    ------
    SystemExit
        If the owner has ended already.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise SystemExit(f"the process {pid}, with which this process has to end, has ended") from None
    threading.Thread(target=_wait_and_end, args=(descriptor, then, last), name="xpulab-owner", daemon=True).start()


def watched(pid: int) -> int:
    """Return a descriptor that can be read when a process of this host has ended, also if it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # another thread has waited for it, so that its pid is free
        return os.eventfd(1)


def end_forks_with_this() -> None:
    """Have each process that this one forks end after this one, also if this one ends before the other has begun."""
    me = os.getpid()

    def end_too() -> None:  # not with `os.getppid()`, which is another process by then if this one has ended
        try:
            end_with(me)
        except SystemExit:  # Python would only print it
            os._exit(1)

    os.register_at_fork(after_in_child=end_too)


def successors(folder: str) -> list[int]:
    """Return the processes with which a process of a cluster ends after the owner has ended.

    The processes of a detached cluster end together with its controller and mpiexec. The processes of any other cluster
    end at once.

    Parameters
    ----------
    folder : str
        Folder of the cluster.

    Returns
    -------
    list of int
        Pids; empty if the cluster was not detached, or was stopped.
    """
    try:
        record = json.loads(Path(folder, RECORD).read_text())
    except (OSError, ValueError):  # the cluster was stopped
        return []
    return [pid for pid, _ in record["processes"].values()] if record["detached"] else []


def _wait_and_end(descriptor: int, then: Callable[[], Sequence[int]], last: Callable[[], object]) -> None:
    try:
        _wait_for_one([descriptor])
        with contextlib.suppress(ProcessLookupError):  # one of the others has ended already
            if others := then():
                _wait_for_one([os.pidfd_open(pid) for pid in others])
        last()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_one(descriptors: list[int]) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while not poll.poll():
        pass
