"""The kernels, transfers and MPI calls of a user's code on the engines, by rank. ``%%xpu_profile`` shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from xpulab.report.rendering import (
    Html,
    escape,
    format_count,
    format_seconds,
    format_size,
    plain,
    table_html,
    table_text,
)
from xpulab.sharing.answers import Measured, UsersResult

__all__ = ["LEGEND", "Activity", "CellUsage", "RankUsage", "Run", "Span", "collected", "collecting", "wanted"]

LEGEND = (
    "Kernels and transfers are those that the code gives to queue, in the device's time. What dpnp and numba-dpex "
    "submit themselves cannot be seen. Wait is the time in collective calls until the last rank came to them; in other "
    "calls of MPI it cannot be told from the transfer."
)
_KINDS = ("kernel", "transfer", "MPI")


@dataclass
class Activity:
    """One kernel, kind of transfer or function of MPI on one rank.

    Attributes
    ----------
    kind : {"kernel", "transfer", "MPI"}
    name : str
        Name of the kernel or function.
    count : int
        Number of launches or calls.
    nbytes : int or None
        Bytes that were transferred. For MPI, the larger of the bytes sent and the bytes received, with pickled objects.
    seconds : float
        Seconds on the device. For MPI, seconds within the calls.
    wait : float or None
        For collective calls of MPI, seconds until the last rank entered the call.
    """

    kind: str
    name: str
    count: int
    nbytes: int | None
    seconds: float
    wait: float | None = None


class Span(NamedTuple):
    """One launch of a kernel, one transfer, or one call of MPI.

    `start` counts from the moment at which the first rank began; `wait`, a part of the seconds, is that of a collective
    call of MPI until the last rank entered it.
    """

    kind: str
    name: str
    start: float
    seconds: float
    wait: float


@dataclass
class RankUsage:
    """The activities of one rank.

    Attributes
    ----------
    seconds : float
        Wall time of the code.
    activities : list of Activity
    start : float
        Seconds from the moment at which the first rank began to that of this one.
    spans : list of Span
        The latest activities, in the order of their beginnings.
    """

    seconds: float
    activities: list[Activity]
    start: float = 0.0
    spans: list[Span] = field(default_factory=list, repr=False)

    def of(self, kind: str) -> float:
        """Return the seconds of a kind of activity."""
        return sum(each.seconds for each in self.activities if each.kind == kind)

    @property
    def wait(self) -> float:
        """Seconds in which the rank waited for the others in collective calls."""
        return sum(each.wait or 0.0 for each in self.activities)


@dataclass
class CellUsage:
    """The activities of a ``%%xpu`` cell, or of a function that `XPUCluster.run` called, on the ranks.

    Attributes
    ----------
    title : str
    ranks : dict of int to RankUsage
    """

    title: str
    ranks: dict[int, RankUsage]

    def to_dict(self) -> dict[str, Any]:
        """Return the usage as JSON-serialisable values, without moments, which `Timeline.to_csv` and others write."""
        found = asdict(self)
        for rank in found["ranks"].values():
            del rank["start"], rank["spans"]
        return found

    def __str__(self) -> str:
        ranks, activities = self._tables()
        parts = [plain(self.title), table_text(*ranks)]
        return "\n".join([*parts, table_text(*activities)] if activities[1] else parts)

    def html(self) -> list[Html]:
        """Return the tables, in HTML."""
        ranks, activities = self._tables()
        title = Html(f"<div><strong>{escape(self.title)}</strong></div>")
        return [title, table_html(*ranks), *([table_html(*activities)] if activities[1] else [])]

    def _tables(self) -> tuple[tuple[tuple[str, ...], list[list[str]], str], ...]:
        ranks = [
            [str(rank), *map(format_seconds, (u.seconds, *map(u.of, _KINDS), u.wait))] for rank, u in self.ranks.items()
        ]
        activities = [
            [
                f"{each.kind} {plain(each.name)}",
                str(rank),
                format_count(each.count),
                format_size(each.nbytes),
                format_seconds(each.seconds),
                format_seconds(each.wait),
            ]
            for rank, usage in self.ranks.items()
            for each in usage.activities
        ]
        activities.sort(key=lambda row: _KINDS.index(row[0].partition(" ")[0]))
        return (
            (("rank", "time", "kernels", "transfers", "MPI", "wait"), ranks, "lrrrrr"),
            (("activity", "rank", "count", "data", "time", "wait"), activities, "lrrrrr"),
        )


@dataclass(frozen=True)
class Run:
    """A user's code that has ended on the engines.

    Attributes
    ----------
    title : str
    seconds : float
        Seconds on the rank that took the longest.
    state : str
        "finished", "failed" or "interrupted".
    usage : CellUsage or None
        Its activities, if they were measured.
    """

    title: str
    seconds: float
    state: str
    usage: CellUsage | None


_collections: list[list[CellUsage]] = []


@contextlib.contextmanager
def collecting(into: list[CellUsage]) -> Iterator[None]:
    """Collect the activities of all users' code on the engines until the block ends."""
    _collections.append(into)
    try:
        yield
    finally:
        _collections[:] = [each for each in _collections if each is not into]


