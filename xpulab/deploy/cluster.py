"""`XPUCluster`: the engines of one user, from the plan to the last process gone."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import pickle
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import xpulab
from xpulab.data import Outgoing, ShardedArray, bounds_of, looked_at_later, mapped, row_named
from xpulab.deploy.answers import Answer, raise_errors
from xpulab.deploy.exchange import Exchange
from xpulab.deploy.limits import LEAST, Demand, require_room
from xpulab.deploy.pickling import packed
from xpulab.deploy.plan import Plan, plan
from xpulab.deploy.probe import DeviceInfo, Probe, probe
from xpulab.deploy.processes import Launched, Processes
from xpulab.deploy.record import choose
from xpulab.deploy.signals import postponed, uninterrupted
from xpulab.deploy.silence import Silence, most_silence
from xpulab.deploy.status import ClusterStatus, engine_statuses
from xpulab.deploy.waiting import told_of_waiting
from xpulab.exceptions import (
    ClusterError,
    EngineLostError,
    HandleError,
    NoClusterError,
    OversubscribedWarning,
    UsageError,
)
from xpulab.rendering import Displayed
from xpulab.report import progress
from xpulab.sharing import host_memory
from xpulab.sharing.board import Board
from xpulab.sharing.memory import BlockPool, SharedBlock

__all__ = ["XPUCluster", "current_cluster", "find_current"]

_RECOVERIES = 3  # restarts within one call: an engine that dies of the task itself would be lost for ever
_SILENT = 5.0  # seconds without a heartbeat after which the status says so

_clusters: list[XPUCluster] = []  # running ones, the latest last


def find_current() -> XPUCluster | None:
    """The cluster started last that still runs, or None. A forked process has none: the sockets are its parent's."""
    mine = [cluster for cluster in _clusters if cluster._owner == os.getpid()]
    return mine[-1] if mine else None


def current_cluster() -> XPUCluster:
    """The active cluster: the one started last that still runs.

    Raises
    ------
    NoClusterError
        If there is none.
    """
    cluster = find_current()
    if cluster is None and multiprocessing.parent_process() is not None:
        raise NoClusterError(
            "no cluster is running in this worker process: only the process that started a cluster can use it; "
            "type n_jobs=1 (all engines work on each fit anyway), or joblib.parallel_backend('threading')"
        )
    if cluster is None:
        raise NoClusterError(
            "no cluster is running; type: %xpu_cluster start (in a notebook), or xpulab.XPUCluster().start()"
        )
    return cluster


