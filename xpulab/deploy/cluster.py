"""`XPUCluster`: the life of the engines of one user, from their start to their end."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, cast

from xpulab._version import __version__
from xpulab.advice import to_start
from xpulab.deploy.jobs.submission import Submission
from xpulab.deploy.launchers import choice as schedulers
from xpulab.deploy.launchers.scheduler import Job, JobEnded, Wanted
from xpulab.deploy.mpi.command import HERE, Ranks
from xpulab.deploy.network.addresses import Address
from xpulab.deploy.options import Attribute, StartOptions, taking
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.plan.probe import DeviceInfo, core_ranges, probe
from xpulab.deploy.planning import PlannedEngines
from xpulab.deploy.processes.processes import Launched, Processes
from xpulab.deploy.processes.record import choose
from xpulab.deploy.status import ClusterStatus, engine_statuses
from xpulab.deploy.surroundings import about_open_files, warn_of_packages
from xpulab.deploy.tasks.conversation import LOGS, not_running
from xpulab.deploy.tasks.rows import RowsOnEngines
from xpulab.deploy.watch.signals import interruptible, uninterrupted
from xpulab.deploy.watch.silence import SILENT
from xpulab.exceptions import (
    ClusterError,
    ClusterStartError,
    NoClusterError,
    OversubscribedWarning,
    XpulabError,
)
from xpulab.report import progress
from xpulab.report.rendering import Displayed, counted

__all__ = [
    "XPUCluster",
    "at_the_last_end",
    "current_cluster",
    "find_current",
    "in_place_of_cluster",
    "latest_cluster",
    "latest_start",
]

_clusters: list[XPUCluster] = []  # the running clusters; the last one is active
_latest: list[XPUCluster] = []  # the cluster that was active last, which may have ended; then one that did not start
_of_parent: list[XPUCluster] = []  # in a forked process: the clusters that its parent uses
_at_the_last_end: list[Callable[[], None]] = []

#: The ranks that take the place of a cluster; only `xpulab.spmd` sets it.
_ranks: ContextVar[RowsOnEngines | None] = ContextVar("xpulab_ranks", default=None)


_ONE_JOB = (
    "instead, type n_jobs=1 or leave n_jobs away: all engines of the cluster work on each fit anyway. For fits side by "
    "side, type: with joblib.parallel_backend('threading')"
)
_WORKER = (
    "worker processes, as n_jobs=2 starts them, have no cluster: only the process that started it can use it, and "
    f"processes that call xpulab.XPUCluster.attach().\n{_ONE_JOB}"
)


class _InWorker(BaseException):
    """Ends the work of a joblib worker process. The process that waits for the worker gets a `NoClusterError`.

    It does not derive from `Exception`, because scikit-learn takes an `Exception` for the failure of one fit, and goes
    on with the others.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return NoClusterError, self.args


def find_current() -> XPUCluster | None:
    """The active cluster, or None. A forked process has none at first: its parent owns the sockets."""
    return _clusters[-1] if _clusters else None


def _leave_to_parent() -> None:
    """In a forked process: forget the clusters of the parent, which goes on to use them."""
    _of_parent[:] = _clusters or _of_parent
    _clusters.clear()
    _latest.clear()
    _at_the_last_end.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


@contextlib.contextmanager
def in_place_of_cluster(ranks: RowsOnEngines) -> Iterator[None]:
    """A context in which `current_cluster` returns these ranks, of which this process is one, in place of a cluster."""
    token = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(token)


def current_cluster() -> XPUCluster:
    """The active cluster: the running cluster that was started or activated last.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    """
    if (ranks := _ranks.get()) is not None:
        return cast("XPUCluster", ranks)
    cluster = find_current()
    if cluster is None and multiprocessing.parent_process() is not None:
        kind = _InWorker if "loky" in type(multiprocessing.current_process()).__module__ else NoClusterError
        raise kind(f"{_of_parent[-1].forked()}\nif n_jobs=2 has started it: {_ONE_JOB}" if _of_parent else _WORKER)
    if cluster is None and _of_parent:
        raise _of_parent[-1].forked()
    if cluster is None:
        if _latest and _latest[0]._left:
            raise not_running(_latest[0]._left)
        raise NoClusterError(f"no cluster is running; type: {to_start()}")
    return cluster


