"""The board of a cluster: its engines, the running call, the history of calls, and a timeline, as one object."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from xpulab.deploy.current import latest_cluster
from xpulab.deploy.watch.utilisation import LENGTH, PACE, Utilisation
from xpulab.names import Listed
from xpulab.report.curves import polyline
from xpulab.report.history import Called, History
from xpulab.report.html import progress_html
from xpulab.report.record import WAITING, FitRecord
from xpulab.report.rendering import (
    Displayed,
    Html,
    block,
    drawn,
    escape,
    format_seconds,
    format_size,
    style,
    table_html,
    table_text,
    this_client,
)
from xpulab.report.text import fit_line
from xpulab.report.timeline import Timeline, of_cell, of_iterations
from xpulab.sharing.board import USERS

if TYPE_CHECKING:
    from xpulab.deploy.cluster import XPUCluster
    from xpulab.deploy.status import EngineStatus
    from xpulab.deploy.tasks.names import Names

__all__ = ["ClusterBoard", "board"]

_TIMELINES = 20  # latest calls, of which timelines are kept after their end
_LATE = 10.0  # seconds after a call in which its last iterations may still come from other hosts
_ENGINES = ("engine", "state", "device", "use", "memory")


def board(cluster: XPUCluster | None = None) -> ClusterBoard:
    """Return the board of a cluster: what runs, the history of calls, and timelines. A notebook shows it live.

    Parameters
    ----------
    cluster : XPUCluster, optional
        By default the active cluster, or the one that was active last.

    Returns
    -------
    ClusterBoard

    Raises
    ------
    NoClusterError
        If this process has had no cluster.
    """
    return ClusterBoard(latest_cluster() if cluster is None else cluster)


class ClusterBoard(Displayed, Listed):
    """The board of a cluster. A notebook shows it live, in JupyterLab in a panel; `str` makes text of it.

    Attributes
    ----------
    cluster : XPUCluster
    history : History
        The calls of this process on the cluster. Its `to_csv` exports them.
    """

    _internal = frozenset(
        {"engines", "find_names", "keep", "latest", "now", "running", "sample", "utilisation", "with_timelines"}
    )

    def __init__(self, cluster: XPUCluster) -> None:
        self.cluster = cluster
        self.history: History = cluster.history
        self.utilisation: Utilisation | None = None
        self.named: Names | None = None  # the names on the ranks, after `find_names`
        self._kept: dict[int, Timeline] = {}

    def timeline(self, call: int | None = None) -> Timeline:
        """Return the timeline of a call: the phases of each engine by iteration, or the activities of a cell.

        It has the last thousand iterations; those of engines of other hosts come half a second later. A ``%%xpu`` cell
        has one if its activities were measured: by the board, or by ``%%xpu_profile``.

        Parameters
        ----------
        call : int, optional
            Number of the call in the history; by default the latest call with a timeline.

        Returns
        -------
        Timeline
            It exports itself: `Timeline.to_csv`, `Timeline.to_trace` for Perfetto, and `Timeline.to_png`.
        """
        calls = [each for each in self.history.calls[::-1] if call in (None, each.number)]
        found = (timeline for each in calls if len(timeline := self._timeline_of(each)))
        return next(found, of_iterations(calls[0].title if calls else "no call", {}))

    def latest(self) -> int:
        """Return the number of the latest call with a timeline; 0 if there is none."""
        return next((each.number for each in self.history.calls[::-1] if len(self._timeline_of(each))), 0)

    def with_timelines(self) -> Iterator[Called]:
        """Return the last calls with a timeline, from the latest to the oldest."""
        for each in self.history.calls[: -_TIMELINES - 1 : -1]:
            if len(self._timeline_of(each)):
                yield each

    def keep(self) -> None:
        """Keep the timelines of the calls that have ended, before the engines write over their iterations."""
        kept: dict[int, Timeline] = {}
        for call in (call for call in self.history.calls[-_TIMELINES:] if call.state != "running"):
            found = self._timeline_of(call)
            if call.number in self._kept and self._is_late(call) and len(now := self._look_up(call)) > len(found):
                found = now
            kept[call.number] = found
        self._kept = kept

    def _is_late(self, call: Called) -> bool:
        """Return whether iterations of a call that has ended may still come from other hosts."""
        span = call.report.span if call.report is not None else None
        if span is None or time.perf_counter() - span[1] > _LATE:
            return False
        return not all(fact.here for fact in self.cluster.facts)

    def _timeline_of(self, call: Called) -> Timeline:
        return kept if (kept := self._kept.get(call.number)) is not None else self._look_up(call)

    def _look_up(self, call: Called) -> Timeline:
        if call.usage is not None:
            return of_cell(call.usage)
        shared, report = self.cluster.engines.board, call.report
        if shared is None or report is None or (span := report.span) is None:
            return of_iterations(call.title, {})
        if report.finished and not report.iterations:  # without a look at the rings for each prediction
            return of_iterations(call.title, {})
        rings = {}
        for rank in range(self.cluster.size):
            ring = shared.iterations(rank)
            mine = (ring["client"] == os.getpid()) & (ring["ended"] >= span[0]) & (ring["ended"] <= span[1])
            rings[rank] = ring[mine]
        return of_iterations(call.title, rings)

    def find_names(self) -> Names:
        """Ask the ranks for their names, which all forms of the board then show."""
        self.named = self.cluster.names()
        return self.named

    def sample(self) -> None:
        """Take a sample of the use of the engines' processors and devices."""
        shared, facts = self.cluster.engines.board, self.cluster.facts
        if shared is None:
            self.utilisation = None
            return
        pids = [fact.pid if fact.here else 0 for fact in facts]
        if self.utilisation is None or self.utilisation.pids != pids:
            cores = [len(fact.cores) for fact in facts]
            self.utilisation = Utilisation(pids, cores, [fact.device.device_type == "gpu" for fact in facts])
        elsewhere = {
            fact.rank: (float(record["read"]), float(record["used"]), float(record["memory"]))
            for fact, record in zip(facts, shared.ranks, strict=True)
            if not fact.here and record["read"]
        }
        self.utilisation.sample([int(record["device_bytes"]) for record in shared.ranks], elsewhere)

    def engines(self) -> Html:
        """Return the table of the engines with the curves of the last minutes, in HTML."""
        rows = [
            [str(engine.rank), _state(engine), engine.device, *self._curves(engine)]
            for engine in self.cluster.status().engines
        ]
        minutes = f"{LENGTH * PACE / 60:.0f} minutes"
        caption = f"Use of processor or device, and memory, over the last {minutes}"
        return table_html(_ENGINES, rows, "rllll", caption) if rows else Html("<div>no engine runs</div>")

    def _curves(self, engine: EngineStatus) -> tuple[str, str]:
        """Return the cells with the use and the memory of an engine."""
        memory = format_size(engine.memory_used)
        samples = tuple(self.utilisation.samples[engine.rank]) if self.utilisation is not None else ()
        if len(samples) < 2:
            return "–", memory
        moments, shares, held = np.array(samples).T
        used = f"{100 * shares[-1]:.0f} %"
        label = f"use, engine {engine.rank}: {used} now, {100 * shares.max():.0f} % at most"
        return (
            "–" if np.isnan(shares).any() else _small(moments, shares, 1.0, used, label),
            _small(
                moments,
                held,
                held.max(),
                format_size(held[-1]),
                f"memory, engine {engine.rank}: {format_size(held[-1])}",
            ),
        )

    def now(self) -> tuple[str, FitRecord | None, list[str]]:
        """Say what runs: the running call on one line, its report if it is of this process, and the calls that wait."""
        shared = self.cluster.engines.board
        mine = self.history.running
        waiting = [report for report in mine if report.message.startswith(WAITING)]
        waits = [f"{report.title}: {report.message}, {format_seconds(report.elapsed)}" for report in waiting]
        if shared is None or not len(busy := shared.ranks[shared.ranks["task"] != 0]):
            return "", None, waits
        record = busy[0]
        name = record["name"].decode()
        runs: FitRecord | None = next((each for each in mine if each not in waiting), None)
        if record["client"] == os.getpid() and runs is not None and name not in USERS:
            return fit_line(runs), runs, waits
        client = this_client() if record["client"] == os.getpid() else f"process {record['client']}"
        where = f", iteration {record['iteration']}" if record["iteration"] else ""
        ranks = f" on {len(busy)} of {len(shared.ranks)} engines" if len(busy) < len(shared.ranks) else ""
        spent = f", {format_seconds(float(record['total']))}" if name not in USERS else ""
        return f"{name} of {client}{where}{ranks}{spent}", None, waits

    def running(self) -> Html:
        """Return what runs and what waits, in HTML."""
        line, report, waits = self.now()
        parts = [f"<div>{escape(line.replace('  ', ' · ') or 'no call runs')}</div>"]
        parts += [progress_html(report)] if report is not None else []
        parts += [f'<div class="xpu-note">{escape(each)}</div>' for each in waits]
        return Html("".join(parts))

    def __str__(self) -> str:
        line, _, waits = self.now()
        timeline = self.timeline()
        rows = [(e.rank, _state(e), e.device, format_size(e.memory_used)) for e in self.cluster.status().engines]
        engines = table_text(("engine", "state", "device", "memory"), rows, "rllr") if rows else "  no engine runs"
        parts = [f"Board of the cluster {self.cluster.label}", engines, f"running: {line or 'no call'}"]
        parts += [f"waiting: {each}" for each in waits]
        parts += [str(self.history), *([str(timeline)] if len(timeline) else [])]
        return "\n".join([*parts, *([str(self.named)] if self.named is not None else [])])

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        timeline = self.timeline()
        body = [self.running(), self.engines(), self.history.html(), *(timeline.html() if len(timeline) else [])]
        names = [self.named._repr_html_()] if self.named is not None else []
        return block("Board of the cluster", [*body, *names], style("report") + style("board"))


def _state(engine: EngineStatus) -> str:
    return engine.state + (f", iteration {engine.iteration}" if engine.iteration else "")


def _small(moments: np.ndarray, values: np.ndarray, most: float, words: str, label: str) -> Html:
    """Draw a small curve over the last minutes, whose right side is now, with its last value beside it."""
    span = LENGTH * PACE
    places = [
        (100 * (1 - (moments[-1] - moment) / span), 100 * (1 - value / (most or 1.0)))
        for moment, value in zip(moments, values, strict=True)
        if moments[-1] - moment <= span
    ]
    svg = f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 100 100" preserveAspectRatio="none">'
    return drawn(
        f'<div class="xpu-small">{svg}{polyline("", places)}</svg><span>{escape(words)}</span></div>', escape(words)
    )