class XPUCluster(Displayed):
    """One MPI engine per device, or as many as asked for, behind one object.

    Parameters
    ----------
    n : int, optional
        Number of engines. By default one per GPU, or per tile where a GPU has several; one without any GPU.
    devices : str, optional
        ``"gpu"``, ``"cpu"`` or a SYCL selector such as ``"level_zero:0"``; all devices by default.
    strict : bool
        Raise instead of warn where engines would share cores or a device.
    timeout : float
        Seconds that the engines have to start.
    recover : bool
        Whether a call of an estimator outlives the loss of engines: the cluster starts new ones, sends the rows again,
        and a fit goes on from its last centres. Rows that were on the engines are gone in any case, and a call that
        needs them raises.
    silence : float
        Seconds after which an engine that gives no sign counts as lost. Several that are silent all together are given
        ten times as long: a laptop sleeps.
    detach : bool
        Whether the cluster outlives this process, until someone stops it; see `attach`.
    name : str, optional
        By which others find it; one is made up by default.

    Attributes
    ----------
    last_report : FitReport or None
        Of the last call of an estimator.
    last_output : CellOutput or None
        Of the last cell that ran on the engines.
    facts : list of dict
        What each engine said of itself when it started, by rank.
    unheard : dict of int to float
        Ranks that have given no sign for 5 s or longer, and the seconds, as far as a call that runs has seen.
    attached : bool
        Whether another process started it.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2) as cluster:  # doctest: +SKIP
    ...     KMeans(n_clusters=3).fit(X)
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        devices: str | None = None,
        strict: bool = False,
        timeout: float = 120.0,
        recover: bool = True,
        silence: float = 30.0,
        detach: bool = False,
        name: str | None = None,
    ) -> None:
        self.n = n
        self.device_filter = devices
        self.strict = strict
        self.timeout = timeout
        self.recover = recover
        self.silence = silence
        self.detached = detach
        self.name = name
        self.attached = False
        self.last_report: Any = None
        self.last_output: Any = None
        self.facts: list[dict[str, Any]] = []
        self.unheard: dict[int, float] = {}
        self._processes: Processes | None = None
        self._plan: Plan | None = None
        self._board: Board | None = None
        self._seconds_to_start: float | None = None
        self._last_words = ""
        self.blocks = BlockPool()
        self._handles: set[str] = set()
        self._released: queue.SimpleQueue[tuple[str, Sequence[SharedBlock]] | None] = queue.SimpleQueue()
        self._sending = threading.RLock()
        self._owner = os.getpid()

    # -- life ---------------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Which engine would go on which device; starts nothing."""
        return self._plan if self._plan and self.running else self._make_plan(probe())

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices of this host, as the oneAPI runtime sees them."""
        return probe().devices

    def start(self) -> XPUCluster:
        """Start the engines and wait until each answers. Harmless when it runs already.

        Raises
        ------
        UsageError
            If a setting is not what `XPUCluster` describes.
        PlanError, DeviceNotFoundError
            If the engines cannot be placed.
        ClusterStartError
            If they do not come up; with their own words, and nothing left running.
        """
        if self.running:
            return self
        self._require_settings()
        begun = time.monotonic()
        with progress.open(progress.TaskReport("xpulab: start the cluster")) as handle:
            say = _teller(handle)
            say("starting the controller, and looking for devices")
            self._processes = processes = Launched(self._owner, self.name, silence=self.silence)
            try:
                processes.start_controller()  # it takes as long as the drivers to answer
                self._plan = self._make_plan(probe())
                n = len(self._plan.ranks)
                handle.report.title, handle.report.total = f"xpulab: start {n} engine{'s' * (n > 1)}", n
                for warning in self._plan.warnings:
                    _warn(warning)
                processes.start(self._plan, self.timeout, say)
                self.facts = [answer["result"] for answer in self._exchange("describe", {}, None)]
                self._board = Board.open(self.facts[0]["board"])
                processes.watch([fact["pid"] for fact in self.facts])
                self._require_alive(processes)
                self._seconds_to_start = time.monotonic() - begun
                self._publish(processes)
            except BaseException:
                self.stop()
                raise
            handle.report.done = n
        self.attached = False
        self._enter()
        return self

    def _publish(self, processes: Launched) -> None:
        """Have other processes of this user find the cluster."""
        assert self._plan is not None
        settings = {
            "n": self.n,
            "devices": self.device_filter,
            "strict": self.strict,
            "recover": self.recover,
            "silence": self.silence,
        }
        processes.publish(
            detached=self.detached,
            settings=settings,
            plan=self._plan.to_dict(),
            facts=self.facts,
            seconds_to_start=self._seconds_to_start,
        )

    def _enter(self) -> None:
        """It runs: from now on it is the active one."""
        _clusters.append(self)
        threading.Thread(target=self._release_handles, name="xpulab-handles", daemon=True).start()

    @classmethod
    def attach(cls, name: str | None = None, *, timeout: float = 30.0) -> XPUCluster:
        """Use a cluster that another process of this user started: one that was detached, or whose process runs.

        It does everything that the process could that started it. `stop` ends it for all. A call that loses engines
        raises, as with ``recover=False``. A cluster that was not detached ends with the process that started it.

        Parameters
        ----------
        name : str, optional
            Not needed where there is one only.
        timeout : float
            Seconds that it has to answer.

        Returns
        -------
        XPUCluster

        Raises
        ------
        NoClusterError
            If there is none, or none of this name.
        ClusterError
            If there are several and no name was given, if it does not answer, or if another version of this package
            started it.
        """
        record = choose(name)
        for cluster in _clusters:
            if cluster._processes is not None and cluster._processes.record.folder == record.folder:
                return cluster
        if record.version != xpulab.__version__:
            raise ClusterError(
                f"the cluster {record.name} was started by xpulab {record.version}, and this is {xpulab.__version__}; "
                "attach from an environment like that one's"
            )
        cluster = cls(**record.settings, detach=record.detached, name=record.name)
        cluster._seconds_to_start, cluster.attached = record.seconds_to_start, True
        cluster._plan, cluster.facts = Plan.from_dict(record.plan), record.facts
        cluster._processes = Processes(record)
        try:
            cluster._processes.attach(timeout)
            cluster._board = Board.open(cluster.facts[0]["board"])
        except BaseException:
            cluster._processes.leave()
            raise
        cluster._enter()
        return cluster

    def detach(self) -> None:
        """Let go of the cluster, which runs on until someone stops it; see `attach`. Harmless when it does not run.

        One that another process started, and did not detach, ends with that process all the same.
        """
        processes = self._processes
        if processes is None:
            return
        if not self.attached:
            processes.record.write(detached=True)
        self._processes = None
        self._exit()
        processes.leave()

    def stop(self) -> None:
        """End every process of the cluster, for all who are attached. Harmless when it does not run."""
        self._close(on_purpose=True)

    def _close(self, on_purpose: bool) -> None:
        processes, self._processes = self._processes, None
        self._exit()
        if processes is not None:
            with uninterrupted():
                self._last_words = processes.logs()
                processes.stop(on_purpose)

    def _exit(self) -> None:
        """It does not run any more, or is no affair of ours."""
        if self in _clusters:
            _clusters.remove(self)
            self._released.put(None)
        if self._board is not None:
            self._board.close()
            self._board = None
        self._handles.clear()
        self.blocks.clear()

    def end(self) -> None:
        """`stop`, or `detach` where the cluster is to outlive this process, or belongs to another."""
        self.detach() if self.detached or self.attached else self.stop()

    def restart(self) -> XPUCluster:
        """Stop, then start with the same settings. Rows held on the engines are gone."""
        self.stop()
        return self.start()

    def __enter__(self) -> XPUCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def running(self) -> bool:
        """Whether the engines are there."""
        return self._processes is not None

    @property
    def size(self) -> int:
        """Number of engines."""
        return len(self.facts) if self.running else 0

    @property
    def recovers(self) -> bool:
        """Whether lost engines cost a call a restart, and not its result: only who started them can start others."""
        return self.recover and not self.attached

    def status(self) -> ClusterStatus:
        """Engines, devices, memory and health, now."""
        if not self.running or self._board is None or self._plan is None or self._processes is None:
            return ClusterStatus("stopped", 0)
        if self._processes.ended() and self._processes.record.stopped:
            return ClusterStatus("stopped", 0)
        state = "lost" if self._processes.ended() else "running"
        engines = engine_statuses(self.facts, self._board.ranks, _SILENT)
        files = tuple(dict.fromkeys(fact["tiles"] for fact in self.facts if fact["tiles"]))
        return ClusterStatus(
            state,
            len(engines),
            self._seconds_to_start,
            engines,
            self._plan.warnings,
            files,
            id=self.name or "",
            lives=self._lives(),
        )

    def _lives(self) -> str:
        assert self._processes is not None
        return "detached" if self.detached else f"ends with process {self._processes.record.owner[0]}" * self.attached

    def logs(self, lines: int = 40) -> str:
        """The last words of the controller and the engines; those of the last run after `stop`."""
        return self._processes.logs(lines) if self._processes else self._last_words

    def __repr__(self) -> str:
        return str(self.status())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def scatter(self, X: Any, *, counts: list[int] | None = None, name: str | None = None) -> ShardedArray:
        """Send rows to the engines, to stay there.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples,)
            float32 and float64 keep their dtype, other numbers become float64. No NaN, no infinity. A memory-mapped
            one (``np.load(path, mmap_mode="r")``) is read by the engines themselves.
        counts : list of int, optional
            Rows of each rank, which add up to n_samples; as even as possible by default.
        name : str, optional
            By which others find the rows, see `handles`. They then stay, also when the handle dies, until the cluster
            stops, `release` is called, or others of this name are sent.

        Returns
        -------
        ShardedArray
        """
        from sklearn.utils import check_array

        where = mapped(X)
        columns = getattr(X, "columns", None)
        flat = np.ndim(X) == 1  # targets: one number a row

        def checked(ensure_all_finite: bool = True) -> Any:
            with row_named(X):
                kinds = [np.float64, np.float32]
                return check_array(
                    X, dtype=kinds, input_name="X", ensure_all_finite=ensure_all_finite, ensure_2d=not flat
                )

        rows = X if where else checked(not looked_at_later(X))
        bounds = bounds_of(len(rows), self._require_running().size, counts)
        n_columns = 1 if flat else rows.shape[1]
        what = f"X of {rows.shape[0]:,} × {n_columns:,} {rows.dtype}"
        row_bytes = n_columns * rows.dtype.itemsize
        self.require_room(Demand(what, np.diff(bounds).tolist(), row_bytes, sent=where is None))
        array = ShardedArray(self, rows.shape, rows.dtype, bounds, columns, name=name)
        blocks: list[SharedBlock] = []
        # Before the rows are there: an interrupted transfer frees them too.
        keeper = self.release_with(array, array.id, blocks)
        with Outgoing(self.blocks) as outgoing:

            def payload(lost: EngineLostError | None = None) -> dict[str, Any]:
                outgoing.drop()
                whole = rows.reshape(len(rows), -1)
                source = {**where, "bounds": bounds} if where else outgoing.send_rows(whole, bounds, checked)
                return {"source": source, "handle": array.id, "about": array.about()}

            answer = self.call("scatter", payload(), again=payload)
            if any(result["shared"] for result in answer.results):
                blocks += outgoing.keep()  # the rows are there, for as long as the handle lives
        self._handles.add(array.id)
        if name is not None:
            keeper.detach()
        return array

    def made_handle(self, shape: tuple[int, ...], dtype: Any, bounds: list[int], columns: Any = None) -> ShardedArray:
        """A handle for rows that a task is about to make of others on the engines; they are freed when it dies."""
        array = ShardedArray(self, shape, dtype, bounds, columns)
        self.release_with(array, array.id)
        self._handles.add(array.id)
        return array

    def handles(self) -> dict[str, ShardedArray]:
        """The rows that are on the engines, whoever sent them, by name; those without one by a name made up.

        What is returned here frees nothing when it dies: rows with a name stay until the cluster stops or `release` is
        called; others go with the `ShardedArray` that `scatter` returned, or stay where its process ended before.
        """
        found = {}
        for about in self.call("handles", {}).results[0]["handles"]:
            array = ShardedArray(
                self, tuple(about["shape"]), about["dtype"], about["bounds"], about["columns"], name=about["name"]
            )
            array.id = about["id"]
            self._handles.add(array.id)
            found[array.name or array.id] = array
        return found

    def release(self, array: ShardedArray) -> None:
        """Free rows on the engines, for everyone.

        Parameters
        ----------
        array : ShardedArray
            As `scatter` or `handles` returned it.
        """
        self.call("release", {"handles": [array.id]})
        self._handles.discard(array.id)

    def load_npy(
        self, path: str | os.PathLike[str], *, counts: list[int] | None = None, name: str | None = None
    ) -> ShardedArray:
        """Rows from a file of `numpy.save`, which each engine reads by itself: nothing passes through this process.

        Raises
        ------
        ValueError
            If the file does not hold rows of float32 or float64, or if one holds NaN or infinity.
        """
        try:
            X = np.load(path, mmap_mode="r", allow_pickle=False)
        except EOFError as error:
            raise ValueError(f"{path} is empty; expected a file of numpy.save: {error}") from error
        if mapped(X) is None:
            raise ValueError(
                f"{path} holds an array of shape {X.shape} and dtype {X.dtype}; expected rows (2 dimensions, not "
                "empty) of float32 or float64: convert it with numpy.save(path, array.astype('float32'))"
            )
        return self.scatter(X, counts=counts, name=name)

    def release_with(self, owner: Any, handle: str, blocks: Sequence[SharedBlock] = ()) -> weakref.finalize[Any, Any]:
        """Free what the engines keep under this name, and the blocks that it lies in, when `owner` dies here."""
        keeper = weakref.finalize(owner, self._released.put, (handle, blocks))
        keeper.atexit = False  # with the process the cluster ends; or it was detached, and others want the rows
        return keeper

    def require_handle(self, array: ShardedArray) -> None:
        """Raise HandleError unless the array's rows are on the engines."""
        if array.id not in self._handles:
            raise HandleError(
                "the rows of this ShardedArray went with the engines, which were stopped or restarted since; "
                "type: cluster.scatter(X) again"
            )

    def require_room(self, rows: Demand) -> None:
        """Raise NotEnoughMemoryError unless the rows and what a fit of them needs fit the host and the devices."""
        if self._board is None or rows.nbytes < LEAST:
            return
        free = host_memory.available(swap=True) + self.blocks.nbytes
        require_room(rows, self.facts, self._board.ranks["device_bytes"].tolist(), free)

    # -- work ---------------------------------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``function(task, *args, **kwargs)`` on every engine.

        Parameters
        ----------
        function : callable
            Its first argument has ``comm`` (rank, size, collectives) and ``device`` (its ``queue`` and name).

        Returns
        -------
        list
            What it returned, by rank.

        Raises
        ------
        TypeError
            If it is no function, or cannot be sent to the engines, or its arguments cannot.
        EngineError
            If it raised, or what it returned cannot be brought back; with the tracebacks of the ranks that did.
        """
        if not callable(function):
            raise TypeError(
                f"run: {function!r} was given; expected a function of the task, run(lambda task: task.comm.rank)"
            )
        payload = {"call": packed(function, args, kwargs)}
        return [pickle.loads(result["value"]) for result in self.call("run", payload).results]

    def call(
        self,
        name: str,
        payload: dict[str, Any],
        watch: Callable[[Any, int], None] | None = None,
        again: Callable[[EngineLostError], dict[str, Any]] | None = None,
    ) -> Answer:
        """Run a task on all engines, as one; what estimators stand on.

        Parameters
        ----------
        name, payload : str, dict
            The task and its arguments.
        watch : callable, optional
            Called with the board's records and the number of the task while it waits and runs. Without it the user is
            told for whom it waits.
        again : callable, optional
            For tasks that can be sent again after engines were lost and others started (see `recover`): gets the
            error, and returns the payload.

        Raises
        ------
        NoClusterError, EngineError, EngineLostError
        KeyboardInterrupt
            With the answers so far as its argument, all ranks having stopped at the same point.
        """
        if watch is None:
            with told_of_waiting(f"xpulab: {name}") as watch:
                return self.call(name, payload, watch, again)
        for attempt in range(_RECOVERIES + 1):
            try:
                replies = self.replies(name, payload, watch)
                break
            except EngineLostError as lost:
                if again is None or not self.recovers or attempt == _RECOVERIES:
                    raise
                with self._sending:  # of several threads that lost them the first starts new ones
                    self.start()
                payload = again(lost)
        raise_errors(replies, users=name == "run")
        answer = Answer(replies)
        if answer.interrupted:
            raise KeyboardInterrupt(answer)
        return answer

    def replies(
        self, name: str, payload: dict[str, Any], watch: Callable[[Any, int], None] | None = None
    ) -> list[dict[str, Any]]:
        """Run a task on all engines, as one, and hand back what each rank said, errors and interrupts too.

        Parameters are those of `call`, and so is what it raises of a cluster that has none or loses its engines.
        """
        return self._require_running()._exchange(name, payload, watch)

    def _exchange(
        self, name: str, payload: dict[str, Any], watch: Callable[[Any, int], None] | None
    ) -> list[dict[str, Any]]:
        with self._sending, postponed() as pressed:
            processes = self._processes
            if processes is None:
                raise _not_running()
            exchange = Exchange(processes.client, self._board, name, payload)
        silence = Silence(self.silence)

        def require_well() -> None:
            self._require_alive(processes)
            self._require_heard(processes, silence)

        return exchange.wait(require_well, watch, pressed)

    def _require_running(self) -> XPUCluster:
        processes = self._processes
        if processes is None:
            raise _not_running()
        self._require_alive(processes)
        return self

    def _require_alive(self, processes: Processes) -> None:
        """Raise unless these are the processes of the cluster still, and all there."""
        if self._processes is not processes:
            if processes.lost:  # another thread has found out
                raise EngineLostError(f"{processes.lost}.\ntype: %xpu_cluster start", processes.lost)
            raise NoClusterError("the cluster was stopped while a task was running; type: %xpu_cluster start")
        ended = processes.ended()
        if not ended:
            return
        stopped = processes.record.stopped
        if self._processes is not processes:  # it was another thread, just now
            self._require_alive(processes)
        if stopped:
            self.stop()
            raise NoClusterError(
                "another process has stopped the cluster, or started it anew; type: %xpu_cluster start, or attach"
            )
        gone = [fact for fact in self.facts if fact["pid"] in processes.first_gone]
        if gone:
            self._give_up(processes, ", ".join(f"{_who(fact)} ended{processes.cause(fact['pid'])}" for fact in gone))
        self._give_up(processes, f"the {ended} ended, and the engines with it")

    def _require_heard(self, processes: Processes, silence: Silence) -> None:
        """An engine that stands still (stopped, or stuck in a driver) is as good as lost."""
        ranks = self._board.ranks if self._board is not None else None
        stuck = silence.stuck(ranks["heartbeat"]) if ranks is not None else []
        self.unheard = silence.unheard(_SILENT)
        if stuck:
            where = ", ".join(_who(self.facts[rank]) for rank in stuck)
            limit = most_silence(self.silence, len(stuck), self.size)
            self._give_up(processes, f"nothing was heard of {where} for {limit:g} s, and all engines were ended")

    def _give_up(self, processes: Processes, reason: str) -> None:
        """Stop what is left, and raise EngineLostError."""
        words = ""
        with self._sending:
            if self._processes is processes:
                words, processes.lost = processes.logs(15), reason
                # Who started it has to see that engines were lost, and may start others.
                self._close(on_purpose=not self.attached)
            reason = processes.lost or reason
        raise EngineLostError(f"{reason}.\n{words}\ntype: %xpu_cluster start", reason)

    def _require_settings(self) -> None:
        for name in ("timeout", "silence"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise UsageError(f"XPUCluster: {name}={value!r} was given; expected a number of seconds above 0")
        for name in ("strict", "recover"):
            if not isinstance(value := getattr(self, name), bool):
                raise UsageError(f"XPUCluster: {name}={value!r} was given; expected True or False")
        if not isinstance(self.device_filter, str | None):
            raise UsageError(
                f"XPUCluster: devices={self.device_filter!r} was given; expected gpu, cpu, or a selector such as "
                "level_zero:0"
            )

    def _make_plan(self, found: Probe) -> Plan:
        return plan(found, n=self.n, devices=self.device_filter, strict=self.strict)

    def _release_handles(self) -> None:
        """Free on the engines the rows whose handles have died here; in a thread, as handles die at any moment."""
        while True:
            released = self._released.get()
            if released is None:
                return
            handle, blocks = released
            self._handles.discard(handle)
            with contextlib.suppress(Exception):  # the cluster may be going
                self._exchange("release", {"handles": [handle]}, None)
                for block in blocks:
                    self.blocks.give(block)


def _not_running() -> NoClusterError:
    return NoClusterError("this cluster is not running; type: cluster.start(), or %xpu_cluster start")


def _who(fact: dict[str, Any]) -> str:
    return f"rank {fact['rank']} (pid {fact['pid']} on {fact['host']}, {fact['device']['name']})"


def _teller(handle: progress.ProgressHandle[progress.TaskReport]) -> Callable[[str], None]:
    def say(message: str) -> None:
        handle.report.message = message
        handle.update()

    return say


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, OversubscribedWarning, stacklevel=4)


@atexit.register
def _stop_all() -> None:
    for cluster in _clusters.copy():
        if cluster._owner == os.getpid():  # a forked child must not stop its parent's
            cluster.end()
