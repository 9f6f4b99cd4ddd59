"""The ranks of this program in place of a cluster: they run the tasks that the proxies send, each on its own engine.

All ranks run the same code of a proxy, and call `exchange` in the same order. A rank that raises an exception leaves
the call. It says so in its next exchange, and on the board, so that no other rank waits for it in a collective.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, TypedDict, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

import xpulab.engine.algorithms
import xpulab.libraries.loaded  # noqa: F401 -- before all modules that import dpctl
from xpulab.calls import interruptible
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.current import in_place_of_cluster
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.answers import Answer, answer_of, raise_errors
from xpulab.deploy.tasks.limits import Demand
from xpulab.engine.comm import PeerFailed
from xpulab.engine.engine import Engine, this_engine
from xpulab.engine.users_mpi.interruptible import WORLD
from xpulab.engine.waiting import hear
from xpulab.exceptions import ClusterError, EngineLostError, NeverAnsweredError, XpulabWarning, error_fields
from xpulab.report.fit import FitReport
from xpulab.report.rendering import counted
from xpulab.report.task import Display
from xpulab.sharing.answers import Reply
from xpulab.sharing.descriptions import EngineDescription
from xpulab.sharing.memory import BlockPool, SharedBlock
from xpulab.sharing.sources import Target

__all__ = ["ALONE", "ProgramRanks", "RanksOfOne", "ranks", "require_same"]

T = TypeVar("T")

_FIRST = 1 << 60  # number of the first task; the numbers from `new_task_number` are smaller
#: Number of the first task of a rank alone.
ALONE = 1 << 61
_KINDS = (ValueError, TypeError, MemoryError)


class _Left(BaseException):
    """A rank has raised an exception, so that all ranks leave the call. Its argument is the list of their messages."""


class _Message(TypedDict):
    """What a rank sends to all others in an exchange: the thing that it passes, or its exception."""

    status: str
    call: str
    thing: Any
    engine: dict[str, object]
    number: int
    error: dict[str, str] | None


class ProgramRanks:
    """The ranks of a script, or of a ``%%xpu`` cell; for estimators, `xpulab.deploy.ranks.Ranks`.

    Parameters
    ----------
    engine : Engine
        The engine of this process.

    Attributes
    ----------
    engine : Engine
    busy : bool
        Whether this rank is in a call.
    facts : list of EngineDescription
        Descriptions of all ranks.
    unheard : dict of int to float
    silence : float
    recovers : bool
    display : {"none"}
    warnings : tuple of str
    last_report : FitReport or None
    interrupted : Any
        These have the same meaning as in `XPUCluster`.
    """

    unheard: ClassVar[dict[int, float]] = {}
    silence: ClassVar[float] = float("inf")
    recovers: ClassVar[bool] = False
    display: ClassVar[Display] = "none"
    warnings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.busy = False
        self._call = ""
        self.last_report: FitReport | None = None
        self.interrupted: Any = None
        self._blocks = BlockPool()
        self._number = _FIRST
        self.facts: list[EngineDescription] = self._communicator().allgather(engine.describe())
        self.alone = RankAlone(self)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.engine.size

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.engine.rank

    def keep_interrupted(self, estimator: Any, said: str = "") -> None:
        """Keep an estimator whose fit was interrupted."""
        self.interrupted = estimator

    def called(self, report: FitReport) -> None:
        """Note a call of an estimator that begins."""
        self.last_report = report

    def together(self, call: str, work: Callable[[], T]) -> T:
        """Call a function on all ranks. An exception on any rank becomes an error on all, which names the ranks.

        Parameters
        ----------
        call : str
            What the user calls, for an error if the ranks called different things.
        work : callable
            A function that exchanges values with the other ranks, and computes the same result on all ranks.

        Returns
        -------
        Any
            The result of `work`.

        Raises
        ------
        Exception
            The exception itself if all ranks raised the same one, and otherwise the exception of `raise_errors`.
        """
        _require_all_ranks(self.engine)
        self.busy, self._call = True, call
        error: Exception | None = None
        try:
            with in_place_of_cluster(self):
                try:
                    result = work()
                    self._exchange_messages("done", None)  # may find that the others are in another call
                    return result
                except Exception as raised:
                    # The code of a cell has failed on another rank, or no other rank will come to exchange messages.
                    if isinstance(raised, PeerFailed | NeverAnsweredError):
                        raise
                    error = raised
                self._exchange_messages("done", None, error)
        except _Left as left:
            replies = left.args[0]
        finally:
            self.busy = False
        if error is None or not all(reply["status"] == "error" for reply in replies):
            raise_errors(replies, users=False, kinds=_KINDS)
        assert error is not None
        raise error

    def exchange(self, thing: T) -> list[T]:
        """Return what each rank has passed, in the order of the ranks. All ranks call this together."""
        return [message["thing"] for message in self._exchange_messages("thing", thing)]

    def _exchange_messages(self, status: str, thing: object, error: Exception | None = None) -> list[_Message]:
        """Return the messages of all ranks, in the order of the ranks.

        Raises
        ------
        _Left
            If a rank has raised an exception.
        ValueError
            If the ranks are in different calls.
        """
        fact = self.facts[self.rank]
        message: _Message = {
            "status": status,
            "call": self._call,
            "thing": thing,
            "engine": {"rank": fact.rank, "host": fact.host, "device": fact.device.name},
            "number": self._number,
            "error": None,
        }
        if error is not None:
            message["status"], message["error"] = "error", error_fields(error)
            self.engine.record["failed"] = self._number + 1  # ranks that are in the next task leave it
        messages = self._communicator().allgather(message)
        left = any(message["status"] == "error" for message in messages)
        self._number = max(message["number"] for message in messages) + left  # no task gets a number that has failed
        if left or any(_failed(message["thing"]) for message in messages if message["status"] == "reply"):
            self.engine.renew_communicators()
        if left:
            raise _Left(messages)
        require_same("methods", [message["call"] for message in messages])
        return messages

    def _communicator(self) -> Any:
        return self.engine.communicators.of(range(self.engine.size))

    def call(
        self,
        name: str,
        payload: dict[str, Any],
        watch: Callable[[Any, int], None] | None = None,
        again: Callable[[EngineLostError], dict[str, Any]] | None = None,
    ) -> Answer:
        """Run a task on this rank, and exchange the answers. Nobody watches, and no rank can be lost."""
        with interruptible(name):
            self._number += 1
            return answer_of(name, self._replies(name, payload))

    def _replies(self, name: str, payload: dict[str, object]) -> Sequence[Reply]:
        """Run a task on all ranks, and return their replies."""
        number = self._number
        try:
            with self._cancelling():
                reply = self.engine.run(name, number, payload)
            return [message["thing"] for message in self._exchange_messages("reply", reply)]
        finally:
            self.engine.board.forget(number)  # all ranks have left the task

    @contextlib.contextmanager
    def _cancelling(self) -> Iterator[None]:
        """Open a context in which Ctrl-C asks the task to end, on all ranks at the same point."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(*_: object) -> None:
            hear()
            self.engine.board.cancel(self._number)

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engine of this rank."""
        return Outgoing(self._blocks)

    def made_handle(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        bounds: list[int],
        columns: Sequence[object] | None = None,
        blocks: Sequence[SharedBlock] = (),
        nan: bool = False,
        stored: Sequence[int] | None = None,
    ) -> ShardedArray:
        """Return a handle for rows that a task is going to compute. They are freed when it is deleted."""
        array = ShardedArray(self, shape, dtype, bounds, columns, nan=nan)
        array.discard = self.release_with(array, array.id, blocks)
        return array

    def require_handle(self, array: ShardedArray) -> None:
        """Do nothing: what a handle of this program has stands here as long as the handle."""

    def require_room(self, rows: Demand) -> None:
        """Do nothing: each rank passes rows that it has."""

    def that_fit(self, rows: Demand) -> None:
        """Return None: each rank has room for the rows that it passes."""

    def receive(
        self,
        outgoing: Outgoing,
        bounds: list[int] | None,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        on_disk: bool = False,
    ) -> tuple[Target, np.ndarray[Any, Any]]:
        """Allocate memory for this rank's part of a result with one entry per row of a handle."""
        assert bounds is not None
        mine = range(*bounds[self.rank : self.rank + 2])
        target, result = outgoing.receive((len(mine), *shape[1:]), dtype, on_disk)
        return replace(target, first=mine.start), result

    def entries(self, X: ShardedArray) -> range:
        """Return the indices of the rows of X that this rank has."""
        first, last = X.bounds[self.rank : self.rank + 2]
        return range(first, last)

    def release_with(self, owner: object, handle: str, blocks: Sequence[SharedBlock] = ()) -> Any:
        """Free the rows that this rank's engine keeps as `handle` when this process deletes `owner`."""
        import weakref

        keeper = weakref.finalize(owner, self.engine.handles.pop, handle, None)
        keeper.atexit = False
        return keeper

    def bounds_of(self, n: int) -> list[int]:
        """Return the index of each rank's first row among all rows, if this rank has `n` rows."""
        return list(itertools.accumulate(self.exchange(n), initial=0))


