"""When each engine was in which phase: the iterations of a call, or the activities of a cell, as lanes of time."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from xpulab.report.figure import COLOURS, for_any_ground
from xpulab.report.record import WORK
from xpulab.report.rendering import (
    Displayed,
    Html,
    block,
    counted,
    format_count,
    format_seconds,
    plain,
    table_csv,
    table_html,
    table_text,
    written,
)
from xpulab.report.usage import CellUsage, RankUsage
from xpulab.sharing.board import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Timeline", "kind_of", "of_cell", "of_iterations"]

_HEADER = ("engine", "iterations", "time", "work", "communicate", "wait", "other", "slowest in")
_OF_CELL = ("engine", "activities", "time", "kernels", "transfers", "MPI", "wait", "other")
#: Kind of a phase of a cell, in the order in which phases are drawn -> name of its colour.
_KINDS = {"transfer": "transfer", "kernel": "kernel", "wait": "wait", "MPI": "communicate"}


def kind_of(phase: str) -> str:
    """Return the name of the colour of a phase, in `COLOURS`: an activity of a cell has that of its kind."""
    return phase if phase in COLOURS else _KINDS.get(phase.split()[0], "other")


def _png(figure: Figure) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


@dataclass(frozen=True, repr=False)
class Timeline(Displayed):
    """The phases of each engine in each iteration of a call.

    Of an iteration the seconds of each phase are known, not their moments: they are drawn one after the other, in the
    order of `phases`. A cell on the engines has a span for each launch of a kernel, transfer, and call of MPI that was
    measured, at its moment, the latest thousand of each rank; the last span of a rank is the cell itself.

    Attributes
    ----------
    title : str
        The call, ``"KMeans.fit"``.
    phases : tuple of str
        Names of the columns of `seconds`.
    rank, run, iteration : numpy.ndarray of int of shape (n,)
        The engine, and the run and the iteration, counted from 1, of each span. In a cell the activities are counted,
        and the cell itself has the number 0.
    start : numpy.ndarray of float of shape (n,)
        Seconds from the first start to that of the span.
    seconds : numpy.ndarray of float of shape (n, len(phases))
        Seconds of the span by phase.
    cell : CellUsage or None
        What was measured of a cell.
    """

    title: str
    phases: tuple[str, ...]
    rank: npt.NDArray[np.int64]
    run: npt.NDArray[np.int64]
    iteration: npt.NDArray[np.int64]
    start: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    cell: CellUsage | None = None

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def engines(self) -> list[int]:
        """The ranks that have spans."""
        return [int(rank) for rank in np.unique(self.rank)]

    def of_kind(self, *kinds: str) -> npt.NDArray[np.float64]:
        """Return the seconds of each span in phases of these kinds.

        Parameters
        ----------
        *kinds : str
            Such as "transfer", "kernel", "communicate" and "wait".

        Returns
        -------
        numpy.ndarray of float of shape (n,)
        """
        chosen = [kind_of(phase) in kinds for phase in self.phases]
        sums: npt.NDArray[np.float64] = self.seconds[:, chosen].sum(axis=1)
        return sums

    @property
    def _starts(self) -> npt.NDArray[np.float64]:
        """Seconds from the first start to that of each phase, which are drawn one after the other."""
        starts: npt.NDArray[np.float64] = self.start[:, None] + np.cumsum(self.seconds, axis=1) - self.seconds
        return starts

    @property
    def slowest(self) -> npt.NDArray[np.int64]:
        """For each span the engine with the most work (the phases in `WORK`) in its iteration."""
        keys = np.stack([self.run, self.iteration], axis=1)
        _, group = np.unique(keys, axis=0, return_inverse=True)
        group = group.reshape(-1)
        work = self.of_kind(*WORK)
        order = np.lexsort((work, group))  # the last of each group has the most work
        found = np.zeros(group.max(initial=-1) + 1, np.int64)
        found[group[order]] = self.rank[order]
        return found[group]

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a line for each engine and iteration, with the start and the seconds by phase.

        Parameters
        ----------
        path : path-like, optional
            File to write them to.

        Returns
        -------
        str
        """
        spans = zip(self.rank, self.run, self.iteration, self.start, self.seconds, strict=True)
        lines = ([*which, f"{start:.9f}", *(f"{each:.9f}" for each in seconds)] for *which, start, seconds in spans)
        return written(table_csv(("engine", "run", "iteration", "start", *self.phases), lines), path)

    def to_trace(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the phases in the JSON trace event format [1]_, which https://ui.perfetto.dev shows.

        Each engine is a thread, and each phase of an iteration a complete event.

        Parameters
        ----------
        path : path-like, optional
            File to write the trace to.

        Returns
        -------
        str

        References
        ----------
        .. [1] Trace Event Format, Google, section "JSON Object Format".
        """
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": plain(self.title)}}
        ]
        for rank in self.engines:
            about = {"ph": "M", "pid": 1, "tid": rank}
            events.append({**about, "name": "thread_name", "args": {"name": f"engine {rank}"}})
            events.append({**about, "name": "thread_sort_index", "args": {"sort_index": rank}})
        starts = self._starts
        for n, p in zip(*np.nonzero(self.seconds > 0), strict=True):
            events.append(
                {
                    "ph": "X",
                    "pid": 1,
                    "tid": int(self.rank[n]),
                    "name": self.phases[p],
                    "cat": kind_of(self.phases[p]),
                    "ts": round(1e6 * float(starts[n, p]), 3),
                    "dur": round(1e6 * float(self.seconds[n, p]), 3),
                    "args": {"run": int(self.run[n]), "iteration": int(self.iteration[n])},
                }
            )
        return written(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), path)

    def plot(self) -> Figure:
        """Draw a lane for each engine, with the phases of its iterations one after the other.

        Returns
        -------
        matplotlib.figure.Figure
        """
        # Not by pyplot, which belongs to the user's thread.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 1.6 + 0.5 * len(self.engines)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        starts = self._starts
        for p, phase in enumerate(self.phases):
            colour, hatch = COLOURS[kind_of(phase)]
            for rank in self.engines:
                mine = (self.rank == rank) & (self.seconds[:, p] > 0)
                spans = list(zip(starts[mine, p], self.seconds[mine, p], strict=True))
                label = phase if rank == self.engines[0] else None
                axes.broken_barh(
                    spans, (rank - 0.4, 0.8), facecolor=colour, hatch=hatch if len(self) < 200 else "", label=label
                )
        axes.set(xlabel="seconds", ylabel="engine", title=plain(self.title), yticks=self.engines)
        axes.invert_yaxis()
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.08), ncols=6, frameon=False, fontsize="small")
        for_any_ground(figure)
        figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]  # IPython draws only those of pyplot
        return figure

    def to_png(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return the figure of `plot` as PNG.

        Parameters
        ----------
        path : path-like, optional
            File to write it to.

        Returns
        -------
        bytes
        """
        png = _png(self.plot())
        if path is not None:
            Path(path).write_bytes(png)
        return png

    def __str__(self) -> str:
        header, table = self._table()
        return "\n".join([self._title, *([table_text(header, table, "r" * len(header))] if len(self) else [])])

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        return block("Timeline", self.html())

    def html(self) -> list[Html]:
        """Return the table of the engines, in HTML."""
        if not len(self):
            return [Html(f"<div>{self._title}</div>")]
        header, table = self._table()
        return [table_html(header, table, "r" * len(header), self._title)]

    @property
    def _title(self) -> str:
        n = len(np.unique(np.stack([self.run, self.iteration], axis=1), axis=0))
        iterations = "" if self.cell else f"{counted(n, 'iteration')} on "
        return f"Timeline of {plain(self.title)}: {iterations}{counted(len(self.engines), 'engine')}"

    def _table(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """Return the header, and a row for each engine.

        A row has mean seconds of an iteration by kind, and how often the engine was the slowest; or the sums of a cell.
        """
        if self.cell is not None:
            return _OF_CELL, [_row(rank, measured) for rank, measured in self.cell.ranks.items()]
        parts = [self.of_kind(*kinds) for kinds in (WORK, ("communicate",), ("wait",), ("other",))]
        slowest = self.slowest
        table = []
        for rank in self.engines:
            mine = self.rank == rank
            means = [format_seconds(float(part[mine].mean())) for part in parts]
            total = format_seconds(float(self.seconds[mine].sum(axis=1).mean()))
            times = int((slowest[mine] == rank).sum()) if len(self.engines) > 1 else 0
            table.append([str(rank), str(int(mine.sum())), total, *means, str(times)])
        return _HEADER, table


def _row(rank: int, measured: RankUsage) -> list[str]:
    """Return the row of an engine in the table of a cell."""
    kernels, transfers, mpi = map(measured.of, ("kernel", "transfer", "MPI"))
    other = max(0.0, measured.seconds - kernels - transfers - mpi)
    seconds = (measured.seconds, kernels, transfers, mpi - measured.wait, measured.wait, other)
    count = sum(each.count for each in measured.activities)
    return [str(rank), format_count(count), *map(format_seconds, seconds)]


def of_iterations(title: str, rings: Mapping[int, npt.NDArray[np.void]]) -> Timeline:
    """Return the timeline of the iterations that engines have noted; see `Board.iterations`.

    The first iteration of a task begins with the task, and has the seconds in which rows came. An iteration whose
    predecessor is not in the ring any more is left out, because its seconds are not known.

    Parameters
    ----------
    title : str
    rings : dict of int to numpy.ndarray
        Rank -> its iterations, of one or more tasks.
    """
    parts: list[Timeline] = []
    for rank, ring in rings.items():
        follows = np.zeros(len(ring), bool)
        follows[1:] = ring["task"][1:] == ring["task"][:-1]
        first = ~follows & (ring["iteration"] == 1) & (ring["run"] == 1)
        before = np.roll(ring["seconds"], 1, axis=0) * follows[:, None]
        seconds = ring["seconds"] - before
        lasted = ring["total"] - np.roll(ring["total"], 1) * follows
        other = np.maximum(0.0, lasted - seconds.sum(axis=1))
        chosen = follows | first
        columns = np.concatenate([np.maximum(seconds, 0.0), other[:, None]], axis=1)[chosen]
        parts.append(
            Timeline(
                title,
                (*PHASES, "other"),
                np.full(int(chosen.sum()), rank),
                ring["run"][chosen].astype(np.int64),
                ring["iteration"][chosen].astype(np.int64),
                (ring["ended"] - lasted)[chosen],
                columns,
            )
        )
    return _joined(title, (*PHASES, "other"), parts)


def of_cell(usage: CellUsage) -> Timeline:
    """Return the timeline of a ``%%xpu`` cell: its kernels, transfers and calls of MPI at their moments."""
    names: dict[str, str] = {}  # name of a phase -> kind
    for span in (span for measured in usage.ranks.values() for span in measured.spans):
        if span.wait:
            names[f"wait in {span.name}"] = "wait"
        names[f"{span.kind} {span.name}"] = span.kind
    order = list(_KINDS)
    phases = ("cell", *sorted(names, key=lambda name: order.index(names[name])))  # waits come before their calls
    column = {name: number for number, name in enumerate(phases)}
    about: list[tuple[int, int]] = []
    starts: list[float] = []
    seconds: list[npt.NDArray[np.float64]] = []

    def add(rank: int, number: int, start: float, **lasted: float) -> None:
        about.append((rank, number))
        starts.append(start)
        seconds.append(np.zeros(len(phases)))
        for name, each in lasted.items():
            seconds[-1][column[name]] = each

    for rank, measured in usage.ranks.items():
        for number, span in enumerate(measured.spans, 1):
            waited = {f"wait in {span.name}": span.wait} if span.wait else {}
            add(rank, number, span.start, **{f"{span.kind} {span.name}": span.seconds - span.wait}, **waited)
        add(rank, 0, measured.start, cell=measured.seconds)
    ranks, numbers = np.array(about, np.int64).reshape(-1, 2).T
    ones = np.ones(len(ranks), np.int64)
    table = np.array(seconds).reshape(-1, len(phases))
    return Timeline(usage.title, phases, ranks, ones, numbers, np.array(starts), table, usage)


def _joined(title: str, phases: tuple[str, ...], parts: Sequence[Timeline]) -> Timeline:
    """Join the lanes of the engines; their time begins with the first span."""
    if not any(map(len, parts)):
        nothing = np.zeros(0, np.int64)
        return Timeline(title, phases, nothing, nothing, nothing, np.zeros(0), np.zeros((0, len(phases))))
    start = np.concatenate([part.start for part in parts])
    return Timeline(
        title,
        phases,
        np.concatenate([part.rank for part in parts]),
        np.concatenate([part.run for part in parts]),
        np.concatenate([part.iteration for part in parts]),
        start - start.min(),
        np.concatenate([part.seconds for part in parts]),
    )
