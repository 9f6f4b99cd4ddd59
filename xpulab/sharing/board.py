"""The board: a page of shared memory on which the engines of one host write what they are doing.

The notebook reads it ten times a second for the live view, without any message. It writes only the number of a task
that should stop. A rank that fails writes the number of its task, so that the other ranks leave their collectives.

Behind the records of the ranks, each rank has a ring with the seconds of its last thousand iterations. The rank writes
one entry for each iteration, and on its host nobody reads it until a view or an export wants it. The iterations of
ranks of other hosts come twice a second, see `xpulab.deploy.remote.relay`.

The memory is a file without a name (memfd). It has no entry in /dev/shm, no other user can open it, and the Linux
kernel frees it when the last process that uses it ends, also after a crash.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.advice import to_stop_call
from xpulab.sharing.bell.meeting import Meeting
from xpulab.sharing.bell.ring import Ring
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.owner import is_stopped, lives

__all__ = [
    "ITERATION",
    "ITERATIONS",
    "METRICS",
    "PASSES",
    "PHASES",
    "RUNS",
    "USERS",
    "Board",
    "awaited",
    "awaited_client",
    "deaf",
    "metrics_of",
    "new_task_number",
    "running",
]

#: Phases of a task. `host` is the work of machine code on the host's processor: trees, searches, comparisons. In a
#: collective, `wait` is the time until all ranks have called it, and `communicate` the rest.
PHASES = ("transfer", "compile", "kernel", "host", "communicate", "wait")
#: The phases of a network, which compiles no kernels: the import of PyTorch, and the parts of `kernel`.
PASSES = ("import", "forward", "backward")

#: The board has the lengths of this many latest runs. The length of run r is at index (r - 1) modulo this number.
RUNS = 64
USERS = ("run", "%%xpu")  # names of the tasks that run a user's code, which does not read the board
METRICS = 4  # largest number of metrics of an iteration
_CANCELLED = 64  # slots for the numbers of tasks that should stop; a task looks only for its own number
_ALIGNED = 64  # bytes; the meetings and the ring of tasks begin at multiples
_MEETINGS = 4
_NOTHING = bytes(8 * _CANCELLED)  # content of the slots if no task should stop

_RANK = np.dtype(
    [
        ("pid", "i8"),  # 0 for a rank of another host, whose record `xpulab.deploy.remote.relay` copies
        ("heartbeat", "f8"),  # seconds since the epoch
        ("task", "u8"),  # number of the running task, 0 if the rank is idle
        ("since", "f8"),  # seconds since the epoch when this task began, or when the last one ended; 0 before the first
        ("name", "S48"),  # the call of an estimator, as users know it, or the name of another task
        ("doing", "S128"),  # text about its present work; empty if the other fields describe it
        ("client", "i8"),  # pid of the process that sent the task
        ("failed", "u8"),  # number of the last task that raised an exception on this rank
        ("ended", "u8"),  # number of the last task whose user's code has ended on this rank
        ("hears", "u8"),  # number of the task whose user's code runs now, and takes SIGINT
        ("signalled", "i4"),  # how many requests to stop its user's code has got as SIGINT,
        ("heard", "i4"),  # and for how many of them KeyboardInterrupt was raised there
        ("left", "i4"),  # 1 + the status with which the rank has left by `os._exit`; 0 if it has not
        ("waits", "f8"),  # seconds for which the user's code on this rank waits for other ranks, 0 if it does not
        ("waits_in", "S112"),  # the line in which it waits, and what it calls there
        ("met", "i1"),  # whether it is in a collective call for which all ranks have met
        ("done", "i8"),  # steps of `doing` that have ended, of so many of this rank; 0 of 0 if they are not counted
        ("steps", "i8"),
        ("rows", "i8"),
        ("device_bytes", "i8"),  # bytes on the device for handles and fits
        ("run", "i8"),  # number of the run, counted from 1, of n_init runs
        ("iteration", "i8"),  # number of the iteration in the run, counted from 1
        ("lengths", "i8", (RUNS,)),  # numbers of iterations of the latest runs
        ("metrics", "f8", (METRICS,)),  # values of the iteration, under the names in metric_names
        ("metric_names", "S64"),  # names that the task registered, separated by commas
        ("seconds", "f8", (len(PHASES),)),
        ("passes", "f8", (len(PASSES),)),  # NaN if the task uses no network
        ("launch_shape", "S96"),  # the last launch shape, and the number of ranges of sizes that have tuned ones
        ("total", "f8"),  # seconds since the task arrived
        ("signs", "f8"),  # of a rank of another host: a number that grows with its use of a processor or a device
        ("memory", "i8"),  # of a rank of another host: bytes of its process
        ("used", "f8"),  # of a rank of another host: seconds of processors that its process has used,
        ("read", "f8"),  # and when they were read, by a clock of that host; 0 before the first time
        ("free", "i8"),  # of a rank of another host: bytes of its host that are free
        ("ahead", "f8"),  # of a rank of another host: seconds by which its time.perf_counter is ahead of this host's
    ],
    align=True,
)
#: Number of iterations in the ring of a rank: a thousand, and the one before, from which the first of them is counted.
#: The ring has one place more, for the entry that is being written.
ITERATIONS = 1001
_PLACES = ITERATIONS + 1
ITERATION = np.dtype(
    [
        ("task", "u8"),
        ("client", "i8"),
        ("run", "i4"),
        ("iteration", "i4"),
        ("ended", "f8"),  # time.perf_counter at the end of the iteration, which the processes of a host share
        ("total", "f8"),  # seconds since the task arrived
        ("seconds", "f8", (len(PHASES),)),  # by phase, since the task arrived
    ]
)
#: The ring has no entries before the one with the number `first`: of another host's, some may never have come.
_RING = np.dtype([("count", "u8"), ("first", "u8"), ("entries", ITERATION, (_PLACES,))])
_ENTRIES: int = _RING.fields["entries"][1]  # type: ignore[index]
_COUNT, _ENTRY = struct.Struct("Q"), struct.Struct(f"Qqii{2 + len(PHASES)}d")  # the same in C's layout
_HEAD = np.dtype([("size", "i8"), ("layout", "u8"), ("cancelled", "u8", (_CANCELLED,))], align=True)
_LAYOUT = zlib.crc32(str((_HEAD, _RANK, _RING, _MEETINGS)).encode())  # of the boards of this version


def new_task_number() -> int:
    """Return a random number for a task, which differs from the numbers that other clients of the cluster choose."""
    return int.from_bytes(os.urandom(7), "little") + 1


def metrics_of(record: np.void) -> dict[str, float]:
    """Return the metrics of a rank's iteration by name, from its record in `Board.ranks`."""
    names = [name for name in record["metric_names"].decode().split(",") if name]
    return dict(zip(names, map(float, record["metrics"]), strict=False))


