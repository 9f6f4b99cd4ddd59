"""The file `cluster.json` in a cluster's private folder, with which other processes of the user find the cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from xpulab.deploy.options import OPTIONS, PLACES
from xpulab.deploy.plan.plan import Plan
from xpulab.deploy.plan.probe import core_ranges
from xpulab.exceptions import ClusterError, ClusterStartError, NoClusterError
from xpulab.report.rendering import counted
from xpulab.sharing.owner import RECORD

__all__ = ["Record", "choose", "find", "identity", "in_use", "new_folder", "runs"]

#: The arguments of a cluster that say where its engines run, and how they connect.
_PLACES = [name for name in PLACES if name not in ("strict", "env")]

_PREFIX = "xpulab-"
_ROOM = 2**20  # free bytes that a folder must have for a cluster's connection files and first logs
_CLOCK = 2.0  # seconds of tolerance for the start time of a process, which moves if the host's clock is set


@dataclass(frozen=True)
class Record:
    """Data that a process needs to attach to a cluster.

    Attributes
    ----------
    folder : str
        Folder of the cluster, which only its user can read.
    name : str
        Name of the cluster.
    owner : tuple of int and float
        Process that started the cluster, see `identity`.
    detached : bool
        Whether the cluster outlives its owner.
    version : str
        Version of xpulab on the engines.
    namespace : str
        Linux pid namespace in which the pids are valid.
    processes : dict of str to tuple of int and float
        Controller and mpiexec by name; empty until the cluster has started.
    settings : dict
        Arguments of `XPUCluster` with which it was started.
    plan : dict
        `Plan.to_dict` of the plan.
    facts : list of dict
        Description that each engine sent, by rank.
    seconds_to_start : float
        Seconds that the start took.
    """

    folder: str
    name: str
    owner: tuple[int, float]
    version: str
    namespace: str = field(default_factory=lambda: os.readlink("/proc/self/ns/pid"))
    detached: bool = False
    processes: dict[str, tuple[int, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    seconds_to_start: float = 0.0

    @classmethod
    def create(cls, name: str | None, owner: int, version: str, hosts: bool = False) -> Record:
        """Create the folder and the record of a cluster that is about to start.

        Parameters
        ----------
        name : str or None
            Name of the cluster; generated if None.
        owner : int
            Pid of the process that starts it.
        version : str
            Version of xpulab.
        hosts : bool
            Whether other hosts must be able to have a folder with the same path.

        Raises
        ------
        ClusterError
            If a running cluster has this name.
        ClusterStartError
            If no folder has space for the files of a cluster.
        """
        if name is not None and any(name == other.name for other in find()):
            raise ClusterError(
                f"a cluster named {name!r} is already running; type: %xpu_cluster attach {name}, or choose another name"
            )
        folder = new_folder(hosts)
        record = cls(folder, name or folder.rpartition(_PREFIX)[2], identity(owner or os.getpid()), version)
        record.write()
        return record

    def write(self, **changes: Any) -> Record:
        """Change attributes, and replace the file atomically. Returns the new record."""
        new = replace(self, **changes)
        partly = Path(self.folder, f".{RECORD}")
        partly.touch(0o600)
        partly.write_text(json.dumps(asdict(new)))
        partly.replace(Path(self.folder, RECORD))
        return new

    @property
    def stopped(self) -> bool:
        """Whether a process has stopped the cluster, or is stopping it."""
        return not Path(self.folder, RECORD).exists()

    @property
    def runs(self) -> bool:
        """Whether the cluster's processes run. A process in a container cannot see processes outside of it."""
        one = self.processes.get("controller", self.owner)
        return self.namespace == os.readlink("/proc/self/ns/pid") and runs(*one)

    @property
    def stale(self) -> bool:
        """Whether the cluster was killed, and nothing starts new engines: it was detached, or its owner has ended."""
        here = self.namespace == os.readlink("/proc/self/ns/pid")
        return here and not self.runs and (self.detached or not runs(*self.owner))

    @property
    def to_start(self) -> str:
        """What to type to start such a cluster again: on its hosts, or in such a job."""
        given = {name: value for name in _PLACES if (value := self.settings.get(name)) not in (None, False)}
        if given.keys().isdisjoint(("hosts", "hostfile", "launcher")):
            return "%xpu_cluster start"
        return " ".join(["%xpu_cluster start", *(OPTIONS[name].typed(value) for name, value in given.items())])

    def __str__(self) -> str:
        n, owner = len(self.facts), f"ends with process {self.owner[0]}"
        return f"{self.name} ({counted(n, 'engine')}, {'detached' if self.detached else owner})"


def new_folder(hosts: bool = False) -> str:
    """Create a private (0700) folder for the files of a cluster, where there is space for them.

    Parameters
    ----------
    hosts : bool
        Whether other hosts must be able to have a folder with the same path.

    Raises
    ------
    ClusterStartError
        If no folder can be used; the message names each folder that was tried, and the reason.
    """
    failures = []
    # Every host has /tmp. The folder of a login may be missing on a host to which the user is not logged in.
    anywhere = hosts and not os.environ.get("XPULAB_RUNTIME_DIR")
    for place in ["/tmp"] if anywhere else _folders():
        folder = ""
        try:
            folder = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
            room = Path(folder, "room")
            room.write_bytes(bytes(_ROOM))
            room.unlink()
            return folder
        except OSError as error:
            failures.append(f"{place}: {error.strerror}")
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise ClusterStartError(
        f"no folder has room for the connection files and logs of a cluster ({'; '.join(failures)})\nfree some space, "
        "or set the variable TMPDIR to a folder with space in which you may write"
    )


