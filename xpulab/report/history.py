"""All calls of a cluster in this process, from the first to the last: a table, as HTML, text and CSV."""

from __future__ import annotations

import itertools
import json
import os
from collections import deque
from datetime import datetime

from xpulab.names import Listed
from xpulab.report.calls import differing
from xpulab.report.record import FitRecord
from xpulab.report.rendering import (
    Displayed,
    Html,
    block,
    counted,
    escape,
    format_count,
    format_number,
    format_seconds,
    pairs,
    plain,
    table_csv,
    table_html,
    table_text,
    this_client,
    written,
)
from xpulab.report.text import worded
from xpulab.report.usage import CellUsage, Run

__all__ = ["Called", "History"]

_MOST = 300  # calls that are kept; a loop of thousands of fits must not fill the memory of the notebook
_ITERATIONS = 200_000  # iterations of all kept calls together, of which each takes half a kilobyte
_LOOKS = 16  # calls after which these iterations are counted again
_SHOWN = 50  # latest calls in a table
_HEADER = ("call", "parameters that differ", "rows", "iterations", "result", "time", "at", "status")
_ALIGN = "llrrrrll"
_COLUMNS = (
    "call", "name", "part", "parameters", "rows", "features", "iterations", "metric", "value", "seconds", "started",
    "status",
)  # fmt: skip


class Called:
    """One call in the history: that of an estimator, whose report it has, or a user's code on the engines.

    Parameters
    ----------
    number : int
        Number of the call, counted from 1.
    what : FitRecord or Run
    started : datetime
        Start of the call, in local time.

    Attributes
    ----------
    report : FitRecord or None
    usage : CellUsage or None
        What the code did on the engines, if it was measured.
    """

    def __init__(self, number: int, what: FitRecord | Run, started: datetime) -> None:
        self.number, self.started = number, started
        self.report = what if isinstance(what, FitRecord) else None
        self.run = what if isinstance(what, Run) else None

    @property
    def usage(self) -> CellUsage | None:
        """What a user's code did on the engines, if it was measured."""
        return self.run.usage if self.run else None

    @property
    def title(self) -> str:
        """The call, ``"KMeans.fit"``."""
        return plain(self.report.title if self.report else self.run.title if self.run else "")

    @property
    def seconds(self) -> float:
        """Wall time of the call so far."""
        return self.report.elapsed if self.report else self.run.seconds if self.run else 0.0

    @property
    def state(self) -> str:
        """How the call ended, or "running"."""
        return self.report.status if self.report else self.run.state if self.run else ""


class History(Displayed, Listed):
    """The calls of a cluster in this process, of which the last few hundred are kept. Threads may add calls.

    Attributes
    ----------
    total : int
        Number of all calls so far.
    """

    _internal = frozenset({"add", "html", "numbered", "running"})

    def __init__(self) -> None:
        self._calls: deque[Called] = deque(maxlen=_MOST)
        self.total = 0
        self._numbers = itertools.count(1)  # no lock: Ctrl-C could leave it held, and each step here is one of Python's

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def calls(self) -> list[Called]:
        """The calls, from the oldest to the latest."""
        return list(self._calls)

    def add(self, what: FitRecord | Run, started: datetime) -> None:
        """Add a call, with its start in local time."""
        self.total = number = next(self._numbers)
        self._calls.append(Called(number, what, started))
        if number % _LOOKS == 0:
            held = [len(call.report.iterations) if call.report else 0 for call in self.calls]
            while sum(held) > _ITERATIONS and len(held) > 1:
                del held[0]
                self._calls.popleft()

    def numbered(self, number: int) -> Called | None:
        """Return the call of this number; None if it is not kept."""
        return next((call for call in self.calls if call.number == number), None)

    @property
    def running(self) -> list[FitRecord]:
        """The reports of the calls that run or wait."""
        return [call.report for call in self.calls if call.report is not None and call.state == "running"]

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a line for each call, with all its parameters as JSON.

        Parameters
        ----------
        path : path-like, optional
            File to write them to.

        Returns
        -------
        str
        """
        lines: list[list[object]] = []
        for call in self.calls:
            report = call.report
            metric, value = (report.objective if report is not None else None) or ("", "")
            about = (
                (
                    report.part,
                    json.dumps(report.parameters),
                    report.n_samples,
                    report.n_features,
                    len(report.iterations),
                )
                if report is not None
                else ("", "{}", "", "", "")
            )
            result = (metric, value, f"{call.seconds:.6f}", call.started.isoformat(timespec="seconds"), call.state)
            lines.append([call.number, call.title, *about, *result])
        return written(table_csv(_COLUMNS, lines), path)

    def __str__(self) -> str:
        rows = self._rows(self.calls[-_SHOWN:])
        return "\n".join([self._title, *([table_text(_HEADER, rows, _ALIGN)] if rows else [])])

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        return block("History", [self.html()])

    def html(self, chosen: bool = False) -> Html:
        """Return the table in HTML; with `chosen`, each call of an estimator has a box by which it is chosen."""
        calls = self.calls[-_SHOWN:][::-1]
        if not calls:
            return Html(f"<div>{self._title}</div>")
        rows: list[list[object]] = [list(row) for row in self._rows(calls)]
        for call, row in zip(calls, rows, strict=True):
            if chosen and call.report is not None:
                label = f"compare call {call.number}, {call.title}"
                box = f'<input type="checkbox" data-call="{call.number}" aria-label="{escape(label)}"> '
                row[0] = Html(f"{box}{escape(row[0])}")
        return table_html(_HEADER, rows, _ALIGN, self._title)

    @property
    def _title(self) -> str:
        shown = f"; the last {_SHOWN}" if len(self._calls) > _SHOWN else ""
        return f"{counted(self.total, 'call')} of {this_client()} on the cluster{shown}"

    def _rows(self, calls: list[Called]) -> list[list[str]]:
        reports = [call.report for call in calls if call.report is not None]
        differ = iter(differing(reports))
        rows = []
        for call in calls:
            report = call.report
            parameters = next(differ) if report is not None else {}
            objective = report.objective if report is not None else None
            rows.append(
                [
                    f"{call.number}  {call.title}",
                    "; ".join(filter(None, [plain(report.part) if report is not None else "", pairs(parameters)])),
                    f"{format_count(report.n_samples)} × {report.n_features}" if report is not None else "",
                    str(len(report.iterations) or "") if report is not None else "",
                    f"{worded(objective[0])} {format_number(objective[1])}" if objective is not None else "",
                    format_seconds(call.seconds),
                    call.started.strftime("%H:%M:%S"),
                    call.state,
                ]
            )
        return rows