def latest_cluster() -> XPUCluster:
    """The active cluster, or the one that was active last and has ended.

    Raises
    ------
    NoClusterError
        If this process has had no cluster.
    """
    return find_current() or next(filter(_has_run, _latest), None) or current_cluster()


def latest_start() -> XPUCluster:
    """The active cluster, or the one whose start was tried last: it has ended, or has not started.

    Raises
    ------
    NoClusterError
        If this process has had no cluster.
    """
    return find_current() or next(reversed(_latest), None) or current_cluster()


def _has_run(cluster: XPUCluster) -> bool:
    return cluster._seconds_to_start is not None


def at_the_last_end(call: Callable[[], None]) -> Callable[[], None]:
    """Call a function when this process no longer has a cluster: the last one has ended, or was detached.

    New engines that replace lost ones, and `XPUCluster.restart`, are no end.

    Returns
    -------
    callable
        A function that takes back the request. Repeated calls do nothing.
    """
    _at_the_last_end.append(call)

    def take_back() -> None:
        if call in _at_the_last_end:
            _at_the_last_end.remove(call)

    return take_back


def _tell_of_an_end() -> None:
    if find_current() is None:
        for call in _at_the_last_end.copy():
            call()


class XPUCluster(PlannedEngines, Displayed):
    """A cluster of MPI engines, by default one per device.

    Parameters
    ----------
    n : int, optional
        Number of engines. By default one per GPU, or per tile if a GPU has several; without any GPU, one on the CPU.
    devices : str, optional
        ``"gpu"``, ``"cpu"`` or a SYCL selector such as ``"level_zero:0"``; all devices by default.
    strict : bool, optional
        Whether to raise an error if engines would share cores or a device. By default only more than 8 engines for each
        core of a host are an error; with False, they are none.
    env : dict of str to str, optional
        Environment variables of the engines: ``{"NAME": "VALUE"}`` for all of them, ``{"1:NAME": "VALUE"}`` for rank 1
        only. A variable that is the same for all is set before the engine starts; one that is not is set after MPI has
        told the engine its rank, and before the device's driver is loaded.
    hosts : str or sequence of str, optional
        Hosts on which engines run, as ssh knows them: ``"node1,node2"``, or with numbers of engines
        ``"node1:2,node2:4"``. By default this host, or, in a job of Slurm or PBS, the nodes of the job.
    hostfile : path-like, optional
        File that names a host on each line, in place of `hosts`: ``node1``, ``node1:2`` or ``node1 slots=2``.
    ssh_config : path-like, optional
        File with ssh's configuration; by default the user's and the system's.
    launcher : {"local", "ssh", "slurm", "pbs"}, optional
        How engines start on other hosts. "local" uses this host only. "ssh" uses the hosts of `hosts` or `hostfile`.
        "slurm" and "pbs" use the nodes of the job in which this process runs, or else submit a job, which ends with the
        cluster. By default "ssh" if hosts are named, the scheduler in one of its jobs, and otherwise "local".
    nodes : int, optional
        Number of nodes of the job that is submitted; 1 by default.
    time : int or str, optional
        Time limit of this job: minutes, or one of Slurm's forms such as ``"1:30:00"``; by default that of the site.
    partition : str, optional
        Partition or queue of this job; by default that of the site.
    job_args : str, optional
        Further options for the script of this job, as a shell reads them: ``"--gres=gpu:2 --account=a"``. `plan` with
        ``show=True`` shows the whole script.
    mpi : {"intel", "openmpi", "mpich"}
        MPI that connects the engines. "intel" is Intel MPI, which pip installs with this package. The others have to be
        on PATH; the engines load their library, or the one that the variable ``MPI4PY_LIBMPI`` names.
    mpi_args : str, optional
        Further options for mpiexec, as a shell reads them; `plan` with ``show=True`` shows the whole command line.
    ports : str, optional
        TCP ports on which the controller, MPI's programs and the ranks listen, where other hosts connect to them:
        ``"50000-50100"``, for hosts with a firewall that lets these through; by default any.
    timeout : float
        Seconds after which a start that has not ended fails.
    recover : bool
        Whether a call of an estimator continues after engines are lost: the cluster starts new engines and sends the
        rows again, and a fit continues from its last centres. Rows that were only on the engines are lost in any
        case, and a call that needs them raises `EngineLostError`.
    silence : float
        Seconds without a sign of life after which an engine counts as lost. A heartbeat is a sign of life, and so is
        the use of a processor or of a GPU. If all of several engines are silent at the same time, as when a laptop
        sleeps, they get ten times as long. An engine that runs your own code (`run`, ``%%xpu``) gets ten times as long,
        too, and a message tells you after this many seconds.
    detach : bool
        Whether the cluster outlives this process, until someone stops it; see `attach`.
    display : {"full", "compact", "none"}
        How a notebook or IPython shows the start of the cluster, and calls of estimators while they run and at their
        end. "full" shows a report, or, for several calls in one cell, a table with a row for each call; "compact"
        always shows the table; "none" shows nothing. It can be changed at any time, and has no effect on ``report_``
        of an estimator. A script shows one line for each call on a terminal; if standard error is not a terminal, it
        logs the line at level INFO with the logger ``xpulab``.
    name : str, optional
        Name under which other processes find the cluster; generated by default.

    Attributes
    ----------
    last_report : FitReport or None
        Report of the last call of an estimator.
    interrupted : estimator or None
        The estimator whose fit was interrupted last, and can be resumed; see `xpulab.interrupted`.
    last_output : CellOutput or None
        Output of the last cell, or function of `run`, on the engines.
    facts : list of dict
        Description that each engine sent when it started, by rank.
    unheard : dict of int to float
        Rank -> seconds without a sign of life, for ranks that a running call has not heard for 5 s or longer.
    attached : bool
        Whether another process started the cluster.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.cluster import KMeans
    >>> with xpulab.XPUCluster(n=2) as cluster:
    ...     rows = cluster.scatter([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    ...     KMeans(n_clusters=2, random_state=0).fit(rows).labels_
    array([1, 1, 0, 0], dtype=int32)
    """

    timeout = Attribute(lambda options: options.timeout)
    detached = Attribute(lambda options: options.detach, "detach")
    name = Attribute(lambda options: options.name)

    @taking(StartOptions)
    def __init__(self, options: StartOptions) -> None:
        super().__init__(options)
        self.last_report: Any = None
        self.interrupted: Any = None
        self._plan: Plan | None = None
        self._submission: Submission | None = None
        self._seconds_to_start: float | None = None
        self._last_words = ""

    @interruptible("devices")
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices of this host that the oneAPI runtime offers."""
        return probe().devices

    @interruptible("start", "; no engine is left running")
    def start(self) -> XPUCluster:
        """Start the engines and wait until each of them answers. Does nothing if the cluster is running.

        Raises
        ------
        UsageError
            If an argument of `XPUCluster` has a wrong type or value.
        PlanError, DeviceNotFoundError
            If the engines cannot be placed.
        ClusterStartError
            If the engines do not start; the message has their last log lines, and no process is left running.
        CallInterrupted
            If the user interrupted the start; no process is left running.
        """
        self._require_not_forked()
        if self.running:
            return self
        options, self._owner = self.options, os.getpid()
        self._require_settings()
        self._words_before = ""
        begun = time.monotonic()
        report = progress.TaskReport("xpulab: start the cluster")
        report.display = options.display
        with progress.open(report) as handle:
            say = _teller(handle)
            say("starting the controller and looking for devices")
            named, job = self._where()
            asked = self._requested()
            elsewhere = bool(named or asked)
            self._processes = processes = Launched(self._owner, options.name, silence=options.silence, hosts=elsewhere)
            try:
                if asked:
                    named, job = self._submitted(processes, asked, say)
                    elsewhere = bool(named)
                chosen = self._planned(named, job) if elsewhere else None
                self._start_controller(processes, chosen, say)
                warn_of_packages()
                if n := self._started_early(elsewhere):
                    processes.start_engines(n, {}, self._command([Ranks(HERE, n)], ""))
                self._plan = chosen or self._planned([], job)
                n = len(self._plan.ranks)
                handle.report.title, handle.report.total = f"xpulab: start {counted(n, 'engine')}", n
                for warning in self._plan.warnings if not handle.told else ():
                    _warn(warning)
                self._await_engines(processes, self._plan, say)
                self._seconds_to_start = time.monotonic() - begun
                self._publish(processes)
            except BaseException as error:
                if cause := self._undo_start(error):
                    raise ClusterStartError(cause) from None
                raise
            handle.report.done = n
            handle.report.finish("finished", "\n".join([*self._plan.warnings, *self._about_others()]))
        self.attached, self._left = False, ""
        self._watch_handles()
        return self.activate()

    def _start_controller(self, processes: Launched, chosen: Plan | None, say: Callable[[str], None]) -> None:
        """Start the controller, and the relay if the plan has engines on other hosts; None is for this host alone."""
        if chosen is None:
            processes.start_controller("", self._ports)  # while the drivers are asked, which takes about as long
            return
        say("connecting to the other hosts")
        processes.start_relay(chosen, self._ssh_config, self.options.mpi)
        processes.start_controller(chosen.address, self._ports)

    def _await_engines(self, processes: Launched, chosen: Plan, say: Callable[[str], None]) -> None:
        """Start the engines of the plan that have not been started, and wait until each of them answers."""
        with processes.start(chosen, self._command_of(chosen), self.options.timeout, say):
            self.facts = [answer["result"] for answer in self._exchange("describe", {}, None)]
        self._open_board(processes)
        processes.watch([fact["pid"] for fact in self._everyone if fact["here"]])
        self._require_alive(processes)

    def _undo_start(self, error: BaseException) -> str:
        """End what a start has begun, after an error. Returns what has caused the error; empty if the error says it."""
        with uninterrupted():
            ended = str(error) if isinstance(error, JobEnded) else self._end_of_job()
            self.stop()
        _latest[:] = [*(each for each in _latest if _has_run(each) and each is not self), self]
        if ended and isinstance(error, XpulabError):
            return f"{ended}, before the engines had started\ntype: {self._to_go_on(over=True)}{LOGS}"
        said = about_open_files(error)
        return f"{said}\n{error}" if said else ""

    @property
    def known_as(self) -> str:
        """The name under which other processes find the cluster; empty if it has none and is not running."""
        return (self.options.name if self._processes is None else self._processes.record.name) or ""

    @property
    def label(self) -> str:
        """Name and size for messages about several clusters, such as ``"lab (2 engines)"``."""
        return f"{self.known_as or 'not running'} ({counted(self.size, 'engine')})"

    def _about_others(self) -> list[str]:
        """Messages about other clusters of this process that use the same cores or devices."""
        mine = _places(self.facts)
        others = [other for other in _clusters if other is not self and other.running]
        return [
            f"the cluster {other.label} of this process is still running and uses the same {_named(shared)}: together "
            "they are slower; if you do not need it, call its stop()"
            for other in others
            if (shared := mine & _places(other.facts))
        ]

    def _publish(self, processes: Launched) -> None:
        """Write the record with which other processes of this user find the cluster."""
        assert self._plan is not None
        settings = {**self.options.lasting(), "env": dict(self.options.variables)}
        del settings["detach"], settings["name"]  # the record itself has them
        processes.publish(
            detached=self.options.detach,
            settings=settings,
            plan=self._plan.to_dict(),
            facts=self.facts,
            seconds_to_start=self._seconds_to_start,
        )

    def activate(self) -> XPUCluster:
        """Make this cluster the active one, which estimators and magics use, if several are running.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        """
        if not self.running:
            raise not_running(self._left)
        self._require_not_forked()
        _latest[:] = [self]
        _clusters.append(self)
        if _clusters.count(self) > 1:  # removed afterwards, so that other threads always find an active cluster
            _clusters.remove(self)
        return self

    @classmethod
    @interruptible("attach")
    def attach(cls, name: str | None = None, *, timeout: float = 30.0) -> XPUCluster:
        """Use a running cluster that another process of this user started.

        The returned object can do everything except recover: a call that loses engines raises `EngineLostError`, as
        with ``recover=False``. `stop` ends the cluster for all processes. A cluster that was not detached ends with the
        process that started it.

        Parameters
        ----------
        name : str, optional
            Name of the cluster; not needed if only one is running.
        timeout : float
            Seconds after which a cluster that does not answer raises `ClusterError`.

        Returns
        -------
        XPUCluster

        Raises
        ------
        NoClusterError
            If no cluster is running, or none of this name.
        ClusterError
            If several clusters are running and no name was given, if the cluster does not answer, or if another version
            of this package started it.
        """
        record = choose(name)
        for cluster in _clusters:
            if cluster._processes is not None and cluster._processes.record.folder == record.folder:
                return cluster
        if record.version != __version__:
            raise ClusterError(
                f"the cluster {record.name} was started by xpulab {record.version}, and this is {__version__}; "
                "attach from an environment with the same version"
            )
        cluster = cls(**record.settings, detach=record.detached, name=record.name)
        cluster._seconds_to_start, cluster.attached = record.seconds_to_start, True
        cluster._plan, cluster.facts = Plan.from_dict(record.plan), record.facts
        cluster._processes = Processes(record)
        try:
            cluster._processes.attach(timeout)
            cluster._open_board(cluster._processes)
        except BaseException:
            cluster._processes.leave()
            raise
        cluster._watch_handles()
        return cluster.activate()

    def detach(self) -> None:
        """Leave the cluster, which runs until someone stops it; see `attach`. Does nothing if it is not running.

        A cluster that another process started, and did not detach, still ends with that process.
        """
        processes = self._processes
        if processes is None:
            return
        self._require_not_forked()
        if not self.attached:
            processes.record.write(detached=True)
        self._processes, self._left = None, processes.record.name
        self._exit()
        processes.leave()
        if self._submission is not None:
            self._submission.leave()
            self._submission = None
        _tell_of_an_end()

    def stop(self) -> None:
        """End every process of the cluster, for all attached processes. Does nothing if the cluster is not running.

        Raises
        ------
        NoClusterError
            If this process was forked from the one that uses the cluster.
        """
        self._require_not_forked()
        self.interrupted = None
        self._close(on_purpose=True)

    def _close(self, on_purpose: bool, keep_job: bool = False) -> None:
        processes, self._processes = self._processes, None
        self._exit()
        if keep_job and self._submission is not None and self._end_of_job():
            self._job_over, keep_job = True, False
        with uninterrupted():
            if processes is not None:
                self._last_words = processes.logs()
                processes.stop(on_purpose, keep_job)
            if not keep_job:
                self._abandon()

    def _abandon(self) -> None:
        if self._submission is not None:
            self._submission.end()
            self._submission = None
        _tell_of_an_end()

    def _end_of_job(self) -> str:
        """How the job that was submitted for the engines has ended; empty if it runs, or if there is none."""
        if self._submission is None or self._submission.job is None:
            return ""
        job = self._submission.job
        look = schedulers.asked(job.scheduler, job.id, self._processes.logs() if self._processes else "")
        if look.state in ("ending", "ended"):
            return self._submission.ended_soon() or f"{schedulers.label(job)} {look.words or 'has ended'}"
        return ""

    def _exit(self) -> None:
        """Forget the cluster: it has stopped, or this process no longer uses it."""
        if self in _clusters:
            _clusters.remove(self)
        if self._between is not None:
            self._between.close()
            self._between = None
        if self._board is not None:
            self._board.close()
            self._board = None
        self._forget_handles()

    def stop_call(self) -> str:
        """End the call that runs on the engines, of whichever process, such as one that has ended since.

        Returns
        -------
        str
            Name of the call; empty if none ran.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        """
        self._require_running()
        board = self._board
        if board is None or not (number := int(board.ranks["task"].max())):
            return ""
        name: str = board.ranks["name"][board.ranks["task"].argmax()].decode()
        board.cancel(number)
        while (board.ranks["task"] == number).any():
            self._require_running()
            time.sleep(0.05)
        board.forget(number)
        return name

    def end(self) -> None:
        """`detach` if the cluster is detached, or if another process started it; otherwise `stop`.

        Does nothing in a process that was forked from the one that uses the cluster, which goes on to use it.
        """
        if not self._is_forked:
            self.detach() if self.options.detach or self.attached else self.stop()

    def restart(self) -> XPUCluster:
        """Stop the cluster, and start it with the same settings. Rows and variables on the engines are lost.

        A job that was submitted for the cluster goes on.

        Raises
        ------
        PlanError, DeviceNotFoundError, ClusterStartError
            As `start`.
        """
        self._require_not_forked()
        self.interrupted = None
        self._close(on_purpose=True, keep_job=True)
        return self.start()

    def __enter__(self) -> XPUCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @interruptible("last")
    def last(self) -> Any:
        """The report of the latest call of an estimator on this cluster, also after the cluster was stopped.

        If this process made no call on a cluster that it has attached to, this is the latest call of any process, also
        of one that has ended. If that call still runs, this method shows its progress, and waits for its end. An
        interrupt ends the wait, not the call.

        Returns
        -------
        FitReport or None
            None if there was no call.
        """
        if self.last_report is not None or not self.attached:
            return self.last_report
        from xpulab.deploy.tasks.last import last_of_engines

        return last_of_engines(self)

    def resume(self) -> Any:
        """Continue the fit that was interrupted last on this cluster, which becomes the active one.

        Returns
        -------
        estimator
            The estimator, fitted as if there had been no interrupt.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        NothingToResumeError
            If no fit was interrupted after an iteration had ended.
        """
        return self.activate().stopped().resume()

    def stopped(self) -> Any:
        """The estimator whose fit was interrupted last on this cluster; see `xpulab.interrupted`.

        Raises
        ------
        NothingToResumeError
            If no fit was interrupted after an iteration had ended.
        """
        if self.interrupted is None:
            from xpulab.deploy.tasks.resuming import NothingToResumeError

            raise NothingToResumeError()
        return self.interrupted

    def status(self) -> ClusterStatus:
        """The current state of engines, devices and memory."""
        if not self.running or self._board is None or self._plan is None or self._processes is None:
            return ClusterStatus("stopped", 0)
        if self._processes.ended() and self._processes.record.stopped:
            return ClusterStatus("stopped", 0)
        state = "lost" if self._processes.ended() else "running"
        engines = engine_statuses(self.facts, self._board.ranks, SILENT)
        files = tuple(dict.fromkeys(fact["tiles"] for fact in self.facts if fact["tiles"]))
        return ClusterStatus(
            state,
            len(engines),
            self._seconds_to_start,
            engines,
            self._plan.warnings,
            files,
            id=self.options.name or "",
            lives=self._lives(),
            others=self._others(self._plan),
        )

    def _lives(self) -> str:
        assert self._processes is not None
        return (
            "detached"
            if self.options.detach
            else f"ends with process {self._processes.record.owner[0]}" * self.attached
        )

    def logs(self, lines: int = 40) -> str:
        """Last log lines of the controller and the engines, and what the ranks printed in the last cell.

        After `stop`, these are the lines of the cluster that was stopped. After engines were lost, the lines of the
        lost engines follow those of the new engines.

        Parameters
        ----------
        lines : int
            Number of lines of each log.

        Returns
        -------
        str
        """
        words = self._processes.logs(lines) if self._processes else self._last_words
        if self._words_before:
            words += f"\n=== before new engines were started\n{self._words_before}"
        return words

    def __repr__(self) -> str:
        return str(self.status())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _submitted(self, processes: Launched, asked: Wanted, say: Callable[[str], None]) -> tuple[list[Address], Job]:
        """Wait until a job runs that ends with this cluster; a job that the cluster has goes on. Returns its nodes."""
        if self._submission is not None and not self._submission.ended:
            self._submission.follow(processes.folder)
        else:
            assert self.options.launcher is not None
            self._submission = Submission(processes.folder, self.options.launcher, asked, self._owner, self._ssh_config)
        self._job_over = False
        processes.keep_job(self._submission.pid)
        job = self._submission.wait(say)
        return self._nodes_of(job), job


def _places(facts: list[dict[str, Any]]) -> set[tuple[str, int | str]]:
    """What the engines use on their hosts: the cores of CPU devices, and the selectors of all other devices."""
    return {
        (fact["host"], place)
        for fact in facts
        for place in (fact["cores"] if fact["device"]["device_type"] == "cpu" else [fact["selector"]])
    }


def _named(places: set[tuple[str, int | str]]) -> str:
    """The cores and devices as text for messages."""
    cores = sorted({place for _, place in places if isinstance(place, int)})
    devices = sorted({place for _, place in places if isinstance(place, str)})
    return " and ".join([f"cores {core_ranges(cores)}"] * bool(cores) + devices)


def _teller(handle: progress.ProgressHandle[progress.TaskReport]) -> Callable[[str], None]:
    def say(message: str) -> None:
        handle.report.message = message
        handle.update()

    return say


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, OversubscribedWarning, stacklevel=3)


@atexit.register
def _stop_all() -> None:
    for cluster in _clusters.copy():
        cluster.end()