def identity(pid: int) -> tuple[int, float]:
    """Pid and start time (seconds since the epoch) of a process, because the system reuses pids."""
    return pid, psutil.Process(pid).create_time()


def runs(pid: int, started: float) -> bool:
    """Whether this process still runs. A zombie does not count as running."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < _CLOCK
    except psutil.Error:
        return False


def find() -> list[Record]:
    """The running clusters of this user on this host. Removes the folders of clusters that were killed."""
    return _sorted()[0]


def _sorted() -> tuple[list[Record], list[Record]]:
    """The running clusters, sorted by name, and the clusters that were killed, whose folders it removes."""
    found, gone = [], []
    for folder in (path for place in _folders() for path in Path(place).glob(f"{_PREFIX}*")):
        record = _read(folder)
        if record is None:
            continue
        if record.stale:
            gone.append(record)
            shutil.rmtree(folder, ignore_errors=True)
        elif record.processes and record.runs:
            found.append(record)
    return sorted(found, key=lambda record: record.name), gone


def in_use(plan: Plan, own: str = "") -> tuple[str, ...]:
    """A sentence for each other running cluster of this user that uses some of a plan's cores and GPUs.

    Parameters
    ----------
    plan : Plan
    own : str
        Folder of the cluster that has this plan, if it runs; this cluster is left out.

    Returns
    -------
    tuple of str
    """
    return tuple(said for record in find() if record.folder != own and record.plan and (said := _shared(plan, record)))


def _shared(plan: Plan, record: Record) -> str:
    try:
        mine, theirs = plan.ranks, Plan.from_dict(record.plan).ranks
    except (KeyError, TypeError):  # another version of xpulab wrote it
        return f"the cluster {record.name}, of another version of xpulab, runs too, and may use the same cores"
    on_cpu = any(rank.device.kind == "cpu" for rank in (*mine, *theirs))  # engines on GPUs hardly use their cores
    cores = {
        core
        for one, other in itertools.product(mine, theirs)
        if one.host == other.host
        for core in {*one.cores} & {*other.cores}
    }
    gpus = {
        one.selector
        for one, other in itertools.product(mine, theirs)
        if (one.host, one.selector) == (other.host, other.selector) and one.device.kind != "cpu"
    }
    parts = [f"the {'core' if len(cores) == 1 else 'cores'} {core_ranges(cores)}"] if cores and on_cpu else []
    parts += [f"{gpu} ({next(r.device.name for r in mine if r.selector == gpu)})" for gpu in sorted(gpus)]
    if not parts:
        return ""
    owner = "of this process" if record.owner[0] == os.getpid() else f"of another notebook, process {record.owner[0]}"
    whose = "detached" if record.detached else owner
    return (
        f"in use: {' and '.join(parts)}, by the cluster {record.name} ({counted(len(theirs), 'engine')}, {whose}); "
        f"calls take longer while it computes; to end it, type: %xpu_cluster attach {record.name}, and then "
        "%xpu_cluster stop"
    )


def choose(name: str | None, command: str = "%xpu_cluster attach") -> Record:
    """The running cluster with this name, or the only running cluster.

    Parameters
    ----------
    name : str or None
        Name of the cluster; None for the only running cluster.
    command : str
        Command that the error message suggests, with another name.

    Returns
    -------
    Record

    Raises
    ------
    NoClusterError
        If no such cluster is running.
    ClusterError
        If several clusters are running and no name was given.
    """
    found, gone = _sorted()
    named = [record for record in found if name in (None, record.name)]
    if len(named) == 1:
        return named[0]
    every = "; ".join(map(str, found))
    if named:
        raise ClusterError(f"several clusters are running: {every}; type: {command} {named[-1].name}")
    lost = "".join(
        f"the cluster {record.name} is gone: its processes were killed, or the host was restarted; "
        for record in gone
        if name in (None, record.name)
    )
    if not found:
        named = [record for record in gone if name in (None, record.name)]
        start = named[-1].to_start if named else "%xpu_cluster start"
        raise NoClusterError(f"{lost}no cluster of this user is running on this host; type: {start}")
    raise NoClusterError(
        f"{lost}no running cluster has the name {name!r}; running clusters: {every}; type: {command} {found[-1].name}"
    )


def _read(folder: Path) -> Record | None:
    """Read the record in a folder; None if there is none, or if another user may have written it."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        about = folder.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077:
            content = json.loads((folder / RECORD).read_text())
            record = Record(**content)
            processes = {name: (pid, began) for name, (pid, began) in record.processes.items()}
            pid, began = record.owner
            return replace(record, folder=str(folder), owner=(pid, began), processes=processes)
    return None


def _folders() -> list[str]:
    """Folders that may contain the folders of clusters, best first. XDG_RUNTIME_DIR is usually in memory.

    A new cluster uses the first folder with enough space. All folders are searched for clusters, because processes of
    one user may have different environments. Where XPULAB_RUNTIME_DIR is set, it is the only folder: clusters there and
    clusters elsewhere do not see each other.
    """
    if only := os.environ.get("XPULAB_RUNTIME_DIR"):
        return [str(Path(only).resolve())]
    mine = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [mine] if mine and os.access(mine, os.W_OK) else []
    with contextlib.suppress(FileNotFoundError):  # gettempdir raises this if no folder can be written
        places.append(tempfile.gettempdir())
    places.append("/tmp")
    return list(dict.fromkeys(str(Path(place).resolve()) for place in (*places, f"/run/user/{os.getuid()}")))
