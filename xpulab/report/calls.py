"""Several calls of estimators as one table, with a row for each call and the parameters that differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from xpulab.report.html import as_of_html, css, fit_parts, folded_parts, message_html
from xpulab.report.progress import FIRST
from xpulab.report.record import FitRecord
from xpulab.report.rendering import (
    Displayed,
    as_of,
    block,
    counted,
    format_number,
    format_seconds,
    pairs,
    plain,
    table_html,
    table_text,
)
from xpulab.report.searches import Search
from xpulab.report.text import fit_text, worded

__all__ = ["Calls", "differing"]

#: Largest number of rows of the table, and largest number of reports below the table. They keep a loop of thousands of
#: fits from filling a notebook.
_ROWS, _WHOLE = 100, 20


class Calls(Displayed):
    """The calls of one cell, in the order in which they were added. A search is one entry in place of its calls.

    Attributes
    ----------
    over : bool
        Whether the table is drawn for the last time. Only then the reports are shown below it, because each new
        drawing would fold them again.
    folded : bool
        Whether the report of the only call shows its first line, which unfolds.
    """

    def __init__(self) -> None:
        self.over = self.folded = False
        self._entries: deque[FitRecord | Search] = deque(maxlen=_ROWS)
        self._first = 1  # number of the first row
        self._before = 0.0  # seconds of the calls whose rows were removed
        self._quick = 0  # number of calls that have no row, because they were too quick for a view

    def __len__(self) -> int:
        return self._first + len(self._entries) - 1

    def add(self, report: FitRecord) -> None:
        """Add a call, if it was not added before."""
        entry: FitRecord | Search = report
        if isinstance(report.search, Search):
            entry = report.search
            entry.add(report)
        if any(each is entry for each in self._entries):
            return
        if self._entries and isinstance(self._entries[-1], Search):
            self._entries[-1].end()
        if len(self._entries) == _ROWS:
            self._first += 1
            self._before += self._entries[0].elapsed
        self._entries.append(entry)

    def leave_out(self, report: FitRecord) -> None:
        """Count a call that gets no row."""
        if report.search is None:
            self._quick += 1
        else:
            report.search.count(report)

    def end(self) -> None:
        """Note that no call follows."""
        self.over = True
        for entry in self._entries:
            if isinstance(entry, Search):
                entry.end()

    @property
    def running(self) -> bool:
        """Whether one of the calls runs."""
        return any(entry.status == "running" for entry in self._entries)

    @property
    def tabled(self) -> bool:
        """Whether the calls are shown as a table. If not, the report of the only call is shown."""
        return len(self) > 0 and self._alone is None

    def fold(self) -> bool:
        """Have the report of the only call fold, if the call has finished; return whether it does."""
        alone = self._alone if len(self) else None
        self.folded = isinstance(alone, FitRecord) and alone.status in ("finished", "not converged")
        return self.folded

    def __str__(self) -> str:
        if self._alone is not None:
            return str(self._alone) if isinstance(self._alone, Search) else fit_text(self._alone)
        header, align, rows, rest = self._table()
        lines = [f"{self._title}{rest}", table_text(header, rows, align)]
        lines += [f"  {plain(text)}" for text in (*self._messages(), self._left_out()) if text]
        lines += [f"  {as_of(entry.later)}" for entry in self._entries if entry.status == "running"][:1]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if isinstance(self._alone, Search):
            return self._alone._repr_html_()
        if self._alone is not None:
            parts_of = folded_parts if self.folded else fit_parts
            return block(self._alone.headline, parts_of(self._alone), css())
        header, align, rows, rest = self._table()
        parts = [table_html(header, rows, align, f"{self._title}{rest}"), *map(message_html, self._messages())]
        parts.append(message_html(self._left_out()))
        parts.append(as_of_html(*self._entries))
        if self.over:
            latest = list(enumerate(self._entries, self._first))[-_WHOLE:]
            parts.append(f'<div class="xpu-whole">{"".join(_folded(*each) for each in latest)}</div>')
        return block(self._title, parts, css())

    @property
    def _alone(self) -> FitRecord | Search | None:
        """The only call, if its whole report is shown."""
        first = self._entries[0]
        return first if len(self) == 1 and first.display == "full" else None

    @property
    def _title(self) -> str:
        seconds = format_seconds(self._before + sum(entry.elapsed for entry in self._entries))
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
            for number, entry in enumerate(self._entries, self._first)
            for line in entry.message.splitlines()[:1]
        ]

    def _table(self) -> tuple[list[str], str, list[list[str]], str]:
        """Return the header, the alignment and the rows; and, for the title, the part of it that all calls share."""
        entries = list(self._entries)
        scales = [entry.scale for entry in entries]
        differ = iter(differing(each for each in entries if isinstance(each, FitRecord)))
        about = [entry.result if isinstance(entry, Search) else pairs(next(differ)) for entry in entries]
        columns: list[tuple[str, str, list[str]]] = [
            ("call", "l", [f"{n}  {plain(entry.title)}" for n, entry in enumerate(entries, self._first)]),
            ("part", "l", [plain(entry.part) for entry in entries]),
            ("parameters that differ", "l", about),
            ("data", "r", scales if len(set(scales)) > 1 else []),
            ("iterations", "r", [str(len(entry.iterations) or "") for entry in entries]),
            *_objectives(entries),
            ("time", "r", [format_seconds(entry.elapsed) for entry in entries]),
            ("longest", "l", [_longest(entry) for entry in entries]),
            ("status", "l", [entry.status for entry in entries]),
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


def _objectives(reports: Sequence[FitRecord | Search]) -> list[tuple[str, str, list[str]]]:
    """Return a column (title, alignment, cells) for each metric that an estimator minimises."""
    found = [report.objective for report in reports]
    names = dict.fromkeys(each[0] for each in found if each is not None)
    return [
        (worded(name), "r", [format_number(each[1]) if each is not None and each[0] == name else "" for each in found])
        for name in names
    ]


def _longest(report: FitRecord | Search) -> str:
    if report.longest is None:
        return ""
    name, seconds = report.longest
    return f"{name}, {format_seconds(seconds)}"


def _folded(number: int, entry: FitRecord | Search) -> str:
    parts = [*entry.parts(), *entry.folded()] if isinstance(entry, Search) else fit_parts(entry)
    return f"<details><summary>report of {number}</summary>{''.join(parts)}</details>"
