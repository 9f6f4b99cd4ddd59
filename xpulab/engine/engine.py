"""One rank: its device, its communicators, its handles, and the function that runs a task on it."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import Communicator, PeerFailed
from xpulab.engine.helper import Helper, SentCheckpoint
from xpulab.engine.host import host_of, show_board
from xpulab.engine.interruptible import WORLD, Intracomm
from xpulab.engine.travel import travelled
from xpulab.engine.waiting import interrupt
from xpulab.exceptions import NeverAnsweredError
from xpulab.kernels.kmeans.tune import MODE, Tuner
from xpulab.kernels.rows import Fill, Rows
from xpulab.kernels.runtime.device import Device
from xpulab.sharing.board import PHASES, Board
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.hangs import Watch
from xpulab.sharing.leaving import tell_exits
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.torchrun import INTERFACE, LOOPBACK, Port, Torchrun, address_of

__all__ = ["Engine", "Interrupted", "Task", "task", "this_engine", "users_code", "warm_up", "warms_up"]

_HEARTBEAT = 0.5  # seconds between two heartbeats
_IDLE = 1.0  # seconds without a task after which an engine does other work

#: Keys of a task's result that its report shows. Other parts of the result may be large, and are not kept.
FIGURES = ("rows", "tile", "tuning", "history", "metrics", "converged")

_Function = Callable[..., dict[str, Any]]

#: Name of a task -> the function that runs on every rank. The decorator `task` adds entries.
TASKS: dict[str, _Function] = {}


#: Name of a task -> names of the metrics of its iterations; the task minimises or maximises the first one.
METRIC_NAMES: dict[str, tuple[str, ...]] = {}


#: Functions that an idle engine runs before the first task; see `warms_up`.
_WARM_UPS: list[Callable[[Engine], None]] = []


def warms_up(function: Callable[[Engine], None]) -> Callable[[Engine], None]:
    """Register a function that gets the `Engine`, and lets the device's driver finish kernels before a first fit."""
    _WARM_UPS.append(function)
    return function


def warm_up(engine: Engine) -> None:
    """Call all functions that `warms_up` has registered."""
    for prepare in _WARM_UPS:
        prepare(engine)


def task(name: str, metrics: tuple[str, ...] = ()) -> Callable[[_Function], _Function]:
    """Register a function as a task. The function gets the `Task` and the payload as keywords, and returns a dict.

    Parameters
    ----------
    name : str
        Name with which the notebook asks for the task.
    metrics : tuple of str
        Names of the metrics of its iterations; it minimises or maximises the first one. If the result has a
        ``history``, each entry consists of run, iteration, these metrics, and seconds.
    """

    def register(function: _Function) -> _Function:
        TASKS[name] = function
        METRIC_NAMES[name] = metrics
        return function

    return register


_engines: list[Engine] = []  # at most one: that of this process


def this_engine() -> Engine | None:
    """The engine of this process, or None."""
    return _engines[0] if _engines else None


