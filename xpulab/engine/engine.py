"""One rank: its device, its place in MPI, its handles, and the one way in which a task runs on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import Communicator, PeerFailed
from xpulab.engine.interruptible import WORLD, Intracomm
from xpulab.engine.waiting import interrupt
from xpulab.kernels.device import Device
from xpulab.kernels.rows import Rows
from xpulab.kernels.tune import MODE, Tuner
from xpulab.sharing.board import PHASES, Board
from xpulab.sharing.memory import SharedBlock

__all__ = ["Engine", "Interrupted", "Task", "task", "users_code", "warm_up", "warms_up"]

_HEARTBEAT = 0.5  # seconds
_IDLE = 1.0  # seconds without a task, after which an engine does other work

#: Keys of a task's result that its report shows; the rest may be large.
FIGURES = ("rows", "tile", "tuning", "history", "metrics", "converged")

_Function = Callable[..., dict[str, Any]]

#: Name -> the function that runs on every rank. Filled by the decorator `task`.
TASKS: dict[str, _Function] = {}


#: Task -> names of the numbers that it shows for each iteration; it minimises or maximises the first of them.
METRIC_NAMES: dict[str, tuple[str, ...]] = {}


#: Functions that an idle engine runs before the first task; see `warms_up`.
_WARM_UPS: list[Callable[[Engine], None]] = []


def warms_up(function: Callable[[Engine], None]) -> Callable[[Engine], None]:
    """Register a function `(Engine) -> None` that has the device's driver finish kernels before a first fit."""
    _WARM_UPS.append(function)
    return function


def warm_up(engine: Engine) -> None:
    """Call all functions that `warms_up` has registered."""
    for prepare in _WARM_UPS:
        prepare(engine)


def task(name: str, metrics: tuple[str, ...] = ()) -> Callable[[_Function], _Function]:
    """Register a function `(Task, **payload) -> dict` under the name by which the notebook asks for it.

    Parameters
    ----------
    name : str
    metrics : tuple of str
        Names of the numbers that its iterations show; the first is what it minimises. A result with ``history`` has
        them in each entry, after run and iteration and before the seconds.
    """

    def register(function: _Function) -> _Function:
        TASKS[name] = function
        METRIC_NAMES[name] = metrics
        return function

    return register


