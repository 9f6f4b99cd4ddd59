"""Several calls of estimators as one table, with a row for each call and the parameters that differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xpulab.report.html import as_of_html, css, fit_parts, message_html
from xpulab.report.progress import FIRST
from xpulab.report.record import FitRecord
from xpulab.report.rendering import (
    Displayed,
    as_of,
    block,
    counted,
    format_number,
    format_seconds,
    plain,
    table_html,
    table_text,
)
from xpulab.report.text import fit_text, worded

__all__ = ["Calls", "differing", "pairs"]

#: Largest number of rows of the table, and largest number of reports below the table. They keep a loop of thousands of
#: fits from filling a notebook.
_ROWS, _WHOLE = 100, 20


class Calls(Displayed):
    """The calls of one cell, in the order in which they were added.

    Attributes
    ----------
    over : bool
        Whether the table is drawn for the last time. Only then the reports are shown below it, because each new
        drawing would fold them again.
    """

    def __init__(self) -> None:
        self.over = False
        self._reports: deque[FitRecord] = deque(maxlen=_ROWS)
        self._first = 1  # number of the first row
        self._before = 0.0  # seconds of the calls whose rows were removed
        self._quick = 0  # number of calls that have no row, because they were too quick for a view

    def __len__(self) -> int:
        return self._first + len(self._reports) - 1

    def add(self, report: FitRecord) -> None:
        """Add a call, if it was not added before."""
        if any(each is report for each in self._reports):
            return
        if len(self._reports) == _ROWS:
            self._first += 1
            self._before += self._reports[0].elapsed
        self._reports.append(report)

    def leave_out(self) -> None:
        """Count a call that gets no row."""
        self._quick += 1

    @property
    def running(self) -> bool:
        """Whether one of the calls runs."""
        return any(report.status == "running" for report in self._reports)

    @property
    def tabled(self) -> bool:
        """Whether the calls are shown as a table. If not, the report of the only call is shown."""
        return len(self) > 0 and self._alone is None

    def __str__(self) -> str:
        if self._alone is not None:
            return fit_text(self._alone)
        header, align, rows, rest = self._table()
        lines = [f"{self._title}{rest}", table_text(header, rows, align)]
        lines += [f"  {plain(text)}" for text in (*self._messages(), self._left_out()) if text]
        lines += [f"  {as_of(report.later)}" for report in self._reports if report.status == "running"][:1]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self._alone is not None:
            return block(self._alone.headline, fit_parts(self._alone), css())
        header, align, rows, rest = self._table()
        parts = [table_html(header, rows, align, f"{self._title}{rest}"), *map(message_html, self._messages())]
        parts.append(message_html(self._left_out()))
        parts.append(as_of_html(*self._reports))
        if self.over:
            latest = list(enumerate(self._reports, self._first))[-_WHOLE:]
            parts.append(f'<div class="xpu-whole">{"".join(_folded(*each) for each in latest)}</div>')
        return block(self._title, parts, css())

    @property
    def _alone(self) -> FitRecord | None:
        """The only call, if its whole report is shown."""
        first = self._reports[0]
        return first if len(self) == 1 and first.display == "full" else None

    @property
    def _title(self) -> str:
        seconds = format_seconds(self._before + sum(report.elapsed for report in self._reports))
        earlier = f"; the last {_ROWS} of them" if self._first > 1 else ""
        return f"{counted(len(self), 'call')} of estimators, {seconds}{earlier}"

    def _left_out(self) -> str:
        """Say which calls and reports are not shown, and how to see all."""
        folded = len(self) - _WHOLE if self.over else 0
        said = [f"{counted(self._quick, 'call')} of less than {FIRST:g} s"] if self._quick else []
        said += [f"the reports of the first {counted(folded, 'call')}"] if folded > 0 else []
        if not said:
            return ""
        return f"Not shown: {', and '.join(said)}; to see them, begin the cell with %%xpu_profile"

    def _messages(self) -> list[str]:
        """Return the messages of the calls that still run or that failed."""
        return [
            f"{number}: {line}"
            for number, report in enumerate(self._reports, self._first)
            for line in report.message.splitlines()[:1]
        ]

    def _table(self) -> tuple[list[str], str, list[list[str]], str]:
        """Return the header, the alignment and the rows; and, for the title, the part of it that all calls share."""
        reports = list(self._reports)
        scales = [report.scale for report in reports]
        columns: list[tuple[str, str, list[str]]] = [
            ("call", "l", [f"{n}  {plain(r.title)}" for n, r in enumerate(reports, self._first)]),
            ("part", "l", [plain(report.part) for report in reports]),
            ("parameters that differ", "l", [pairs(each) for each in differing(reports)]),
            ("data", "r", scales if len(set(scales)) > 1 else []),
            ("iterations", "r", [str(len(report.iterations) or "") for report in reports]),
            *_objectives(reports),
            ("time", "r", [format_seconds(report.elapsed) for report in reports]),
            ("longest", "l", [_longest(report) for report in reports]),
            ("status", "l", [report.status for report in reports]),
        ]
        shown = [column for column in columns if any(column[2])]
        header = [name for name, *_ in shown]
        rows = [list(row) for row in zip(*(cells for *_, cells in shown), strict=True)]
        return header, "".join(align for _, align, _ in shown), rows, f"; {scales[0]}" if len(set(scales)) == 1 else ""


def differing(reports: Iterable[FitRecord]) -> list[dict[str, Any]]:
    """Return for each call the parameters that differ between the calls of its estimator."""
    reports = list(reports)
    values: dict[tuple[str, str], set[str]] = {}
    for report in reports:
        for name, value in report.parameters.items():
            values.setdefault((report.estimator, name), set()).add(repr(value))
    return [{n: v for n, v in r.parameters.items() if len(values[r.estimator, n]) > 1} for r in reports]


def pairs(parameters: Mapping[str, object]) -> str:
    """Return parameters on one line, ``"n_clusters=8, tol=0.01"``."""
    return ", ".join(f"{name}={plain(value)}" for name, value in parameters.items())


def _objectives(reports: Sequence[FitRecord]) -> list[tuple[str, str, list[str]]]:
    """Return a column (title, alignment, cells) for each metric that an estimator minimises."""
    found = [report.objective for report in reports]
    names = dict.fromkeys(each[0] for each in found if each is not None)
    return [
        (worded(name), "r", [format_number(each[1]) if each is not None and each[0] == name else "" for each in found])
        for name in names
    ]


def _longest(report: FitRecord) -> str:
    if report.longest is None:
        return ""
    name, seconds = report.longest
    return f"{name}, {format_seconds(seconds)}"


def _folded(number: int, report: FitRecord) -> str:
    return f"<details><summary>report of {number}</summary>{''.join(fit_parts(report))}</details>"
