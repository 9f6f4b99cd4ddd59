"""The board: a page of shared memory on which the engines of one host write what they are doing.

The notebook reads it ten times a second for the live view, without any message. It writes only the number of a task
that should stop. A rank that fails writes the number of its task, so that the other ranks leave their collectives.

The memory is a file without a name (memfd). It has no entry in /dev/shm, no other user can open it, and the Linux
kernel frees it when the last process that uses it ends, also after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xpulab.advice import to_stop_call
from xpulab.sharing.memory import SharedBlock

__all__ = [
    "METRICS",
    "PASSES",
    "PHASES",
    "RUNS",
    "USERS",
    "Board",
    "awaited",
    "metrics_of",
    "new_task_number",
    "running",
]

#: Phases of a task. In a collective, `wait` is the time until all ranks have called it, and `communicate` the rest.
PHASES = ("transfer", "compile", "kernel", "communicate", "wait")
#: The phases of a network, which compiles no kernels: the import of PyTorch, and the parts of `kernel`.
PASSES = ("import", "forward", "backward")

#: The board has the lengths of this many latest runs. The length of run r is at index (r - 1) modulo this number.
RUNS = 64
USERS = ("run", "%%xpu")  # names of the tasks that run a user's code, which does not read the board
METRICS = 4  # largest number of metrics of an iteration
_CANCELLED = 64  # slots for the numbers of tasks that should stop; a task looks only for its own number
_NOTHING = bytes(8 * _CANCELLED)  # content of the slots if no task should stop

_RANK = np.dtype(
    [
        ("pid", "i8"),  # 0 for a rank of another host, whose record `xpulab.deploy.remote.relay` copies
        ("heartbeat", "f8"),  # seconds since the epoch
        ("task", "u8"),  # number of the running task, 0 if the rank is idle
        ("name", "S32"),  # name of the task
        ("doing", "S64"),  # text about its present work; empty if the other fields describe it
        ("client", "i8"),  # pid of the process that sent the task
        ("failed", "u8"),  # number of the last task that raised an exception on this rank
        ("ended", "u8"),  # number of the last task whose user's code has ended on this rank
        ("left", "i4"),  # 1 + the status with which the rank has left by `os._exit`; 0 if it has not
        ("waits", "f8"),  # seconds for which the user's code on this rank waits for other ranks, 0 if it does not
        ("waits_in", "S96"),  # the line in which it waits, and what it calls there
        ("rows", "i8"),
        ("device_bytes", "i8"),  # bytes on the device for handles and fits
        ("run", "i8"),  # number of the run, counted from 1, of n_init runs
        ("iteration", "i8"),  # number of the iteration in the run, counted from 1
        ("lengths", "i8", (RUNS,)),  # numbers of iterations of the latest runs
        ("metrics", "f8", (METRICS,)),  # values of the iteration, under the names in metric_names
        ("metric_names", "S64"),  # names that the task registered, separated by commas
        ("seconds", "f8", (len(PHASES),)),
        ("passes", "f8", (len(PASSES),)),  # NaN if the task uses no network
        ("tile", "S96"),  # last launch parameters, and the number of ranges of sizes that have tuned parameters
        ("total", "f8"),  # seconds since the task arrived
        ("signs", "f8"),  # of a rank of another host: a number that grows with its use of a processor or a device
        ("memory", "i8"),  # of a rank of another host: bytes of its process
        ("free", "i8"),  # of a rank of another host: bytes of its host that are free
    ],
    align=True,
)
_HEAD = np.dtype([("size", "i8"), ("cancelled", "u8", (_CANCELLED,))], align=True)


def new_task_number() -> int:
    """Return a random number for a task, which differs from the numbers that other clients of the cluster choose."""
    return int.from_bytes(os.urandom(7), "little") + 1


def metrics_of(record: Any) -> dict[str, float]:
    """Return the metrics of a rank's iteration by name, from its record in `Board.ranks`."""
    names = [name for name in record["metric_names"].decode().split(",") if name]
    return dict(zip(names, map(float, record["metrics"]), strict=False))


def running(ranks: Any, number: int) -> list[int]:
    """Return the ranks that run a task, without those on which the user's code has ended.

    Parameters
    ----------
    ranks : numpy.ndarray
        Records of `Board.ranks`.
    number : int
        Number of the task.

    Returns
    -------
    list of int
    """
    return [int(rank) for rank in np.flatnonzero((ranks["task"] == number) & (ranks["ended"] != number))]