def running(ranks: npt.NDArray[Any], number: int) -> list[int]:
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


def deaf(ranks: npt.NDArray[Any], number: int) -> list[int]:
    """Return the ranks that run a task, and in whose user's code a request to stop has not yet raised an exception.

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
    return [rank for rank in running(ranks, number) if ranks["heard"][rank] < max(1, ranks["signalled"][rank])]


def awaited(ranks: npt.NDArray[Any], number: int) -> str:
    """Return the running task for which another task waits: ``"KMeans.fit of a.ipynb, process 12 (iteration 3)"``.

    The name is that of a notebook or a script; other processes have only their number: ``"KMeans.fit of process 123"``.

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
    if (other := _awaited(ranks, number)) is None:
        return ""
    pid = int(other["client"])
    client, end = "another thread", ""
    if pid != os.getpid():
        name = _notebook(pid) or _script(pid)
        client = f"{name}, process {pid}" if name else f"process {pid}"
    if is_stopped(pid):
        client += f", which is stopped (kill -CONT {pid} has it go on)"
    elif not lives(pid):
        client += f", which has ended, while its call goes on, {other['total']:.0f} s by now"
        end = f"; to end it, {to_stop_call()}"
    first = "".join(f", {name} {value:.6g}" for name, value in list(metrics_of(other).items())[:1])
    run = f"run {other['run']}, " if other["run"] > 1 else ""
    where = f" ({run}iteration {other['iteration']}{first})" if other["iteration"] else ""
    return f"{other['name'].decode()} of {client}{where}{end}"


