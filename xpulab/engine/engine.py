"""One rank: its device, its communicators, its handles, and the function that runs a task on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import Communicator, Interrupted, PeerFailed
from xpulab.engine.communicators import Communicators, told_by_rank_0
from xpulab.engine.heartbeat import Heartbeat
from xpulab.engine.host import Placement, RankHost, host_of, show_board
from xpulab.engine.hosts.helper import Helper, SentCheckpoint
from xpulab.engine.hosts.rows import Written, travelled
from xpulab.engine.phases import Phases
from xpulab.engine.registry import METRIC_NAMES, TASKS, look_for, register
from xpulab.engine.torchrun import Torchrun
from xpulab.engine.users_mpi.interruptible import WORLD
from xpulab.engine.waiting import ignore_interrupts
from xpulab.exceptions import NeverAnsweredError, error_fields
from xpulab.kernels.kmeans.tune import MODE, Tuner
from xpulab.kernels.rows import Fill, Rows
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.streamed import Reading, StreamedRows
from xpulab.sharing.answers import LastCall, Reply, Status
from xpulab.sharing.board import Board
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.descriptions import EngineDescription
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.owner import tell_exits
from xpulab.sharing.sources import Description, SharedArray, Source

__all__ = ["ArrivedRows", "Engine", "Task", "never_answered", "this_engine", "warm_up", "warms_up"]

_IDLE = 1.0  # seconds without a task after which an engine does other work

#: Keys of a task's result that its report shows. Other parts of the result may be large, and are not kept.
FIGURES = ("rows", "launch_shape", "tuning", "history", "metrics", "final", "run", "converged", "reading", "notes")

#: Functions that an idle engine runs before the first task; see `warms_up`.
_WARM_UPS: list[Callable[[Engine], None]] = []


def never_answered(where: str) -> NeverAnsweredError:
    """Return the error of a rank that waits for ever: `where` says who waits in which line."""
    return NeverAnsweredError(f"no rank can answer any more: {where}")


def warms_up(function: Callable[[Engine], None]) -> Callable[[Engine], None]:
    """Register a function that gets the `Engine`, and lets the device's driver finish kernels before a first fit."""
    _WARM_UPS.append(function)
    return function


def warm_up(engine: Engine) -> None:
    """Import all algorithms, and call the functions that `warms_up` has registered."""
    register()
    for prepare in _WARM_UPS:
        prepare(engine)


_engines: list[Engine] = []  # at most one: that of this process


def this_engine() -> Engine | None:
    """Return the engine of this process, or None."""
    return _engines[0] if _engines else None