class Interrupted(Exception):
    """The task was cancelled, on all ranks at the same point.

    Attributes
    ----------
    result : dict
        The result of the task so far.
    """

    def __init__(self, result: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.result = result or {}


class Engine:
    """The state that a rank keeps between tasks.

    Attributes
    ----------
    rank, size : int
        Rank of this engine, and number of ranks.
    device : Device
        The SYCL device of this rank.
    tuner : Tuner
        The launch parameters that were measured on the device.
    handles : dict of str to objects with `nbytes`
        Rows and explorers' states by the id of their handle, until the notebook deletes the handle.
    abouts : dict of str to dict
        Descriptions of the rows that all clients may use, see `ShardedArray.about`.
    last : dict or None
        The latest call of an estimator that has ended: the notebook's description, and this rank's answer.
    namespace : dict
        Variables of the cells that ran on this rank.
    task : Task or None
        The running task.
    lent : dict of tuple of int to list of SharedBlock
        Pid of a client and number of its task -> memory of the task's result, see `Task.lend`.
    transcript : str
        File with the output of the last user's code on this rank.
    host : RankHost
        The ranks of this host, and of the notebook's.
    board : Board
        The board of this host, shared with its other ranks, and on the notebook's host with the notebook.
    record : numpy.void
        This rank's record on the board.
    helper : Helper or None
        The helper rank, if no engine runs on the notebook's host.
    torchrun : Torchrun or None
        torchrun's variables, for users' code; None in a script, which has those of the program that has started it.
    """

    def __init__(
        self, placement: dict[str, Any], several_hosts: bool = False, helper: Sequence[MPI.Intracomm] = ()
    ) -> None:
        world = WORLD
        self.rank: int = world.rank
        self.size: int = world.size
        self.placement = placement
        self.device = Device()
        # All ranks need the same mode, because it decides which collectives they call.
        self.tuner = Tuner(self.device, world.bcast(os.environ.get(MODE, "1")))
        self.handles: dict[str, Any] = {}
        self.abouts: dict[str, dict[str, Any]] = {}
        self.last: dict[str, Any] | None = None
        self.namespace: dict[str, Any] = {}
        self.transcript = ""
        self.task: Task | None = None
        self.lent: dict[tuple[int, int], list[SharedBlock]] = {}
        self._communicators: dict[tuple[int, ...], Intracomm] = {}
        self.helper = Helper(*helper) if helper else None
        self.host, comm = host_of(world, several_hosts, self.helper is not None)
        board = Board.create(self.size) if self.host.leads else None
        path = comm.bcast(board.path if board else None)
        self.board = board or Board.open(path)
        self.torchrun = self._torchrun() if placement else None
        self.record = self.board.ranks[self.rank]
        self._comm, self._ends = world.Dup(), world.Dup()
        self._users_world()
        self._generation = 0
        self._abandoned: list[MPI.Intracomm] = []
        self._stale = False
        self._waiting: asyncio.TimerHandle | None = None  # calls an action if no task arrives
        self._watched: tuple[Task, Watch] | None = None  # the user's code that runs
        self.record["pid"] = os.getpid()
        tell_exits(self._leave)
        self.record["tile"] = f"none used yet, {self.tuner.summary}".encode()
        threading.Thread(target=self._beat, name="xpulab-heartbeat", daemon=True).start()
        _engines[:] = [self]

    def describe(self) -> dict[str, Any]:
        """The description of this rank: rank, host, pid, device, cores and so on."""
        return {
            "rank": self.rank,
            "mpi_rank": self.placement.get("mpi_rank", self.rank),
            "size": self.size,
            "host": platform.node(),
            "pid": os.getpid(),
            "device": self.device.describe(),
            "cores": sorted(os.sched_getaffinity(0)),
            "here": self.host.here,
            "board": self.board.path,
            "memory_used": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\0 "),
            "selector": self.placement.get("selector", ""),
            "tiles": str(self.tuner.path) if self.tuner.mode != "0" else "",
        }

    def run(
        self, name: str, number: int, payload: dict[str, Any], client: int = 0, unread: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Run a task, at the same time as all other ranks. It never raises an exception: errors are in the answer.

        A user's code, which is a task, may run other tasks (`xpulab.spmd` does). The board then goes on to show the
        user's code.

        Parameters
        ----------
        name : str
            Name of the task.
        number : int
            The notebook's number for this task, which is on the board while the task runs.
        payload : dict
            Arguments of the task, and ``report`` if the task is a call of an estimator: a description of the call.
        client : int
            Pid of the process that sent the task.
        unread : sequence of int
            Numbers of earlier tasks whose results other threads of that process may still be reading.

        Returns
        -------
        dict
            ``status`` ("ok", "interrupted", "error" or "peer failed"), ``result``, ``engine`` (rank, host, pid,
            device), ``seconds`` by phase, ``total`` seconds, and for errors ``error`` (type, message, traceback).
        """
        if self._waiting is not None:
            self._waiting.cancel()
        if self._stale:
            self.renew_communicators()
        for lender, earlier in list(self.lent):
            if lender == client and earlier not in unread:
                del self.lent[lender, earlier]
        current = self.task = Task(self, name, number, client)
        report = payload.pop("report", None)
        answer: dict[str, Any] = {"status": "ok", "result": {}, "error": None}
        failed = False
        try:
            current.check()
            with travelled(current, payload, Interrupted) as here:
                answer["result"] = TASKS[name](current, **here)
            # All ranks end the task together, or all learn that one of them has raised an exception.
            failed = current.comm.end(current.has_raised)
        except Interrupted as interrupted:
            answer.update(status="interrupted", result=interrupted.result)
            if self.rank == 0:
                self.board.forget(number)  # all ranks have seen the request; the process that wrote it may have ended
        except PeerFailed:
            answer.update(status="peer failed")
        except KeyboardInterrupt:
            current.raised()
            answer.update(status="interrupted")
        except BaseException as error:
            current.raised()
            answer.update(status="error", error=_error_fields(error))
        current.close()
        self.task = current.outer
        ignore_interrupts()
        if "history" in answer["result"]:
            answer["result"]["metrics"] = METRIC_NAMES[name]
        self._stale = failed or self.board.failed(number)
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

    def run_sent(self, about: tuple[str, int, int, Sequence[int]], payload: dict[str, Any]) -> dict[str, Any]:
        """Run a task that the notebook has sent: `about` is its name and number, the client, and its unread tasks."""
        name, number, client, unread = about
        return self.run(name, number, payload, client, unread)

    def when_idle(self, action: Callable[[Engine], None]) -> None:
        """Call `action` after a second without a task."""
        self._waiting = asyncio.get_running_loop().call_later(_IDLE, action, self)

    def renew_communicators(self) -> None:
        """Make new communicators after a failure: on the old ones, ranks left a barrier that others never entered.

        All ranks call this together.
        """
        self._generation += 1
        # Requests may still be pending on the old communicators, so they must not be freed.
        self._abandoned += [self._comm, self._ends, *self._communicators.values()]
        self._communicators.clear()
        self._comm = WORLD.Create_group(WORLD.group, self._generation)
        self._ends = self._comm.Dup()
        if self.helper is not None:
            self.helper.renew(self._generation)
        self._users_world()
        self._stale = False

    @property
    def pairs(self) -> MPI.Intracomm:
        """A communicator for messages between two ranks within a task, of which the helper rank is a member."""
        return self._comm if self.helper is None else self.helper.pairs

    def show_board(self, folder: str) -> None:
        """Tell the relay or the agent of this host where the board is."""
        if self.host.leads:
            show_board(folder, self.board.path, [self.rank, *self.host.followers])

    def communicator(self, ranks: Sequence[int]) -> Intracomm:
        """The communicator of these ranks for a user's code. Only these ranks take part in its creation."""
        ranks = tuple(ranks)
        if ranks not in self._communicators:
            self._communicators[ranks] = Intracomm(WORLD.Create_group(WORLD.group.Incl(ranks)))
        return self._communicators[ranks]

    def _torchrun(self) -> Torchrun:
        """Tell users' code, in torchrun's words, of the ranks. All ranks call this together."""
        if not self.host.several:
            os.environ.setdefault(INTERFACE, "lo")
        port = Port(address_of(os.environ.get(INTERFACE, "")) if self.host.several else LOOPBACK)
        places = WORLD.allgather(port.place)
        return Torchrun(self.rank, port, places, self.host.leaders, self.placement["environment"])

    def _users_world(self) -> None:
        """Replace `MPI.COMM_WORLD` by a communicator whose calls can be interrupted. All ranks call this together."""
        setattr(MPI, "COMM_WORLD", self.communicator(range(self.size)))  # noqa: B010 -- mpi4py declares it final

    def _beat(self) -> None:
        while True:
            self.record["heartbeat"] = time.time()
            if (watched := self._watched) is not None:
                task, watch = watched
                task.hopeless = watch.look()
            time.sleep(_HEARTBEAT)

    def _leave(self, status: int) -> None:
        """Note on the board that a user's code leaves with this exit status."""
        self.record["left"] = 1 + status

    @contextlib.contextmanager
    def watched(self, task: Task) -> Iterator[None]:
        """Open a context for a user's code, which ends with an error if this rank waits for ever."""
        self._watched = task, Watch(lambda: self.board, self.rank, task.number)
        try:
            yield
        finally:
            self._watched = None
            self.record["waits"] = 0


class Task:
    """One task on one rank: its communicator, its device, its clock.

    Attributes
    ----------
    comm : Communicator
        The communicator of all ranks.
    device : Device
        The device of this rank.
    outer : Task or None
        The user's code in which this task runs.
    ranks : sequence of int
        The ranks that work on this task; the others wait for its end.
    hopeless : str
        Why nothing can answer the call in which this rank waits; empty if it does not wait for ever.
    transfer : float
        Seconds of transfers of rows between the notebook and the device; the task adds to it.
    written : list of tuple
        Parts of results for another host: number of the result, offset, number of bytes, and an iterable that makes the
        rows in parts; None if this rank has written them into its memory for the result.
    """

    def __init__(self, engine: Engine, name: str, number: int, client: int) -> None:
        self.engine = engine
        self.number = number
        self.device = engine.device
        self.outer = engine.task
        self.ranks: Sequence[int] = range(engine.size)
        self.comm = Communicator(engine._comm, self.failed, engine._ends, not engine.host.several)
        self.hopeless = ""
        self.transfer = 0.0
        self.written: list[tuple[int, int, int, Iterable[np.ndarray] | None]] = []
        self.started = time.perf_counter()
        self.device.kernel_seconds = self.device.compile_seconds = 0.0
        self.device.while_compiling = self.leave_if_cancelled
        record = engine.record
        record["seconds"] = record["total"] = 0
        record["iteration"] = record["run"] = record["lengths"] = 0
        record["metrics"] = record["passes"] = np.nan
        record["metric_names"] = ",".join(METRIC_NAMES.get(name, ())).encode()
        record["doing"] = b""
        self.client = client
        if self.outer is None:
            record["name"], record["client"], record["task"] = name.encode(), client, number

    def cancelled(self) -> bool:
        """Whether this rank has seen the request to stop. Other ranks may not have: reduce it before a decision."""
        return self.engine.board.cancelled(self.number) or (self.outer is not None and self.outer.cancelled())

    def failed(self) -> bool:
        """Whether a rank has raised an exception, in this task or in the user's code in which it runs.

        Raises
        ------
        NeverAnsweredError
            If this rank waits for ever.
        """
        if self.hopeless:
            raise NeverAnsweredError(f"no rank can answer any more: {self.hopeless}")
        return self.engine.board.failed(self.number) or (self.outer is not None and self.outer.failed())

    def check(self) -> None:
        """End the task on all ranks together, if one of them has seen the request to stop.

        Raises
        ------
        Interrupted
            If a rank has seen the request.
        """
        if self.comm.allreduce(np.array([self.cancelled()], dtype=np.int8), np.maximum)[0]:
            raise Interrupted

    def leave_if_cancelled(self) -> None:
        """End the task on this rank, if it has seen the request to stop. For steps of seconds without a reduction.

        The other ranks then leave their collective, as after an exception on this rank.

        Raises
        ------
        KeyboardInterrupt
            If this rank has seen the request.
        """
        if self.cancelled():
            raise KeyboardInterrupt

    def check_peers(self) -> None:
        """End the task on this rank, if another rank has raised an exception.

        Raises
        ------
        PeerFailed
            If another rank has raised an exception.
        NeverAnsweredError
            If this rank waits for ever.
        """
        if self.failed():
            raise PeerFailed

    def checkpoint(self, path: str) -> Checkpoint | SentCheckpoint:
        """Open the notebook's memory for the state of a fit, on rank 0; it writes there, or has the helper rank write.

        Parameters
        ----------
        path : str
            `Checkpoint.path`.

        Returns
        -------
        Checkpoint or SentCheckpoint
            A context manager with `write` and `close`.
        """
        helper = self.engine.helper
        return Checkpoint.open(path) if helper is None else SentCheckpoint(helper, path)

    def await_message(self, comm: MPI.Intracomm, rank: int, tag: int) -> None:
        """Return at once: rank 0 receives results when it has computed its own."""

    def lend(self, parts: Sequence[np.ndarray]) -> str:
        """Copy arrays into shared memory, one after the other, for the client.

        This rank holds the memory until the client's thread sends its next task, or has ended and another thread sends
        one. By then the thread has mapped it.

        Parameters
        ----------
        parts : sequence of numpy.ndarray

        Returns
        -------
        str
            The path with which the client opens the memory.
        """
        block = SharedBlock.create(sum(part.nbytes for part in parts))
        self.engine.lent.setdefault((self.client, self.number), []).append(block)
        at = 0
        for part in parts:
            block.write(part, at)
            at += part.nbytes
        return block.path

    def given(self, parts: Sequence[np.ndarray]) -> bytes | dict[str, Any]:
        """Arrays for the client, one after the other: their place in shared memory, or, from another host, bytes."""
        if self.engine.host.here:
            return {"path": self.lend(parts), "nbytes": sum(part.nbytes for part in parts)}
        return b"".join(part.tobytes() for part in parts)

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
        """Write the launch parameters (tile) for these sizes on the board, and return them; None for sparse rows."""
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

    def read_in_order(self, shape: tuple[int, int], dtype: Any, fill: Fill) -> tuple[Rows, bool]:
        """Read rows to the device with a function that gives them from the first to the last; see `Rows.read`."""
        return Rows.read(self.device, shape, dtype, fill, threads=1)

    @contextlib.contextmanager
    def transferring(self) -> Iterator[None]:
        """Count the seconds of the body as transfer, without those of kernels and of communication."""

        def others() -> float:
            return sum(seconds for phase, seconds in self.seconds().items() if phase != "transfer")

        before = others() + self.transfer
        started = time.perf_counter()
        yield
        self.transfer += max(0.0, time.perf_counter() - started - (others() + self.transfer - before))

    @property
    def has_raised(self) -> bool:
        """Whether this rank has raised an exception."""
        return bool(self.engine.record["failed"] == self.number)

    def raised(self) -> None:
        """Tell the other ranks through the board that this rank has raised an exception."""
        self.engine.record["failed"] = self.number

    def close(self) -> None:
        """End the task on the board."""
        task = 0 if self.outer is None else self.outer.number
        self.show(task=task, doing=b"", device_bytes=sum(rows.nbytes for rows in self.engine.handles.values()))


def _error_fields(error: BaseException) -> dict[str, str]:
    """The parts of an error that `deploy.tasks.answers` needs to raise it in the notebook."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def ignore_interrupts() -> None:
    """Ignore SIGINT. The notebook stops a task through the board, so that all ranks stop at the same point."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:  # a late signal for a user's code that has ended
            pass


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """A context in which SIGINT raises KeyboardInterrupt, because a user's code does not read the board."""
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        ignore_interrupts()
