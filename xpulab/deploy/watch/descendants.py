"""Ends the processes that users' code has started on engines, so that they leave no shared memory behind.

A process whose engine was killed has another parent. It is found by its environment, which it has from the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

__all__ = ["LAUNCHERS", "end_descendants", "kill", "marked", "running"]

#: What the names of MPI's programs begin with: of Intel MPI and MPICH, Open MPI 4, and Open MPI 5.
LAUNCHERS = ("mpiexec", "mpirun", "hydra", "orte", "prte")

_MARK = b"\0XPULAB_ENGINE="  # the variable that ipyparallel sets for the engines; it names the cluster's folder

#: Parts of the command lines of processes that remove shared memory after all others have ended: those of Python's
#: `multiprocessing` and of joblib, and PyTorch's. They ignore SIGTERM.
_CLEANERS = ("resource_tracker", "torch_shm_manager")
_ENGINE = "xpulab.engine"  # a word of the command line of an engine, and of the processes that it forks
_CLEAN = 5.0  # seconds that they have: on a busy machine their interpreter may still be starting
_END = 3.0  # seconds that killed processes have to end


def marked(folder: str | Path) -> list[psutil.Process]:
    """Return the processes of this user and host that belong to the engines of the cluster with this folder."""
    name, found = json.dumps(str(folder)).encode(), []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, psutil.Error):
            environment = b"\0" + Path("/proc", pid, "environ").read_bytes()
            if name in environment.partition(_MARK)[2].partition(b"\0")[0] and int(pid) != os.getpid():
                found.append(psutil.Process(int(pid)))
    return found


def end_descendants(folder: str | Path, spared: Collection[int] = ()) -> None:
    """End what users' code has started on the engines of a cluster on this host.

    MPI's programs and the engines that they have started go on: mpiexec ends these, and logs how the first one ended.
    A process that removes the shared memory of such an engine goes on, too: it ends by itself after the engine.

    Parameters
    ----------
    folder : path-like
        Folder of the cluster.
    spared : collection of int
        Pids of further processes that go on.
    """

    def found() -> list[psutil.Process]:
        left = [each for each in marked(folder) if each.pid not in spared and not _is_of_mpi(each)]
        return [each for each in left if not _cleans_for_an_engine(each)]

    while left := found():  # a process that was killed may have started another one before
        if not kill(left):
            return


def running(pids: Iterable[int]) -> list[psutil.Process]:
    """Return those of the processes that still run."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def kill(processes: Iterable[psutil.Process]) -> bool:
    """End processes, and wait until they have ended. Those that remove shared memory may do so before.

    Returns
    -------
    bool
        Whether all have ended.
    """
    cleaners, others = list[psutil.Process](), list[psutil.Process]()
    for process in processes:
        (cleaners if _is_cleaner(process) else others).append(process)
    _signal(others)
    left = _still_there(others, _END)
    _signal(_still_there(cleaners, _CLEAN if not left else 0))
    return not left


def _is_of_mpi(process: psutil.Process) -> bool:
    """Return whether a process is one of MPI's programs, or was started by one and not by an engine, such as ssh."""
    if _name(process).startswith(LAUNCHERS):
        return True
    with contextlib.suppress(psutil.Error):
        for parent in process.parents():
            if _name(parent).startswith(LAUNCHERS):
                return True
            if _ENGINE in parent.cmdline():
                return False
    return False


def _cleans_for_an_engine(process: psutil.Process) -> bool:
    """Return whether a process removes the shared memory of an engine that mpiexec has not ended yet."""
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        return _is_cleaner(process) and parent is not None and _ENGINE in _line(parent) and _is_of_mpi(parent)
    return False


def _is_cleaner(process: psutil.Process) -> bool:
    return any(word in _line(process) for word in _CLEANERS)


def _signal(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _still_there(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return the processes that still run after this many seconds; a zombie does not count as running."""

    def there(process: psutil.Process) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if there(process)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
