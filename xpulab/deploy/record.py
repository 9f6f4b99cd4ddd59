"""By which other processes of the user find a cluster: the file `cluster.json` in its private folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from xpulab.exceptions import ClusterError, NoClusterError
from xpulab.sharing.owner import RECORD

__all__ = ["Record", "choose", "find", "identity", "runs"]

_PREFIX = "xpulab-"
_CLOCK = 2.0  # seconds by which the start of a process may seem to move: the clock of the host is set meanwhile


@dataclass(frozen=True)
class Record:
    """What an attaching process needs to know.

    Attributes
    ----------
    folder : str
        The cluster's, readable by its user alone.
    name : str
    owner : tuple of int and float
        The process that started it, see `identity`.
    detached : bool
        Whether it outlives its owner.
    version : str
        Of the package on its engines.
    namespace : str
        Where the numbers of its processes mean something.
    processes : dict of str to tuple of int and float
        Controller and mpiexec; empty until it has started.
    settings : dict
        Arguments of `XPUCluster` with which it was started.
    plan : dict
    facts : list of dict
        What each engine said of itself, by rank.
    seconds_to_start : float
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
    def create(cls, name: str | None, owner: int, version: str) -> Record:
        """A new folder, for a cluster that is about to start.

        Raises
        ------
        ClusterError
            If the name is taken.
        """
        if name is not None and any(name == other.name for other in find()):
            raise ClusterError(
                f"a cluster of the name {name!r} is running; type: %xpu_cluster attach {name}, or choose another name"
            )
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_folders()[0])  # 0700
        record = cls(folder, name or folder.rpartition(_PREFIX)[2], identity(owner or os.getpid()), version)
        record.write()
        return record

    def write(self, **changes: Any) -> Record:
        """Write the file anew, with some of it changed; whoever reads it sees it as it was or as it is."""
        new = replace(self, **changes)
        partly = Path(self.folder, f".{RECORD}")
        partly.touch(0o600)
        partly.write_text(json.dumps(asdict(new)))
        partly.replace(Path(self.folder, RECORD))
        return new

    @property
    def stopped(self) -> bool:
        """Whether someone has stopped the cluster, or is about to."""
        return not Path(self.folder, RECORD).exists()

    @property
    def stale(self) -> bool:
        """Whether the cluster is gone without having been stopped."""
        one = self.processes.get("controller", self.owner)
        return self.namespace == os.readlink("/proc/self/ns/pid") and not runs(*one)

    def __str__(self) -> str:
        n, owner = len(self.facts), f"ends with process {self.owner[0]}"
        return f"{self.name} ({n} engine{'s' * (n != 1)}, {'detached' if self.detached else owner})"


def identity(pid: int) -> tuple[int, float]:
    """A process by its number and the time of its start, in seconds since the epoch: numbers are used again."""
    return pid, psutil.Process(pid).create_time()


def runs(pid: int, started: float) -> bool:
    """Whether this process is there still; one that only waits to be reaped is not."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < _CLOCK
    except psutil.Error:
        return False


def find() -> list[Record]:
    """Every cluster of this user on this host; what is left of those that are gone is removed."""
    return _sorted()[0]


def _sorted() -> tuple[list[Record], list[Record]]:
    """Clusters that run, by name, and those that are gone without having been stopped, of which nothing is left now."""
    found, gone = [], []
    for folder in (path for place in _folders() for path in Path(place).glob(f"{_PREFIX}*")):
        record = _read(folder)
        if record is None:
            continue
        if record.stale:
            gone.append(record)
            shutil.rmtree(folder, ignore_errors=True)
        elif record.processes and record.namespace == os.readlink("/proc/self/ns/pid"):
            found.append(record)
    return sorted(found, key=lambda record: record.name), gone


def choose(name: str | None, command: str = "%xpu_cluster attach") -> Record:
    """The cluster of this name, or the only one there is.

    Parameters
    ----------
    name : str or None
    command : str
        What the user can type again with another name.

    Raises
    ------
    NoClusterError
        If there is none.
    ClusterError
        If there are several, and no name was given.
    """
    found, gone = _sorted()
    named = [record for record in found if name in (None, record.name)]
    if len(named) == 1:
        return named[0]
    every = "; ".join(map(str, found))
    if named:
        raise ClusterError(f"several clusters are running: {every}; type: {command} {named[-1].name}")
    lost = "".join(
        f"the cluster {record.name} is gone, its processes were killed or the host was restarted; "
        for record in gone
        if name in (None, record.name)
    )
    if not found:
        raise NoClusterError(f"{lost}no cluster of this user is running on this host; type: %xpu_cluster start")
    raise NoClusterError(f"{lost}no cluster is called {name!r}; running: {every}; type: {command} {found[-1].name}")


def _read(folder: Path) -> Record | None:
    """None where there is nothing to read, or where someone else may have written it."""
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
    """Where clusters have their folders; the first is for new ones: private to the user and in memory, if there is one.

    The others are looked through as well: processes of one user need not have the same environment.
    """
    mine = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [*([mine] if mine and os.access(mine, os.W_OK) else []), tempfile.gettempdir(), "/tmp"]
    return list(dict.fromkeys(str(Path(place).resolve()) for place in [*places, f"/run/user/{os.getuid()}"]))