def awaited(ranks: Any, number: int) -> str:
    """Return the running task for which another task waits: ``"KMeans.fit of process 123 (iteration 17)"``.

    If that process has ended, the text says how long its task has run, and how to end it.

    Parameters
    ----------
    ranks : numpy.ndarray
        Records of `Board.ranks`.
    number : int
        Number of the task that waits.

    Returns
    -------
    str
        Empty if a rank has begun the task, or if no other task runs.
    """
    busy = ranks[(ranks["task"] != 0)]
    if not len(busy) or (ranks["task"] == number).any():
        return ""
    other = busy[0]
    client = "another thread" if other["client"] == os.getpid() else f"process {other['client']}"
    end = ""
    if not _lives(int(other["client"])):
        client += f", which has ended, while its call goes on, {other['total']:.0f} s by now"
        end = f"; to end it, {to_stop_call()}"
    first = "".join(f", {name} {value:.6g}" for name, value in list(metrics_of(other).items())[:1])
    run = f"run {other['run']}, " if other["run"] > 1 else ""
    where = f" ({run}iteration {other['iteration']}{first})" if other["iteration"] else ""
    return f"{other['name'].decode()} of {client}{where}{end}"


def _lives(pid: int) -> bool:
    """Return whether a process of this host runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Board:
    """The board in a block of shared memory.

    Parameters
    ----------
    block : SharedBlock
        The memory, which `create` or `open` returns.

    Attributes
    ----------
    ranks : numpy.ndarray of shape (size,)
        A structured array with one record per rank.
    every : numpy.ndarray of shape (size + 1,)
        The same, with the record of the helper rank (see `xpulab.engine.helper`) at the end; zeros without a helper.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        whole = block.array((block.nbytes,), np.uint8)
        self._head: Any = whole[: _HEAD.itemsize].view(_HEAD)
        size = int(self._head["size"][0])
        self.every: Any = whole[_HEAD.itemsize : _HEAD.itemsize + (size + 1) * _RANK.itemsize].view(_RANK)
        self.ranks: Any = self.every[:size]
        self._cancelled: Any = self._head["cancelled"][0]
        self._failed: Any = self.every["failed"]

    @classmethod
    def create(cls, size: int) -> Board:
        """Create a board for `size` ranks, all zeros."""
        block = SharedBlock.create(_HEAD.itemsize + (size + 1) * _RANK.itemsize, "xpulab-board")
        block.array((_HEAD.itemsize,), np.uint8).view(_HEAD)["size"] = size
        return cls(block)

    @classmethod
    def open(cls, path: str) -> Board:
        """Open the board that another process created."""
        return cls(SharedBlock.open(path, writable=True))

    @property
    def path(self) -> str:
        """The argument for `Board.open` in another process of the same user on this host."""
        return self._block.path

    @property
    def requests(self) -> list[int]:
        """The numbers of the tasks that should stop, for the board of another host."""
        return [int(task) for task in self._cancelled if task]

    @requests.setter
    def requests(self, tasks: Sequence[int]) -> None:
        self._cancelled[:] = [*tasks, *[0] * (_CANCELLED - len(tasks))]

    def cancel(self, task: int) -> None:
        """Ask a task to end. If it runs, it ends at its next reduction, on all ranks together."""
        slots = self._cancelled
        with self._block.claimed():  # otherwise another client could take the same free slot
            slots[int(np.argmin(slots != 0)) if (slots == 0).any() else task % _CANCELLED] = task

    def cancelled(self, task: int) -> bool:
        """Return whether this task was asked to end."""
        # Usually no slot is set. Comparing bytes is ten times faster than comparing the array.
        return self._cancelled.tobytes() != _NOTHING and bool((self._cancelled == task).any())

    def forget(self, task: int) -> None:
        """Free the slot of a task that has ended."""
        slots = self._cancelled
        slots[slots == task] = 0

    def failed(self, task: int) -> bool:
        """Return whether a rank raised an exception in this task."""
        return bool((self._failed == task).any())

    def close(self) -> None:
        """Close the shared memory."""
        self._head = self._cancelled = self._failed = self.ranks = self.every = None
        self._block.close()
