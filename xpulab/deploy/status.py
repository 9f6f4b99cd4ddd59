"""The state of a cluster and its engines as plain data, with a text and an HTML form."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

import psutil

from xpulab.deploy.status_view import status_html, status_text
from xpulab.report.rendering import Displayed, Html
from xpulab.sharing import host_memory
from xpulab.sharing.board import metrics_of
from xpulab.sharing.descriptions import EngineDescription

__all__ = ["ClusterStatus", "Controlled", "EngineStatus", "engine_statuses"]


class Controlled(Protocol):
    """The cluster of a live view: the view asks it for its status, and the view's buttons act on it."""

    def status(self) -> ClusterStatus:
        """Return the present state of engines, devices and memory."""


@dataclass(frozen=True)
class EngineStatus:
    """The state of one engine.

    Attributes
    ----------
    state : str
        "idle", the running call, such as "KMeans.fit", or "silent" if the heartbeat has stopped and the process does
        not compute.
    heartbeat_age_s : float
        Seconds since the engine last wrote to the board.
    launch_shape : str
        The last launch shape (see `EngineReport`), and the number of ranges of sizes that have tuned parameters.
    memory_used, device_bytes, device_memory : int
        Resident memory of the process, bytes held on the device for handles, and the device's memory, in bytes.
    memory_free, device_free : int or None
        Free bytes of the host and of the device. A CPU shares the host's memory. For a GPU, only memory that xpulab's
        engines use is subtracted, because the driver does not report other processes.
    run, iteration : int
        Current run and iteration of a fit, counted from 1; 0 if no fit is iterating.
    metrics : dict of str to float
        Values that the algorithm computed in that iteration, such as the inertia of k-means.
    """

    rank: int
    host: str
    pid: int
    device: str
    selector: str
    cores: tuple[int, ...]
    state: str
    heartbeat_age_s: float | None
    memory_used: int | None
    device_bytes: int | None
    device_memory: int
    launch_shape: str = ""
    memory_free: int | None = None
    device_free: int | None = None
    run: int = 0
    iteration: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


def engine_statuses(facts: list[EngineDescription], ranks: Any, silent: float) -> tuple[EngineStatus, ...]:
    """Return the current state of each engine.

    Parameters
    ----------
    facts : list of EngineDescription
        Description that each engine sent when it started, by rank.
    ranks : numpy.ndarray
        Records of `Board.ranks`.
    silent : float
        Age in seconds of the heartbeat after which an engine that does not compute is called silent.
    """
    free = host_memory.available()
    held: Counter[tuple[str, str]] = Counter()
    for fact, record in zip(facts, ranks, strict=True):
        held[fact.host, fact.selector] += int(record["device_bytes"])
    return tuple(
        _engine_status(fact, record, silent, free, held[fact.host, fact.selector])
        for fact, record in zip(facts, ranks, strict=True)
    )


def _engine_status(fact: EngineDescription, record: Any, silent: float, free: int, held: int) -> EngineStatus:
    age = max(0.0, time.time() - float(record["heartbeat"]))
    busy, device = bool(record["task"]), fact.device
    here, free = fact.here, free if fact.here else int(record["free"])
    working = bytes(record["name"]).decode() if busy else "idle"
    return EngineStatus(
        rank=fact.rank,
        host=fact.host,
        pid=fact.pid,
        device=device.name,
        selector=fact.selector,
        cores=fact.cores,
        state="silent" if age > silent and not (here and _computes(fact.pid)) else working,
        heartbeat_age_s=age,
        memory_used=host_memory.resident(fact.pid) if here else int(record["memory"]),
        device_bytes=int(record["device_bytes"]),
        device_memory=device.memory,
        launch_shape=bytes(record["launch_shape"]).decode(),
        memory_free=free,
        device_free=free if device.device_type == "cpu" else max(0, device.memory - held),
        run=int(record["run"]) if busy else 0,
        iteration=int(record["iteration"]) if busy else 0,
        metrics=metrics_of(record) if busy and record["iteration"] else {},
    )


def _computes(pid: int) -> bool:
    """Return whether the process uses a processor now. Compiled code that holds Python's lock stops the heartbeat."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_RUNNING)
    except psutil.Error:
        return False


@dataclass(frozen=True, repr=False)
class ClusterStatus(Displayed):
    """The state of a cluster at one moment.

    Attributes
    ----------
    state : {"running", "stopped", "lost", "left"}
        "lost" if engines were lost; "left" if this process has left the cluster, which goes on.
    seconds_to_start : float or None
        Seconds that the start took.
    engines : tuple of EngineStatus
        The engines, in the order of the ranks.
    warnings : tuple of str
        The warnings of the plan.
    launch_shape_files : tuple of str
        Files with tuned launch shapes, one for each kind of device; empty if tuning is off.
    id : str
        The cluster's name.
    lives : str
        ``"detached"``, or ``"ends with process 123"`` if another process started the cluster, or "".
    others : tuple of str
        A sentence for each other cluster of this user that uses some of these cores and GPUs.
    interrupted : str
        What was said of the fit that was interrupted last, and can go on.
    cluster : Controlled or None
        Cluster that a live view follows; None for a static view.
    """

    state: Literal["running", "stopped", "lost", "left"]
    n: int
    seconds_to_start: float | None = None
    engines: tuple[EngineStatus, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    launch_shape_files: tuple[str, ...] = field(default=())
    id: str = ""
    lives: str = ""
    others: tuple[str, ...] = ()
    interrupted: str = ""
    cluster: Controlled | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON-serialisable values."""
        content = asdict(replace(self, cluster=None))
        del content["cluster"]
        return content

    def __str__(self) -> str:
        return status_text(self.to_dict())

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        return status_html(self.to_dict())