class Engine:
    """The state that a rank keeps between tasks.

    Attributes
    ----------
    rank, size : int
        Rank of this engine, and number of ranks.
    device : Device
        The SYCL device of this rank.
    tuner : Tuner
        The launch shapes that were measured on the device.
    handles : dict of str to objects with `nbytes`
        Rows and explorers' states by the id of their handle, until the notebook deletes the handle.
    descriptions : dict of str to Description
        Descriptions of the rows that all clients may use, by the id of their handle.
    last : LastCall or None
        The latest call of an estimator that has ended.
    main : types.ModuleType
        The module that cells see as ``__main__``.
    namespace : dict
        Variables of the cells that ran on this rank.
    task : Task or None
        The running task.
    lent : dict of tuple of int to list of SharedBlock
        Pid of a client and number of its task -> memory of the task's result, see `Task.arrays_for_client`.
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
    communicators : Communicators
    heartbeat : Heartbeat
        The thread that gives signs of life, and looks where a user's code is.
    torchrun : Torchrun or None
        torchrun's variables, for users' code; None in a script, which has those of the program that has started it.
    """

    def __init__(self, placement: Placement, several_hosts: bool = False, helper: Sequence[MPI.Intracomm] = ()) -> None:
        world = WORLD
        self.rank, self.size = world.rank, world.size
        self.placement = placement
        self.device = Device()
        # All ranks need the same mode, because it decides which collectives they call.
        self.tuner = Tuner(self.device, told_by_rank_0(world, os.environ.get(MODE, "1")))
        self.handles: dict[str, Any] = {}
        self.descriptions: dict[str, Description] = {}
        self.last: LastCall | None = None
        self.main = ModuleType("__main__")
        self.namespace: dict[str, object] = vars(self.main)
        self.transcript = ""
        self.task: Task | None = None
        self.lent: dict[tuple[int, int], list[SharedBlock]] = {}
        self.helper = Helper(*helper) if helper else None
        self.host, comm = host_of(world, several_hosts, self.helper is not None)
        board = Board.create(self.size) if self.host.leads else None
        path = comm.bcast(board.path if board else None)
        self.board = board or Board.open(path)
        self.torchrun: Torchrun | None = None
        self.record = self.board.ranks[self.rank]
        self.communicators = Communicators(self.helper, self.board, self.host.several)
        self._stale = False
        self._waiting: asyncio.TimerHandle | None = None  # calls an action if no task arrives
        self.record["pid"] = os.getpid()
        tell_exits(self._leave)
        self.record["launch_shape"] = ", ".join(filter(None, ("no k-means yet", self.tuner.summary))).encode()
        self.heartbeat = Heartbeat(self.board, self.rank)
        _engines[:] = [self]

    def describe(self) -> EngineDescription:
        """Return what this rank tells about itself."""
        return EngineDescription(
            rank=self.rank,
            mpi_rank=self.placement.get("mpi_rank", self.rank),
            host=platform.node(),
            pid=os.getpid(),
            device=self.device.describe(),
            cores=tuple(sorted(os.sched_getaffinity(0))),
            here=self.host.here,
            board=self.board.path,
            mpi=MPI.Get_library_version().splitlines()[0].strip("\0 "),
            selector=self.placement.get("selector", ""),
            launch_shapes=str(self.tuner.path) if self.tuner.mode != "0" else "",
        )

    @property
    def bytes_of_handles(self) -> int:
        """Bytes on the device that outlive a task."""
        return sum(rows.nbytes for rows in self.handles.values())

    def run(
        self, name: str, number: int, payload: dict[str, object], client: int = 0, unread: Sequence[int] = ()
    ) -> Reply:
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
        Reply
            The result, or the error, and the seconds.
        """
        if self._waiting is not None:
            self._waiting.cancel()
        if self._stale:
            self.renew_communicators()
        for lender, earlier in list(self.lent):
            if lender == client and earlier not in unread:
                del self.lent[lender, earlier]
        report = payload.pop("report", None)
        called = f"{report['estimator']}.{report['method']}" if isinstance(report, dict) else ""
        look_for(name)  # before the task says what its iterations show
        current = self.task = Task(self, name, number, client, called)
        status: Status = "ok"
        result: Mapping[str, object] = {}
        failed, fields = False, None
        try:
            current.check()
            with travelled(current, payload) as here:
                result = TASKS[name](current, **here)
            # All ranks end the task together, or all learn that one of them has raised an exception.
            failed = current.comm.end(current.has_raised)
        except Interrupted as interrupted:
            status, result = "interrupted", interrupted.result
            if self.rank == 0:
                self.board.forget(number)  # all ranks have seen the request; the process that wrote it may have ended
        except PeerFailed:
            status = "peer failed"
        except KeyboardInterrupt:
            current.raised()
            status = "interrupted"
        except BaseException as error:
            current.raised()
            status, fields = "error", error_fields(error)
        current.close()
        if current.reading is not None:
            result = {**result, "reading": asdict(current.reading)}
        self.task = current.outer
        ignore_interrupts()
        if "history" in result:
            result = {**result, "metrics": METRIC_NAMES[name]}
        self._stale = failed or self.board.failed(number)
        reply: Reply = {
            "status": status,
            "result": result,
            "error": fields,
            "seconds": current.seconds(),
            "total": time.perf_counter() - current.started,
            "engine": {
                "rank": self.rank,
                "host": platform.node(),
                "pid": os.getpid(),
                "device": self.device.name,
                "cores": sorted(os.sched_getaffinity(0)),
            },
        }
        if report is not None:
            figures = {key: value for key, value in result.items() if key in FIGURES}
            self.last = {"report": report, "reply": {**reply, "result": figures}}
        return reply

    def run_sent(self, about: tuple[str, int, int, Sequence[int]], payload: dict[str, object]) -> Reply:
        """Run a task that the notebook has sent: `about` is its name and number, the client, and its unread tasks."""
        name, number, client, unread = about
        return self.run(name, number, payload, client, unread)

    def when_idle(self, action: Callable[[Engine], None]) -> None:
        """Call `action` after a second without a task."""
        self._waiting = asyncio.get_running_loop().call_later(_IDLE, action, self)

    @contextlib.contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator[None]:
        """Open a context in which the tasks are those of some ranks of one host, of which this rank is one."""
        host, self.host = self.host, RankHost(list(ranks).index(self.rank), [0] * len(ranks))
        try:
            with self.communicators.among(ranks):
                yield
        finally:
            self.host = host

    def renew_communicators(self) -> None:
        """Make new communicators after a failure. All ranks call this together."""
        self.communicators.renew()
        self._stale = False

    def show_board(self, folder: str) -> None:
        """Tell the relay or the agent of this host where the board is."""
        if self.host.leads:
            show_board(folder, self.board.path, [self.rank, *self.host.followers])

    def _leave(self, status: int) -> None:
        """Note on the board that a user's code leaves with this exit status."""
        self.record["left"] = 1 + status