def wanted() -> bool:
    """Return whether a block of `collecting` is open."""
    return bool(_collections)


def collected(
    title: str, results: list[UsersResult], seconds: float = 0.0, ahead: Sequence[float] | None = None
) -> Run:
    """Pass on the measurements of the ranks, see `engine.cells.usage`. A rank without any did not run the code.

    Parameters
    ----------
    title : str
    results : list of UsersResult
        What the code left on each rank.
    seconds : float
        Seconds on the rank that took the longest.
    ahead : sequence of float, optional
        Seconds by which the clock of each rank is ahead of this host's; by default all ranks are of this host.

    Returns
    -------
    Run
        What the history has of the code.
    """
    measured = {rank: result["usage"] for rank, result in enumerate(results) if result.get("usage")}
    usage = None
    if measured:
        ahead = [0.0] * len(results) if ahead is None else ahead
        waits = _waits(measured, ahead)
        began = min(found["began"] - ahead[rank] for rank, found in measured.items())
        ranks = {rank: _rank(found, waits[rank], began + ahead[rank]) for rank, found in measured.items()}
        usage = CellUsage(title, ranks)
        for each in _collections:
            each.append(usage)
    outcomes = {result["outcome"] for result in results}
    state = "failed" if "error" in outcomes else "interrupted" if "interrupted" in outcomes else "finished"
    return Run(title, seconds, state, usage)


def _rank(found: Measured, waits: dict[str, dict[float, float]], began: float) -> RankUsage:
    """Return the usage of a rank; the first one `began` at this moment of the rank's clock."""
    sums = {("MPI", name): sum(each.values()) for name, each in waits.items()}
    activities = [
        Activity(kind, name, count, nbytes, seconds, sums.get((kind, name)))
        for kind, name, count, nbytes, seconds in found["activities"]
    ]
    spans = [
        Span(kind, name, moment - began, seconds, waits.get(name, {}).get(moment, 0.0) if kind == "MPI" else 0.0)
        for kind, name, moment, seconds in found["moments"]
    ]
    return RankUsage(found["seconds"], activities, found["began"] - began, sorted(spans, key=lambda span: span.start))


def _waits(measured: dict[int, Measured], ahead: Sequence[float]) -> dict[int, dict[str, dict[float, float]]]:
    """Return rank -> function -> moment entered -> seconds until the last rank entered.

    The k-th calls of all ranks are one collective.

    The ranks of one host share their clock, and `ahead` says how those of other hosts differ.
    """
    waits: dict[int, dict[str, dict[float, float]]] = {rank: {} for rank in measured}
    for rank, found in measured.items():
        for (name, *members), (entered, left) in found["collectives"].items():
            others = ((m, measured[m]["collectives"].get((name, *members))) for m in members if m in measured)
            # Each by the clock of this rank.
            times = [[t - ahead[m] + ahead[rank] for t in each[0]] for m, each in others if each is not None]
            latest = [max(each) for each in zip(*times, strict=False)]
            lasted = zip(latest, entered, left, strict=False)
            waits[rank].setdefault(name, {}).update((a, max(0.0, min(m, b) - a)) for m, a, b in lasted)
    return waits
