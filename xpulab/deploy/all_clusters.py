"""All clusters of a host, for a teacher or an administrator: whose they are, what they use, and what they compute."""

from __future__ import annotations

import time
from dataclasses import dataclass

from xpulab.deploy.processes.others import call_of
from xpulab.deploy.processes.record import Record, find_all
from xpulab.report.rendering import Displayed, Html, block, counted, format_seconds, format_size, table_html, table_text
from xpulab.sharing import host_memory

__all__ = ["AllClusters", "ClusterOfHost", "all_clusters"]

_HEADER = ("notebook", "user", "cluster", "engines", "devices", "memory", "since", "runs")
_ALIGN = "lllrlrrl"


@dataclass(frozen=True)
class ClusterOfHost:
    """A cluster of this host.

    Attributes
    ----------
    notebook : str
        File name of its notebook; empty if no notebook has started it.
    user : str
    name : str
        Its name, for ``%xpu_cluster attach``.
    engines : int
    devices : tuple of str
        Names of the devices, each once.
    memory : int
        Bytes of the processes of the engines on this host.
    seconds : float
        Seconds since its start.
    runs : str
        The call that runs, "idle", or "" if it is not known.
    """

    notebook: str
    user: str
    name: str
    engines: int
    devices: tuple[str, ...]
    memory: int
    seconds: float
    runs: str


@dataclass(frozen=True, repr=False)
class AllClusters(Displayed):
    """The running clusters of this host that the user may see; a notebook shows them as a table."""

    clusters: tuple[ClusterOfHost, ...]

    @property
    def _title(self) -> str:
        users = {each.user for each in self.clusters}
        engines = sum(each.engines for each in self.clusters)
        return (
            f"{counted(len(self.clusters), 'cluster')} on this host, with {counted(engines, 'engine')}, of "
            f"{counted(len(users), 'user')}"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                each.notebook or "–", each.user, each.name, str(each.engines), ", ".join(each.devices),
                format_size(each.memory), format_seconds(each.seconds), each.runs or "–",
            )
            for each in self.clusters
        ]  # fmt: skip

    def __str__(self) -> str:
        return "\n".join([self._title, table_text(_HEADER, self._rows(), _ALIGN)] if self.clusters else [self._title])

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        table = table_html(_HEADER, self._rows(), _ALIGN, self._title) if self.clusters else Html(self._title)
        return block("Clusters of this host", [table])


def all_clusters() -> AllClusters:
    """Return the running clusters of this host: those of this user, and for root those of all users."""
    return AllClusters(tuple(_described(user, record) for user, record in find_all()))


def _described(user: str, record: Record) -> ClusterOfHost:
    here = [fact for fact in record.facts if fact.here]
    began = record.processes.get("controller", record.owner)[1]
    return ClusterOfHost(
        notebook=record.notebook,
        user=user,
        name=record.name,
        engines=record.size,
        devices=tuple(dict.fromkeys(fact.device.name for fact in record.facts)),
        memory=sum(host_memory.resident(fact.pid) for fact in here),
        seconds=max(0.0, time.time() - began),
        runs=call_of(record),
    )