def _failed(reply: Reply) -> bool:
    return reply["status"] in ("error", "peer failed")


def require_same(what: str, every: Sequence[str]) -> None:
    """Raise the same error on all ranks if they passed different things. The message names the things and the ranks."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(every):
        groups.setdefault(value, []).append(rank)
    if len(groups) > 1:
        shown = "; ".join(f"{value} (rank {core_ranges(of_rank)})" for value, of_rank in groups.items())
        raise ValueError(
            f"the ranks passed different {what}: {shown}; expected the same on all ranks, each with its own rows"
        )


class RanksOfOne(ProgramRanks):
    """Ranks for the code of one process, which passes whole arrays, and gets whole results."""

    rank = 0

    def receive(
        self,
        outgoing: Outgoing,
        bounds: list[int] | None,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        on_disk: bool = False,
    ) -> tuple[Target, np.ndarray[Any, Any]]:
        """Allocate memory for a whole result: of a handle, or of rows of this process."""
        return outgoing.receive(shape, dtype, on_disk)

    def entries(self, X: Any) -> range:
        """Return the indices of all rows."""
        return range(X.shape[0])


class RankAlone(RanksOfOne):
    """This rank in place of all ranks, for a call that concerns its own rows only: the others need not make it.

    Parameters
    ----------
    ranks : ProgramRanks
    """

    size = 1

    def __init__(self, ranks: ProgramRanks) -> None:
        self.engine, self._blocks = ranks.engine, ranks._blocks
        self.facts = [ranks.facts[ranks.rank]]
        self.busy, self.last_report, self.interrupted = False, None, None
        self.alone = self
        self._number = ALONE + (ranks.rank << 40)  # no other rank has a task with such a number

    def together(self, call: str, work: Callable[[], T]) -> T:
        """Call a function on this rank."""
        self.busy = True
        try:
            with in_place_of_cluster(self), self.engine.among([self.engine.rank]):
                return work()
        finally:
            self.busy = False

    def outgoing(self) -> Outgoing:
        """Return a context in which arrays are sent to the engine of this rank, which is in this process."""
        return Outgoing(self._blocks, readable=lambda: True)

    def _exchange_messages(self, status: str, thing: object, error: Exception | None = None) -> list[_Message]:
        self.engine.renew_communicators()  # none are replaced, and the next task of all ranks replaces none
        return [{"status": status, "call": "", "thing": thing, "engine": {}, "number": self._number, "error": None}]


_ranks: list[ProgramRanks] = []


def ranks() -> ProgramRanks:
    """Return the ranks of this program. The first call is made by all ranks together.

    In a call of this rank alone, it is this rank.

    Raises
    ------
    ClusterError
        If the ranks are on several hosts, or if this is a cell that runs on some of them.
    """
    if not _ranks:
        engine = this_engine() or _started()
        _require_all_ranks(engine)
        _ranks.append(ProgramRanks(engine))
    alone = _ranks[0].alone
    return alone if alone.busy else _ranks[0]


def _require_all_ranks(engine: Engine) -> None:
    """Raise `ClusterError` in a cell that runs on some of the ranks: these would wait for the others for ever."""
    task = engine.task
    if task is not None and len(task.ranks) != engine.size:
        raise ClusterError(
            f"this cell runs on {len(task.ranks)} of {engine.size} ranks, and all of them are needed for xpulab.spmd; "
            "run it without --ranks"
        )


def _started() -> Engine:
    """Return an engine for a script."""
    hosts = sorted(set(WORLD.allgather(platform.node())))
    if len(hosts) > 1:
        raise ClusterError(
            f"the ranks of this script are on {len(hosts)} hosts ({', '.join(hosts)}), and xpulab.spmd works on one; "
            "start all ranks on one host: xpulab run -n 4 script.py"
        )
    _warn_if_alone()
    if WORLD.size > 1:
        sys.excepthook = _ending_all(sys.excepthook)
    before = signal.getsignal(signal.SIGINT)
    engine = Engine({})
    signal.signal(signal.SIGINT, before)
    return engine


#: Variables with the number of ranks that were started: mpiexec's, and srun's, which count where mpiexec has set none.
_OF_MPIEXEC = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_OF_SRUN = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _warn_if_alone() -> None:
    """Warn if MPI has another number of ranks than were started, of which each then takes itself for rank 0."""
    every = {name: os.environ[name] for name in (*_OF_MPIEXEC, *_OF_SRUN) if os.environ.get(name, "").isdecimal()}
    started = {name: int(n) for name, n in every.items() if name in _OF_MPIEXEC} or {
        name: int(n) for name, n in every.items()
    }
    if not started or WORLD.size in started.values():
        return
    name, n = next(iter(started.items()))
    cure = "xpulab run --launcher slurm script.py, or, for ranks of one host, srun --mpi=pmi2 (Open MPI: --mpi=pmix)"
    if name in _OF_MPIEXEC:
        library = " ".join(MPI.Get_library_version().splitlines()[0].split()[:3])
        cure = f"the mpiexec of the library, which is {library}, or: xpulab run -n {n} script.py"
    warnings.warn(
        f"MPI has {counted(WORLD.size, 'rank')}, and {n} were started ({name}={n}): they do not find each other, and "
        f"each computes alone as rank 0; type: {cure}",
        XpulabWarning,
        stacklevel=2,
    )


def _ending_all(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook for uncaught exceptions that also ends the other ranks, which would wait for this one for ever."""

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        hook(kind, error, trace)
        sys.stderr.flush()
        WORLD.Abort(1)

    return end