@dataclass(frozen=True)
class ArrivedRows(Source):
    """This rank's rows, which have come from another host, on its device, and whether all were finite."""

    rows: Rows
    all_finite: bool


class Task(Phases):
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
    freed : str
        Why gloo's connections were closed, if that was because nothing could answer; otherwise empty.
    written : list of Written
        Parts of results for the notebook's host, on another host.
    reading : Reading or None
        What was read of rows that the device does not keep.
    """

    def __init__(self, engine: Engine, name: str, number: int, client: int, called: str = "") -> None:
        self.engine = engine
        self.number = number
        self.device = engine.device
        self.outer = engine.task
        self.ranks: Sequence[int] = range(engine.size)
        ways = engine.communicators.ways
        self.comm = Communicator(ways.tasks, self.failed, ways.ends, ways.meetings)
        self.hopeless = self.freed = ""
        self.begin_phases()
        self.written: list[Written] = []
        self.reading: Reading | None = None
        self.started = time.perf_counter()
        self.device.while_compiling = self.leave_if_cancelled
        record = engine.record
        record["seconds"] = record["total"] = 0
        record["iteration"] = record["run"] = record["lengths"] = 0
        record["metrics"] = record["passes"] = np.nan
        record["metric_names"] = ",".join(METRIC_NAMES.get(name, ())).encode()
        record["doing"] = b""
        record["done"] = record["steps"] = 0
        self.client = client
        if self.outer is None:
            record["hears"] = record["signalled"] = record["heard"] = 0
            record["name"], record["client"], record["since"] = (called or name).encode(), client, time.time()
            record["task"] = number

    def cancelled(self) -> bool:
        """Return whether this rank has seen the request to stop. Others may not have: reduce it before a decision."""
        return self.engine.board.cancelled(self.number) or (self.outer is not None and self.outer.cancelled())

    def is_over(self) -> bool:
        """Return whether this rank should leave the call in which it waits."""
        return bool(self.hopeless) or self.cancelled() or self.engine.board.failed(self.number)

    def failed(self) -> bool:
        """Return whether a rank has raised an exception, in this task or in the user's code in which it runs.

        Raises
        ------
        NeverAnsweredError
            If this rank waits for ever.
        """
        if self.hopeless:
            raise never_answered(self.hopeless)
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

    def arrays_for_client(self, parts: Sequence[np.ndarray]) -> bytes | SharedArray:
        """Copy arrays for the client, one after the other.

        This rank holds the memory until the client's thread, or after its end another one, sends a task. The client has
        mapped it by then.

        Parameters
        ----------
        parts : sequence of numpy.ndarray

        Returns
        -------
        bytes or SharedArray
            The bytes of the arrays: in shared memory, with dtype uint8, or from another host in the answer.
        """
        if not self.engine.host.here:
            return b"".join(part.tobytes() for part in parts)
        nbytes = sum(part.nbytes for part in parts)
        block = SharedBlock.create(nbytes)
        self.engine.lent.setdefault((self.client, self.number), []).append(block)
        at = 0
        for part in parts:
            block.write(part, at)
            at += part.nbytes
        return SharedArray(block.path, (nbytes,), np.dtype(np.uint8))

    def show(self, *, metrics: Sequence[float] | np.ndarray = (), **fields: object) -> None:
        """Write this rank's progress on the board; see `xpulab.sharing.board` for the fields."""
        record = self.engine.record
        record["metrics"][: len(metrics)] = metrics
        if "iteration" in fields or "doing" in fields:
            record["done"] = record["steps"] = 0
        if "iteration" in fields:
            record["doing"] = b""
        for field, value in fields.items():
            record[field] = value
        record["seconds"] = list(self.seconds().values())
        record["total"] = time.perf_counter() - self.started

    def show_launch_shape(self, rows: object, n_clusters: int) -> str | None:
        """Write the launch shape for these sizes on the board, and return it; None for sparse rows."""
        if not isinstance(rows, Rows | StreamedRows):
            return None
        tuner = self.engine.tuner
        shape = tuner.describe(rows.dtype, rows.n_features, n_clusters)
        told = (shape, "" if tuner.mode == "0" else tuner.summary)
        self.engine.record["launch_shape"] = ", ".join(filter(None, told)).encode()
        return shape

    def read_in_order(self, source: Source, fill: Fill) -> ArrivedRows:
        """Read this rank's rows to the device with a function that gives them from the first to the last."""
        rows, finite = Rows.read(self.device, source.shape_of(self.comm.rank), source.dtype, fill, threads=1)
        return ArrivedRows(
            source.shape, source.dtype, source.bounds, rows, finite,
            nan=source.nan, finite=source.finite, keep=source.keep,
        )  # fmt: skip

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
        if not task:
            self.engine.record["since"] = time.time()
        self.show(task=task, doing=b"", device_bytes=self.engine.bytes_of_handles)
