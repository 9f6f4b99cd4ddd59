"""`XPUCluster`: the engines of one user, and what one can do with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from xpulab._version import __version__
from xpulab.calls import interruptible, public_methods
from xpulab.deploy.life import LifeOfEngines
from xpulab.deploy.options import OPTIONS, Attribute, StartOptions, taking
from xpulab.deploy.plan.probe import DeviceInfo, probe
from xpulab.deploy.planning import Planning
from xpulab.deploy.processes.record import choose
from xpulab.deploy.registry import Registry
from xpulab.deploy.status import ClusterStatus, engine_statuses
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.ending import end_call
from xpulab.deploy.tasks.engines import Engines, Remembering, not_running
from xpulab.deploy.tasks.last import last_of_engines
from xpulab.deploy.tasks.rows import RowsOnEngines
from xpulab.deploy.tasks.variables import VariablesOnEngines
from xpulab.deploy.watch.silence import SILENT
from xpulab.exceptions import ClusterError
from xpulab.names import Named
from xpulab.report.fit import FitReport
from xpulab.report.rendering import Displayed, counted
from xpulab.sharing.descriptions import EngineDescription

__all__ = ["XPUCluster", "clusters"]

#: Forms of files that `xpulab.scan` opens, as users may name them after ``load_`` and ``read_``.
_SCANNED = ("parquet", "csv", "arrow", "feather", "hdf5", "zarr", "table")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _by(
    part: Callable[[XPUCluster], T], method: Callable[Concatenate[T, P], R]
) -> Callable[Concatenate[XPUCluster, P], R]:
    """Return a method of a cluster that is a method of one of its parts, and has its documentation."""

    @functools.wraps(method)
    def call(self: XPUCluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(part(self), *args, **kwargs)

    return call


@public_methods()
class XPUCluster(Remembering, Named, Displayed):
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
    memory : str or float, optional
        Memory for rows on all engines of a host together: bytes, such as ``"4GB"``, or a share of what is free, by
        default 0.6. It can be changed at any time. A fit that takes rows in passes keeps what fits of a file, and reads
        the rest again in each pass; other calls refuse what does not fit.
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
    options : StartOptions
        The options of the next start: ``cluster.options.n``. The options `recover`, `silence`, `memory` and `display`
        are also attributes of the cluster, which can be set at any time.
    last_report : FitReport or None
        Report of the last call of an estimator.
    history : History
        The calls of this process on the cluster; `xpulab.board` and ``%xpu_cluster board`` show them, too.
    interrupted : estimator or None
        The estimator whose fit was interrupted last, and can be resumed; see `xpulab.interrupted`.
    last_output : CellOutput or None
        Output of the last cell, or function of `run`, on the engines.
    facts : list of EngineDescription
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

    _internal = frozenset({
        "call", "called", "engines", "entries", "keep_interrupted", "known_as", "life", "made_handle", "outgoing",
        "planning", "receive", "recovers", "release_with", "require_handle", "require_room", "rows", "stopped", "tasks",
        "that_fit", "variables",
    })  # fmt: skip

    recover = Attribute(lambda options: options.recover)
    silence = Attribute(lambda options: options.silence)
    memory = Attribute(lambda options: options.memory)
    display = Attribute(lambda options: options.display)  # jedi fails on a property that returns a Literal

    _elsewhere: ClassVar[Mapping[str, str]] = {
        **{name: f"options.{name}" for name in OPTIONS},
        **{f"{verb}_{form}": "xpulab.scan" for verb in ("load", "read") for form in _SCANNED},
        "scan": "xpulab.scan",
    }

    @taking(StartOptions)
    def __init__(self, options: StartOptions) -> None:
        self.engines: Engines = Engines(options)
        self.planning: Planning = Planning(self.engines)
        self.tasks: Conversation = Conversation(self.engines)
        self.rows: RowsOnEngines = RowsOnEngines(self.tasks, self)
        self.variables: VariablesOnEngines = VariablesOnEngines(self.tasks, self.rows, self)
        self.life: LifeOfEngines[XPUCluster] = LifeOfEngines(
            self, clusters, self.engines, self.planning, self.tasks, self.rows
        )
        self.engines.life = self.life

    run = _by(lambda self: self.tasks, Conversation.run)
    call = _by(lambda self: self.tasks, Conversation.call)
    outgoing = _by(lambda self: self.rows, RowsOnEngines.outgoing)
    scatter = _by(lambda self: self.rows, RowsOnEngines.scatter)
    receive = _by(lambda self: self.rows, RowsOnEngines.receive)
    entries = _by(lambda self: self.rows, RowsOnEngines.entries)
    made_handle = _by(lambda self: self.rows, RowsOnEngines.made_handle)
    handles = _by(lambda self: self.rows, RowsOnEngines.handles)
    release = _by(lambda self: self.rows, RowsOnEngines.release)
    load_npy = _by(lambda self: self.rows, RowsOnEngines.load_npy)
    release_with = _by(lambda self: self.rows, RowsOnEngines.release_with)
    require_handle = _by(lambda self: self.rows, RowsOnEngines.require_handle)
    require_room = _by(lambda self: self.rows, RowsOnEngines.require_room)
    that_fit = _by(lambda self: self.rows, RowsOnEngines.that_fit)

    push = _by(lambda self: self.variables, VariablesOnEngines.push)
    pull = __getitem__ = _by(lambda self: self.variables, VariablesOnEngines.pull)
    __setitem__ = _by(lambda self: self.variables, VariablesOnEngines.put)
    _ipython_key_completions_ = _by(lambda self: self.variables, VariablesOnEngines.keys)
    __iter__ = None
    names = _by(lambda self: self.variables, VariablesOnEngines.names)

    plan = _by(lambda self: self.planning, Planning.plan)
    logs = _by(lambda self: self.life, LifeOfEngines.logs)

    if not TYPE_CHECKING:  # mypy would take every attribute as one that can be set

        def __setattr__(self, name: str, value: object) -> None:
            if name in OPTIONS and not isinstance(getattr(type(self), name, None), Attribute):
                raise AttributeError(
                    f"{name} of a cluster is given when it is made: xpulab.XPUCluster({name}={value!r})"
                )
            super().__setattr__(name, value)

    @property
    def options(self) -> StartOptions:
        """The options of the next start."""
        return self.engines.options

    @options.setter
    def options(self, options: StartOptions) -> None:
        self.engines.options = options

    @property
    def running(self) -> bool:
        """Whether this object has running engines."""
        return self.engines.running

    @property
    def size(self) -> int:
        """Number of engines."""
        return self.engines.size

    @property
    def facts(self) -> list[EngineDescription]:
        """Description that each engine sent when it started, by rank."""
        return self.engines.facts

    @property
    def unheard(self) -> dict[int, float]:
        """Rank -> seconds without a sign of life."""
        return self.engines.unheard

    @property
    def attached(self) -> bool:
        """Whether another process started the cluster."""
        return self.engines.attached

    @property
    def recovers(self) -> bool:
        """Whether calls continue after engines are lost."""
        return self.engines.recovers

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the running cluster's plan. They do not mention other clusters."""
        return self.planning.warnings

    @property
    def last_output(self) -> Any:
        """Output of the last cell, or function of `run`, on the engines."""
        return self.tasks.last_output

    @property
    def interrupted(self) -> Any:
        """The estimator whose fit was interrupted last, and can be resumed."""
        return self.engines.interrupted

    @interrupted.setter
    def interrupted(self, estimator: Any) -> None:
        self.engines.interrupted = estimator

    @property
    def known_as(self) -> str:
        """The name under which other processes find the cluster; empty if it has none and is not running."""
        return self.engines.known_as

    @property
    def label(self) -> str:
        """Name and size for messages about several clusters, such as ``"lab (2 engines)"``."""
        return f"{self.known_as or 'not running'} ({counted(self.size, 'engine')})"

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Return the devices of this host that the oneAPI runtime offers."""
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
        self.life.start()
        return self

    def activate(self) -> XPUCluster:
        """Make this cluster the active one, which estimators and magics use, if several are running.

        Raises
        ------
        NoClusterError
            If the cluster is not running.
        """
        if not self.running:
            raise not_running(self.engines.left)
        self.engines.require_not_forked()
        clusters.activate(self)
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
        for cluster in clusters.running:
            processes = cluster.engines.processes
            if processes is not None and processes.record.folder == record.folder:
                return cluster
        if record.version != __version__:
            raise ClusterError(
                f"the cluster {record.name} was started by xpulab {record.version}, and this is {__version__}; "
                "attach from an environment with the same version"
            )
        cluster = cls(**record.settings, detach=record.detached, name=record.name)
        cluster.life.attach(record, timeout)
        return cluster

    def detach(self) -> None:
        """Leave the cluster, which runs until someone stops it; see `attach`. Does nothing if it is not running.

        A cluster that another process started, and did not detach, still ends with that process.
        """
        self.life.detach()

    def stop(self) -> None:
        """End every process of the cluster, for all attached processes. Does nothing if the cluster is not running.

        Raises
        ------
        NoClusterError
            If this process was forked from the one that uses the cluster.
        """
        self.life.stop()

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
        return end_call(self.engines)

    def end(self) -> None:
        """`detach` if the cluster is detached, or if another process started it; otherwise `stop`.

        Does nothing in a process that was forked from the one that uses the cluster, which goes on to use it.
        """
        if not self.engines.is_forked:
            self.detach() if self.options.detach or self.attached else self.stop()

    def restart(self) -> XPUCluster:
        """Stop the cluster, and start it with the same settings. Rows and variables on the engines are lost.

        A job that was submitted for the cluster goes on.

        Raises
        ------
        PlanError, DeviceNotFoundError, ClusterStartError
            As `start`.
        """
        self.life.restart()
        return self

    def __enter__(self) -> XPUCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    def last(self) -> FitReport | None:
        """Return the report of the latest call of an estimator on this cluster, also after the cluster was stopped.

        If this process made no call on a cluster that it has attached to, this is the latest call of any process, also
        of one that has ended. If that call still runs, this method shows its progress, and waits for its end. An
        interrupt ends the wait, not the call.

        Returns
        -------
        FitReport or None
            None if there was no call.
        """
        own: FitReport | None = self.last_report
        return own if own is not None or not self.attached else last_of_engines(self.tasks)

    def stopped(self) -> Any:
        """Return the estimator whose fit was interrupted last on this cluster; see `xpulab.interrupted`.

        Raises
        ------
        NothingToResumeError
            If no fit was interrupted after an iteration had ended.
        """
        if self.interrupted is None:
            from xpulab.deploy.tasks.resuming import NothingToResumeError  # imports scikit-learn

            raise NothingToResumeError()
        return self.interrupted

    def status(self) -> ClusterStatus:
        """Return the current state of engines, devices and memory."""
        engines, plan = self.engines, self.planning.chosen
        processes, board = engines.processes, engines.board
        if processes is None or board is None or plan is None:
            return ClusterStatus("left" if engines.left else "stopped", 0, id=engines.left)
        ended = processes.ended()
        if ended and processes.record.stopped:
            return ClusterStatus("stopped", 0)
        found = engine_statuses(self.facts, board.ranks, SILENT)
        of_owner = f"ends with process {processes.record.owner[0]}" * self.attached
        return ClusterStatus(
            "lost" if ended else "running",
            len(found),
            self.life.seconds_to_start,
            found,
            plan.warnings,
            tuple(dict.fromkeys(fact.launch_shapes for fact in self.facts if fact.launch_shapes)),
            id=self.options.name or "",
            lives="detached" if self.options.detach else of_owner,
            others=self.planning.others(plan),
            interrupted="" if engines.interrupted is None else engines.said_of_interrupted,
        )

    def __repr__(self) -> str:
        return str(self.status())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()


#: The clusters of this process.
clusters: Registry[XPUCluster] = Registry()