class Interrupted(Exception):
    """The task was cancelled, on all ranks at the same point.

    Attributes
    ----------
    result : dict
        What the task has so far.
    """

    def __init__(self, result: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.result = result or {}


class Engine:
    """The state that a rank keeps between tasks.

    Attributes
    ----------
    rank, size : int
    device : Device
        The one SYCL device of this rank.
    tuner : Tuner
        What was measured on it.
    handles : dict of str to objects with `nbytes`
        Rows, and what an explorer keeps: they live here until the notebook's handle dies.
    abouts : dict of str to dict
        What is to be known of rows that others may use, see `ShardedArray.about`.
    last : dict or None
        The latest call of an estimator that has ended: what the notebook said of it, and this rank's answer.
    namespace : dict
        Variables of the cells that ran here.
    lent : dict of int to list of SharedBlock
        Memory that a client, by its pid, maps until its next task.
    transcript : str
        File with what the last code of a user printed here.
    board : Board
        Shared with the other ranks of this host and with the notebook.
    record : numpy.void
        This rank's place on the board.
    """

    def __init__(self, placement: dict[str, Any]) -> None:
        world = WORLD
        self.rank: int = world.rank
        self.size: int = world.size
        self.placement = placement
        self.device = Device()
        # One mode for all: it steers collectives.
        self.tuner = Tuner(self.device, world.bcast(os.environ.get(MODE, "1")))
        self.handles: dict[str, Any] = {}
        self.abouts: dict[str, dict[str, Any]] = {}
        self.last: dict[str, Any] | None = None
        self.namespace: dict[str, Any] = {}
        self.transcript = ""
        self.lent: dict[int, list[SharedBlock]] = {}
        self._communicators: dict[tuple[int, ...], Intracomm] = {}
        board = Board.create(self.size) if self.rank == 0 else None
        path = world.bcast(board.path if board else None)
        self.board = board or Board.open(path)
        self.record = self.board.ranks[self.rank]
        self._comm, self._ends = world.Dup(), world.Dup()
        self._users_world()
        self._generation = 0
        self._abandoned: list[MPI.Intracomm] = []
        self._stale = False
        self._waiting: asyncio.TimerHandle | None = None  # runs if no task comes
        self.record["pid"] = os.getpid()
        self.record["tile"] = f"none used yet, {self.tuner.summary}".encode()
        threading.Thread(target=self._beat, name="xpulab-heartbeat", daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """Who and where this rank is."""
        return {
            "rank": self.rank,
            "size": self.size,
            "host": platform.node(),
            "pid": os.getpid(),
            "device": self.device.describe(),
            "cores": sorted(os.sched_getaffinity(0)),
            "board": self.board.path,
            "memory_used": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\0 "),
            "selector": self.placement.get("selector", ""),
            "tiles": str(self.tuner.path) if self.tuner.mode != "0" else "",
        }

    def run(self, name: str, number: int, payload: dict[str, Any], client: int = 0) -> dict[str, Any]:
        """Run a task that every rank runs. This never raises: errors are in the answer.

        Parameters
        ----------
        name : str
            As registered with `task`.
        number : int
            The notebook's number for this task, on the board while it runs.
        payload : dict
            Arguments of the task; ``report``, if there is one, says what call of an estimator it is.
        client : int
            The process that asks.

        Returns
        -------
        dict
            ``status`` ("ok", "interrupted", "error" or "peer failed"), ``result``, ``engine`` (rank, host, pid,
            device), ``seconds`` by phase, ``total`` seconds, and for errors ``error`` (type, message, traceback).
        """
        if self._waiting is not None:
            self._waiting.cancel()
        if self._stale:
            self._fresh_communicator()
        self.lent.pop(client, None)
        current = Task(self, name, number, client)
        report = payload.pop("report", None)
        answer: dict[str, Any] = {"status": "ok", "result": {}, "error": None}
        try:
            current.check()
            answer["result"] = TASKS[name](current, **payload)
            # All end together, or all learn that one has raised.
            current.comm.end()
        except Interrupted as interrupted:
            answer.update(status="interrupted", result=interrupted.result)
            if self.rank == 0:
                self.board.forget(number)  # all have seen it; who asked may have left
        except PeerFailed:
            answer.update(status="peer failed")
        except KeyboardInterrupt:
            current.raised()
            answer.update(status="interrupted")
        except BaseException as error:
            current.raised()
            answer.update(status="error", error=_error_fields(error))
        current.close()
        ignore_interrupts()
        if "history" in answer["result"]:
            answer["result"]["metrics"] = METRIC_NAMES[name]
        self._stale = self.board.failed(number)
        answer["seconds"] = current.seconds()
        answer["total"] = time.perf_counter() - current.started
        answer["engine"] = {
            "rank": self.rank,
            "host": platform.node(),
            "pid": os.getpid(),
            "device": self.device.name,
            "cores": sorted(os.sched_getaffinity(0)),
        }
        if report is not None:
            figures = {key: value for key, value in answer["result"].items() if key in FIGURES}
            self.last = {"report": report, "reply": {**answer, "result": figures}}
        return answer

    def when_idle(self, action: Callable[[Engine], None]) -> None:
        """Do something a second from now, unless a task comes first."""
        self._waiting = asyncio.get_running_loop().call_later(_IDLE, action, self)

    def _fresh_communicator(self) -> None:
        """New communicators after a failure: on the old ones, ranks left a barrier that others never entered."""
        self._generation += 1
        # What is pending on the old ones must not be freed.
        self._abandoned += [self._comm, self._ends, *self._communicators.values()]
        self._communicators.clear()
        self._comm = WORLD.Create_group(WORLD.group, self._generation)
        self._ends = self._comm.Dup()
        self._users_world()
        self._stale = False

    def communicator(self, ranks: Sequence[int]) -> Intracomm:
        """The communicator of these ranks for a user's code; nobody else takes part in making it."""
        ranks = tuple(ranks)
        if ranks not in self._communicators:
            self._communicators[ranks] = Intracomm(WORLD.Create_group(WORLD.group.Incl(ranks)))
        return self._communicators[ranks]

    def _users_world(self) -> None:
        """Give `MPI.COMM_WORLD` a meaning that a user's code can leave; all ranks call this together."""
        setattr(MPI, "COMM_WORLD", self.communicator(range(self.size)))  # noqa: B010 -- mpi4py declares it final

    def _beat(self) -> None:
        while True:
            self.record["heartbeat"] = time.time()
            time.sleep(_HEARTBEAT)


class Task:
    """One task on one rank: its communicator, its device, its clock.

    Attributes
    ----------
    comm : Communicator
    device : Device
    transfer : float
        Seconds spent moving rows between the notebook and the device; the task adds to it.
    """

    def __init__(self, engine: Engine, name: str, number: int, client: int) -> None:
        self.engine = engine
        self.number = number
        self.device = engine.device
        self.comm = Communicator(engine._comm, lambda: engine.board.failed(number), engine._ends)
        self.transfer = 0.0
        self.started = time.perf_counter()
        self.device.kernel_seconds = self.device.compile_seconds = 0.0
        self.device.while_compiling = self.leave_if_cancelled
        record = engine.record
        record["seconds"] = record["total"] = 0
        record["iteration"] = record["run"] = record["lengths"] = 0
        record["metrics"] = np.nan
        record["metric_names"] = ",".join(METRIC_NAMES.get(name, ())).encode()
        record["name"], record["doing"] = name.encode(), b""
        record["client"] = self.client = client
        record["task"] = number

    def cancelled(self) -> bool:
        """Whether this rank has seen the request to stop. A fact of this rank only: reduce it before acting on it."""
        return self.engine.board.cancelled(self.number)

    def check(self) -> None:
        """Leave, on all ranks together, if one has seen the request to stop.

        Raises
        ------
        Interrupted
        """
        if self.comm.allreduce(np.array([self.cancelled()], dtype=np.int8), np.maximum)[0]:
            raise Interrupted

    def leave_if_cancelled(self) -> None:
        """Leave, this rank first, if it has seen the request to stop: before what takes seconds and reduces nothing.

        The others leave their collective then, as if this one had raised.

        Raises
        ------
        KeyboardInterrupt
        """
        if self.cancelled():
            raise KeyboardInterrupt

    def check_peers(self) -> None:
        """Leave if another rank has raised.

        Raises
        ------
        PeerFailed
        """
        if self.engine.board.failed(self.number):
            raise PeerFailed

    def show(self, **fields: Any) -> None:
        """Write this rank's progress on the board; see `xpulab.sharing.board` for the fields."""
        record = self.engine.record
        metrics = fields.pop("metrics", ())
        record["metrics"][: len(metrics)] = metrics
        for field, value in fields.items():
            record[field] = value
        if "iteration" in fields:
            record["doing"] = b""
        record["seconds"] = list(self.seconds().values())
        record["total"] = time.perf_counter() - self.started

    def show_tile(self, rows: Any, n_clusters: int) -> str | None:
        """Write on the board which tile these sizes get, and return it; None for sparse rows, which have no tiles."""
        if not isinstance(rows, Rows):
            return None
        tuner = self.engine.tuner
        tile = tuner.describe(rows.dtype, rows.n_features, n_clusters)
        self.engine.record["tile"] = (tile if tuner.mode == "0" else f"{tile}, {tuner.summary}").encode()
        return tile

    def seconds(self) -> dict[str, float]:
        """Seconds by phase so far."""
        spent = (
            self.transfer,
            self.device.compile_seconds,
            self.device.kernel_seconds,
            self.comm.communicate,
            self.comm.wait,
        )
        return dict(zip(PHASES, spent, strict=True))

    def raised(self) -> None:
        """Tell the other ranks that this one has left."""
        self.engine.record["failed"] = self.number

    def close(self) -> None:
        """Done, however it went."""
        self.show(task=0, device_bytes=sum(rows.nbytes for rows in self.engine.handles.values()))


def _error_fields(error: BaseException) -> dict[str, str]:
    """The parts of an error that `deploy.answers` needs to raise it in the notebook."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def ignore_interrupts() -> None:
    """SIGINT is the notebook's affair: it asks through the board, and every rank stops at the same point."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:  # a signal that came just before, for a code that has ended
            pass


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """A user's code need not look at the board: SIGINT ends it."""
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        ignore_interrupts()
