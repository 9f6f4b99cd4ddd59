"""Finds what a run must not leave: processes that were started for it, and MPI's files of shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from xpulab.deploy.watch.leftovers import NAMES

__all__ = [
    "MARK",
    "files_without_names",
    "left_in_memory",
    "not_of_others",
    "processes_marked",
    "processes_of",
    "runs",
    "shared_memory",
]

# All processes that this run starts inherit this variable: engines, kernels, servers, and their children. Each worker
# of pytest-xdist counts as a run.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["XPULAB_TESTS"] = f"{worker} of {os.environ['PYTEST_XDIST_TESTRUNUID']}"
MARK = os.environ.setdefault("XPULAB_TESTS", str(os.getpid()))


def runs(pid: int) -> bool:
    """Return whether a process runs. A zombie has ended: where nobody waits for orphans, it stays."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _processes(belongs: Callable[[dict[str, str]], bool]) -> dict[int, str]:
    """Return the running processes for whose environment `belongs` is true: pid -> command line, test."""
    found = {}
    for process in psutil.process_iter():
        try:
            if belongs(process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
                test = process.environ().get("PYTEST_CURRENT_TEST", "")  # the one that started it
                found[process.pid] = " ".join([*process.cmdline()[:6], *(["started in", test] if test else [])])
        except psutil.Error:
            continue
    return found


def processes_of(owner: int) -> dict[int, str]:
    """Return the processes that were started to serve the process `owner`, and still run: pid -> command line."""
    mine = f'"owner": {owner},'
    return _processes(lambda e: mine in e.get("XPULAB_ENGINE", "") or e.get("XPULAB_OWNER") == str(owner))


def processes_marked() -> dict[int, str]:
    """Return the processes that this run has started, and that still run: pid -> command line."""
    found = _processes(lambda environment: environment.get("XPULAB_TESTS") == MARK)
    found.pop(os.getpid(), None)
    # The resource trackers of Python and of joblib end with this process.
    return {pid: line for pid, line in found.items() if "resource_tracker" not in line}


def shared_memory() -> set[str]:
    """Return the names of MPI's files in /dev/shm. The package's own memory has no name."""
    return {str(path) for name in NAMES for path in Path("/dev/shm").glob(name)}


def not_of_others(names: set[str]) -> set[str]:
    """Return the names that are still in /dev/shm, and that no process of others has mapped.

    Others are other workers of pytest-xdist, and programs that this run has not started.
    """
    theirs: set[str] = set()
    for pid in _processes(lambda environment: environment.get("XPULAB_TESTS") != MARK) if names else ():
        with contextlib.suppress(OSError):
            theirs.update(line.rpartition(" ")[2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {name for name in names - theirs if Path(name).exists()}


def left_in_memory(before: set[str], seconds: float = 2.0) -> set[str]:
    """Return the names in /dev/shm that were not there `before`, and that nobody else has mapped some seconds later.

    The engines of another worker make a name, and map it a moment afterwards.
    """
    deadline = time.monotonic() + seconds
    while (left := not_of_others(shared_memory() - before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def files_without_names() -> int:
    """Return how many files without a name this process has open, when what nobody uses any more is deleted."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the folder itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(each.endswith(" (deleted)") and not each.startswith("/memfd:") for each in found)
