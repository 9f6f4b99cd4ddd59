"""The board: a page of shared memory on which the engines of one host write what they are doing.

The notebook reads it ten times a second for the live view, without a message to anyone, and writes one thing on it:
the number of a task that should stop. A rank that fails writes that too, so that the others leave their collectives.

The memory is a file without a name (memfd): nothing stands in /dev/shm, nobody but the same user can open it, and the
kernel frees it when its last user ends, however it ends.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from xpulab.sharing.memory import SharedBlock

__all__ = ["METRICS", "PHASES", "RUNS", "Board", "awaited", "metrics_of", "new_task_number", "running"]

#: Parts of the seconds of a task. `wait` is the time until the other ranks come, `communicate` that of reductions then.
PHASES = ("transfer", "compile", "kernel", "communicate", "wait")

#: Runs whose lengths stand on the board: the latest ones, each at its number modulo this.
RUNS = 64
METRICS = 4  # numbers that a task may show of an iteration
_CANCELLED = 64  # stop requests that can stand at once; a task looks only for its own number
_NOTHING = bytes(8 * _CANCELLED)  # when there is none

_RANK = np.dtype(
    [
        ("pid", "i8"),
        ("heartbeat", "f8"),  # seconds since the epoch
        ("task", "u8"),  # number of the task in hand, 0 when idle
        ("name", "S32"),  # its name
        ("doing", "S64"),  # a description for people of its present work; empty if the other fields describe it
        ("client", "i8"),  # process that asked for it
        ("failed", "u8"),  # number of the last task that raised here
        (
            "ended",
            "u8",
        ),  # number of the last task whose user's code has ended on this rank
        ("rows", "i8"),
        ("device_bytes", "i8"),  # held for handles and fits
        ("run", "i8"),  # of n_init, from 1 on
        ("iteration", "i8"),  # of the run, from 1 on
        ("lengths", "i8", (RUNS,)),  # iterations of the latest runs
        ("metrics", "f8", (METRICS,)),  # of the iteration, under the names that follow
        ("metric_names", "S64"),  # as the task registered them, with commas between
        ("seconds", "f8", (len(PHASES),)),
        ("tile", "S96"),  # the one last used, and how many classes of sizes are tuned
        ("total", "f8"),  # seconds since the task arrived
    ],
    align=True,
)
_HEAD = np.dtype([("size", "i8"), ("cancelled", "u8", (_CANCELLED,))], align=True)


def new_task_number() -> int:
    """A number for a task that no other client of the cluster will choose."""
    return int.from_bytes(os.urandom(7), "little") + 1


def metrics_of(record: Any) -> dict[str, float]:
    """The metrics of a rank's iteration, by name."""
    names = [name for name in record["metric_names"].decode().split(",") if name]
    return dict(zip(names, map(float, record["metrics"]), strict=False))


def running(ranks: Any, number: int) -> list[int]:
    """Ranks that run a task, except those whose user's code has ended.

    Parameters
    ----------
    ranks : numpy.ndarray
        As `Board.ranks`.
    number : int
        The task's.
    """
    return [int(rank) for rank in np.flatnonzero((ranks["task"] == number) & (ranks["ended"] != number))]


def awaited(ranks: Any, number: int) -> str:
    """The task that a task waits for if no rank has begun it: ``"KMeans.fit of process 123 (iteration 17)"``; else "".

    Parameters
    ----------
    ranks : numpy.ndarray
        As `Board.ranks`.
    number : int
        The task's.
    """
    busy = ranks[(ranks["task"] != 0)]
    if not len(busy) or (ranks["task"] == number).any():
        return ""
    other = busy[0]
    client = "another thread" if other["client"] == os.getpid() else f"process {other['client']}"
    first = "".join(f", {name} {value:.6g}" for name, value in list(metrics_of(other).items())[:1])
    run = f"run {other['run']}, " if other["run"] > 1 else ""
    where = f" ({run}iteration {other['iteration']}{first})" if other["iteration"] else ""
    return f"{other['name'].decode()} of {client}{where}"


class Board:
    """View of the shared page.

    Parameters
    ----------
    block : SharedBlock
        The memory, at least `Board.nbytes` long.

    Attributes
    ----------
    ranks : numpy.ndarray of shape (size,)
        A structured array, one record a rank; fields as written above.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        whole = block.array((block.nbytes,), np.uint8)
        self._head: Any = whole[: _HEAD.itemsize].view(_HEAD)
        size = int(self._head["size"][0])
        self.ranks: Any = whole[_HEAD.itemsize : _HEAD.itemsize + size * _RANK.itemsize].view(_RANK)
        self._cancelled: Any = self._head["cancelled"][0]
        self._failed: Any = self.ranks["failed"]

    @classmethod
    def create(cls, size: int) -> Board:
        """A new board for `size` ranks, all zeros."""
        block = SharedBlock.create(_HEAD.itemsize + size * _RANK.itemsize, "xpulab-board")
        block.array((_HEAD.itemsize,), np.uint8).view(_HEAD)["size"] = size
        return cls(block)

    @classmethod
    def open(cls, path: str) -> Board:
        """The board that another process made."""
        return cls(SharedBlock.open(path, writable=True))

    @property
    def path(self) -> str:
        """The argument for `Board.open` in another process of the same user on this host."""
        return self._block.path

    def cancel(self, task: int) -> None:
        """Ask for the end of a task that runs or waits; it ends at its next reduction, on all ranks together."""
        slots = self._cancelled
        with self._block.claimed():  # another client would take the same free slot
            slots[int(np.argmin(slots != 0)) if (slots == 0).any() else task % _CANCELLED] = task

    def cancelled(self, task: int) -> bool:
        """Whether the end of this task was asked for."""
        # There is nothing most often, and bytes say so in a tenth of the time.
        return self._cancelled.tobytes() != _NOTHING and bool((self._cancelled == task).any())

    def forget(self, task: int) -> None:
        """Free the slot of a task that has ended."""
        slots = self._cancelled
        slots[slots == task] = 0

    def failed(self, task: int) -> bool:
        """Whether a rank raised in this task."""
        return bool((self._failed == task).any())

    def close(self) -> None:
        """Let the memory go."""
        self._head = self._cancelled = self._failed = self.ranks = None
        self._block.close()