def awaited_client(ranks: npt.NDArray[Any], number: int) -> int:
    """Return the pid of the process that has sent the task for which another task waits; 0 as `awaited` is empty."""
    other = _awaited(ranks, number)
    return 0 if other is None else int(other["client"])


def _awaited(ranks: npt.NDArray[Any], number: int) -> Any:
    """Return a copy of the record of a rank that runs another task, or None."""
    busy = ranks[ranks["task"] != 0]
    return busy[0] if len(busy) and not (ranks["task"] == number).any() else None


def _notebook(pid: int) -> str:
    """Return the file name of the notebook of a kernel of this user, as its Jupyter server has told it."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    named = (each.partition(b"=")[2] for each in variables if each.startswith(b"JPY_SESSION_NAME="))
    return Path(os.fsdecode(next(named, b""))).name


def _script(pid: int) -> str:
    """Return the file name of the script that a process of this host runs; empty if it runs none, or no Python."""
    try:
        program, *words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return ""
    if not Path(program).name.startswith("python"):
        return ""
    options = list(itertools.takewhile(lambda word: word.startswith("-"), words))
    if any(not option.startswith("--") and option[-1:] in ("c", "m") for option in options):
        return ""
    script = Path(f"/proc/{pid}/cwd", [*words, ""][len(options)])
    return script.name if script.is_file() else ""


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
        The same, with the record of the helper rank (see `xpulab.engine.hosts.helper`) at the end; zeros without one.
    ring : Ring
        The tasks for the ranks, if all of them are on this host.
    meetings : list of memoryview
        Memory for meetings of the ranks: within tasks of all ranks, at their ends, and the same for tasks of some.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        whole = block.array((block.nbytes,), np.uint8)
        self._head: Any = whole[: _HEAD.itemsize].view(_HEAD)
        if self._head["layout"][0] != _LAYOUT:
            raise ValueError("the board is of another version of xpulab")
        size = int(self._head["size"][0])
        rings = _HEAD.itemsize + (size + 1) * _RANK.itemsize
        self.every: Any = whole[_HEAD.itemsize : rings].view(_RANK)
        self.ranks: Any = self.every[:size]
        self._cancelled: Any = self._head["cancelled"][0]
        self._failed: Any = self.every["failed"]
        self._rings: Any = whole[rings : rings + size * _RING.itemsize]
        self.ring = Ring(whole[-Ring.nbytes(size) :].data, size)
        step, end = Meeting.nbytes(size), block.nbytes - Ring.nbytes(size)
        self.meetings = [whole[end - (k + 1) * step : end - k * step].data for k in range(_MEETINGS)]
        self._ring_bytes: Any = self._rings.data  # packing into these takes a quarter of the time of an entry

    @classmethod
    def create(cls, size: int) -> Board:
        """Create a board for `size` ranks, all zeros."""
        nbytes = _HEAD.itemsize + (size + 1) * _RANK.itemsize + size * _RING.itemsize
        nbytes += -nbytes % _ALIGNED + _MEETINGS * Meeting.nbytes(size) + Ring.nbytes(size)
        block = SharedBlock.create(nbytes, "xpulab-board")
        head = block.array((_HEAD.itemsize,), np.uint8).view(_HEAD)
        head["size"], head["layout"] = size, _LAYOUT
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

    def presses(self, task: int) -> int:
        """Return how often this task was asked to end: a slot for each request."""
        return int((self._cancelled == task).sum())

    def signal(self, task: int) -> None:
        """Send SIGINT to the ranks of this host whose user's code was asked to end, once for each request.

        A user's code does not read the board. A rank that is about to begin gets the signal at a later call. Its child
        processes get it, too, as from a terminal: each rank has a process group of its own.
        """
        presses = self.presses(task)
        for rank in np.flatnonzero((self.ranks["hears"] == task) & (self.ranks["signalled"] < presses)):
            record = self.ranks[rank]
            if pid := int(record["pid"]):  # the agents of other hosts signal their ranks
                record["signalled"] = presses
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGINT)

    def forget(self, task: int) -> None:
        """Free the slot of a task that has ended."""
        slots = self._cancelled
        slots[slots == task] = 0

    def failed(self, task: int) -> bool:
        """Return whether a rank raised an exception in this task."""
        return bool((self._failed == task).any())

    def note(self, rank: int, *entry: float) -> None:
        """Add an iteration to the ring of a rank: the fields of `iterations`, in their order, the phases one by one."""
        at = rank * _RING.itemsize
        (count,) = _COUNT.unpack_from(self._ring_bytes, at)
        _ENTRY.pack_into(self._ring_bytes, at + _ENTRIES + _ENTRY.size * (count % _PLACES), *entry)
        _COUNT.pack_into(self._ring_bytes, at, count + 1)  # last: a reader takes only entries that are complete

    def iterations(self, rank: int) -> np.ndarray[Any, Any]:
        """Return the last iterations of a rank, from the oldest to the newest, also of several tasks.

        Returns
        -------
        numpy.ndarray
            A structured array with the fields ``task``, ``client``, ``run``, ``iteration``, ``ended``, ``total`` and
            ``seconds``, of which the last two count from the arrival of the task.
        """
        return self.iterations_since(rank, 0, ITERATIONS)[1]

    def iterations_since(self, rank: int, since: int, most: int) -> tuple[int, np.ndarray[Any, Any]]:
        """Return iterations of a rank that `iterations` has, without the first `since` that the rank has ever noted.

        Parameters
        ----------
        rank, since : int
        most : int
            Largest number of iterations; the oldest come first.

        Returns
        -------
        int
            How many iterations the rank had noted before those that are returned.
        numpy.ndarray
        """
        ring = self._ring(rank)
        if (count := int(ring["count"][0])) <= since:
            return count, np.empty(0, ITERATION)
        entries = ring["entries"][0].copy()
        # The rank may have replaced the oldest entries meanwhile, and may be replacing one more.
        first = max(since, int(ring["first"][0]), int(ring["count"][0]) - ITERATIONS)
        found: np.ndarray[Any, Any] = entries[np.arange(first, min(first + most, count)) % _PLACES]
        return first, found

    def add_iterations(self, rank: int, first: int, entries: np.ndarray[Any, Any]) -> None:
        """Add what `iterations_since` returned for a rank of another host to its ring. What is missing before is lost.

        Parameters
        ----------
        rank, first : int
        entries : numpy.ndarray
            As `iterations` returns them, with ``ended`` by the clock of this host.
        """
        ring, end = self._ring(rank), first + len(entries)
        known = int(ring["first"][0]) if first == int(ring["count"][0]) else first
        ring["first"][0] = max(known, end - ITERATIONS)  # before a reader could see entries that are being replaced
        ring["entries"][0][np.arange(first, end) % _PLACES] = entries
        ring["count"][0] = end

    def _ring(self, rank: int) -> Any:
        return self._rings[rank * _RING.itemsize : (rank + 1) * _RING.itemsize].view(_RING)

    def close(self) -> None:
        """Close the shared memory."""
        self._head = self._cancelled = self._failed = self.ranks = self.every = self._rings = self._ring_bytes = None
        self._block.close()
