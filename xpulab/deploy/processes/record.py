"""The file `cluster.json` in a cluster's private folder, with which other processes of the user find the cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import psutil

from xpulab.deploy.options import OPTIONS, PLACES
from xpulab.deploy.plan.plan import Plan
from xpulab.exceptions import ClusterError, ClusterStartError, NoClusterError
from xpulab.report.rendering import counted
from xpulab.sharing.descriptions import EngineDescription
from xpulab.sharing.owner import RECORD

__all__ = ["Record", "choose", "find", "find_all", "identity", "new_folder", "runs"]

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
    size : int
        Number of engines.
    plan : Plan or None
    facts : list of EngineDescription
        Description that each engine sent, by rank.
    is_known : bool
        False if another version of xpulab has written plan and facts in a form that this version does not know; they
        are then left out.
    seconds_to_start : float
        Seconds that the start took.
    notebook : str
        File name of the notebook in whose kernel the owner runs; empty elsewhere.
    """

    folder: str
    name: str
    owner: tuple[int, float]
    version: str
    namespace: str = field(default_factory=lambda: os.readlink("/proc/self/ns/pid"))
    detached: bool = False
    processes: dict[str, tuple[int, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    plan: Plan | None = None
    facts: list[EngineDescription] = field(default_factory=list)
    seconds_to_start: float = 0.0
    is_known: bool = True
    notebook: str = ""

    @classmethod
    def create(cls, name: str | None, owner: int, version: str, hosts: bool = False) -> Record:
        """Create the folder and the record of a cluster that is about to start.

        Parameters
        ----------
        name : str or None
            Name of the cluster. If None, it is that of the notebook in whose kernel this process runs, with a number if
            a cluster with this name runs; elsewhere it is generated.
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
        folder, notebook = new_folder(hosts), _notebook()
        name = name or _name_after(notebook) or folder.rpartition(_PREFIX)[2]
        record = cls(folder, name, identity(owner or os.getpid()), version, notebook=notebook)
        record.write()
        return record

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Record:
        """Return the record that `write` has described.

        Parameters
        ----------
        content : mapping
            The content of the file; lists may stand for tuples.
        """
        known = {each.name: content[each.name] for each in fields(cls) if each.name in content}
        pid, began = content["owner"]
        known["owner"] = (pid, began)
        known["processes"] = {name: (pid, began) for name, (pid, began) in content["processes"].items()}
        try:
            known["plan"] = Plan.from_dict(content["plan"]) if content["plan"] else None
            known["facts"] = [EngineDescription.from_dict(each) for each in content["facts"]]
        except (KeyError, TypeError):
            known |= {"plan": None, "facts": [], "is_known": False}
        return cls(**known)

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

    def whose(self, *said: str) -> str:
        """Return the cluster in messages to other people: its notebook's name, and nothing about how to end it.

        What else is `said` about it follows in brackets.
        """
        about = [counted(self.size, "engine"), *said]
        if self.owner[0] == os.getpid():
            return f"the cluster {self.name} of this process ({', '.join(about)})"
        if self.notebook:
            return f"the notebook {self.notebook} ({', '.join(about)})"
        about.insert(1, "detached" if self.detached else f"process {self.owner[0]}")
        return f"the cluster {self.name} ({', '.join(about)})"

    def __str__(self) -> str:
        n, owner = self.size, f"ends with process {self.owner[0]}"
        return f"{self.name} ({counted(n, 'engine')}, {'detached' if self.detached else owner})"


def _notebook() -> str:
    """Return the file name of the notebook in whose kernel this process runs, from Jupyter's server; "" elsewhere."""
    name = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    return name if name.endswith(".ipynb") else ""


def _name_after(notebook: str) -> str:
    """Return a notebook's name that no running cluster has, as a word for ``%xpu_cluster attach``."""
    word = re.sub(r"[^\w.-]+", "-", notebook.removesuffix(".ipynb")).strip("-.")
    if not word:
        return ""
    taken = {record.name for record in find()}
    return next(name for n in itertools.count(1) if (name := word if n == 1 else f"{word}-{n}") not in taken)


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
    """Return pid and start time (seconds since the epoch) of a process, because the system reuses pids."""
    return pid, psutil.Process(pid).create_time()


def runs(pid: int, started: float) -> bool:
    """Return whether this process still runs. A zombie does not count as running."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < _CLOCK)
    except psutil.Error:
        return False


def find() -> list[Record]:
    """Return the running clusters of this user on this host. Removes the folders of clusters that were killed."""
    return _sorted()[0]


def find_all() -> list[tuple[str, Record]]:
    """Return the running clusters of this host that this user may see, with the name of their users.

    Only root sees those of other users. Nothing is removed.
    """
    found = []
    for folder in (path for place in _folders_of_all() for path in Path(place).glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError):
            user = folder.lstat().st_uid
            if user == os.getuid() or os.getuid() == 0:
                record = _read(folder, user)
                if record is not None and record.processes and record.runs:
                    found.append((_name_of(user), record))
    return sorted(found, key=lambda each: (each[0], each[1].name))


def _folders_of_all() -> list[str]:
    """Return the folders with the folders of clusters: for root those of all users."""
    if os.getuid() != 0 or os.environ.get("XPULAB_RUNTIME_DIR"):
        return _folders()
    return list(dict.fromkeys([*_folders(), *map(str, Path("/run/user").glob("*"))]))


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _sorted() -> tuple[list[Record], list[Record]]:
    """Return the running clusters, sorted by name, and the clusters that were killed, whose folders it removes."""
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


def choose(name: str | None, command: str = "%xpu_cluster attach") -> Record:
    """Return the running cluster with this name, or the only running cluster.

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


def _read(folder: Path, user: int | None = None) -> Record | None:
    """Read the record of a user (by default the present one) in a folder; None if others may have written it."""
    user = os.getuid() if user is None else user
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        about = folder.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == user and not about.st_mode & 0o077:
            record = Record.from_dict(json.loads((folder / RECORD).read_text()))
            return replace(record, folder=str(folder))
    return None


def _folders() -> list[str]:
    """Return the folders that may contain the folders of clusters, best first. XDG_RUNTIME_DIR is usually in memory.

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
