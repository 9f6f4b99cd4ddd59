"""A search or a cross-validation of scikit-learn's, as one entry in place of its many calls."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from xpulab.report.html import as_of_html, bar, css, facts_html, fit_parts, head, message_html
from xpulab.report.record import FitRecord
from xpulab.report.rendering import (
    Displayed,
    Html,
    block,
    counted,
    format_number,
    format_seconds,
    pairs,
    plain,
    table_html,
    table_text,
)
from xpulab.report.task import Display, Status

__all__ = ["Search"]

#: Largest number of calls that are kept; the others are counted.
_KEPT = 100
_HEADER = ("call", "calls", "time", "mean")


class Search(Displayed):
    """The calls of one search or cross-validation: how far it is, its best score, and the seconds by estimator.

    Parameters
    ----------
    title : str
        The user's call, ``"GridSearchCV.fit"`` or ``"cross_val_score"``.

    Attributes
    ----------
    title : str
    done, total : int
        Number of fits that have ended, and of all; a total of 0 is not known.
    best : tuple of float and mapping, or None
        The best mean score of the candidates whose folds have all ended, and their parameters; of a cross-validation
        the mean of the folds that have ended, and no parameters.
    ask_best : callable
        Returns the best mean score and its parameters at the end, or None if they are not known.
    """

    #: A search has neither; the table of a cell's calls asks for them.
    iterations: tuple[Any, ...] = ()
    objective = longest = None
    lasting = True
    later = "for its latest call, type: %xpu_cluster last"

    def __init__(self, title: str) -> None:
        self.title = title
        self.done = self.total = 0
        self.best: tuple[float, Mapping[str, Any]] | None = None
        self._over = False
        self._reports: deque[FitRecord] = deque()
        self._spent: dict[str, tuple[int, float]] = {}  # calls that are not kept: their number and seconds by title
        self._began = time.perf_counter()
        self._scores: dict[int | None, list[float]] = {}
        self._place: tuple[int | None, int, Mapping[str, Any]] = (None, 1, {})
        self.ask_best: Callable[[], tuple[float, Mapping[str, Any]] | None] = lambda: None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the search out of copies and pickles of an estimator, whose report is a part of it."""
        return type(None), ()

    def reach(
        self,
        done: int,
        total: int,
        candidate: int | None = None,
        folds: int = 1,
        parameters: Mapping[str, Any] | None = None,
        score: float | None = None,
    ) -> None:
        """Note which fit begins, or goes on.

        Parameters
        ----------
        done, total : int
            Number of the fits before it, and of all.
        candidate : int, optional
            Number of its candidate; None if there are no candidates.
        folds : int
            Number of fits of each candidate.
        parameters : mapping, optional
            Those of the candidate.
        score : float, optional
            Score of the fit before it.
        """
        if done < self.done:  # a halving search begins another round, with more rows
            self._scores, self.best = {}, None
        elif done > self.done and score is not None:
            self.score(score, *self._place)
        self.done, self.total = done, total
        self._place = candidate, folds, parameters or {}

    def score(self, score: float, candidate: int | None, folds: int, parameters: Mapping[str, Any]) -> None:
        """Note the score of a fit; the parameters are those of `reach`."""
        scores = self._scores.setdefault(candidate, [])
        scores.append(score)
        mean = sum(scores) / len(scores)
        if candidate is None:
            self.best = mean, {}
        elif len(scores) == folds and (self.best is None or mean > self.best[0]):
            self.best = mean, parameters

    def add(self, report: FitRecord) -> None:
        """Add a call, if it was not added before."""
        if not self._reports:
            self._began = report.span[0] if report.span is not None else self._began
        if self._has(report):
            return
        if len(self._reports) == _KEPT:
            self._leave_out(self._reports.popleft())
        self._reports.append(report)
        self._over = False

    def count(self, report: FitRecord) -> None:
        """Count a call that was too quick for a view, unless it was added before."""
        if not self._has(report):
            self._leave_out(report)

    def _has(self, report: FitRecord) -> bool:
        return any(each is report for each in self._reports)

    def _leave_out(self, report: FitRecord) -> None:
        calls, seconds = self._spent.get(report.title, (0, 0.0))
        self._spent[report.title] = calls + 1, seconds + report.elapsed

    def end(self) -> None:
        """Note that nothing of the search follows."""
        self._over = True
        if self.status == "finished":
            self.best = self.ask_best() or self.best

    def __len__(self) -> int:
        return sum(calls for calls, _ in self._totals().values())

    def _totals(self) -> dict[str, tuple[int, float]]:
        """Return the number and the seconds of the calls by title, the longest first."""
        found = dict(self._spent)
        for report in tuple(self._reports):
            calls, seconds = found.get(report.title, (0, 0.0))
            found[report.title] = calls + 1, seconds + report.elapsed
        return dict(sorted(found.items(), key=lambda each: -each[1][1]))

    @property
    def _latest(self) -> FitRecord | None:
        return self._reports[-1] if self._reports else None

    @property
    def display(self) -> Display:
        """How views show the search: as its latest call."""
        return self._latest.display if self._latest is not None else "full"

    @property
    def part(self) -> str:
        """Where the latest call is, such as ``"candidate 3 of 12, fold 2 of 5"``; the number of calls at the end."""
        if self.status == "finished":
            return counted(len(self), "call")
        return self._latest.part if self._latest is not None else ""

    @property
    def status(self) -> Status:
        """How the search ended: as its last call, if that one did not finish."""
        if self._latest is None or not self._over or self._latest.status == "running":
            return "running"
        return "finished" if self._latest.finished else self._latest.status

    @property
    def message(self) -> str:
        """The message of the latest call, if it runs or did not finish."""
        return self._latest.message if self._latest is not None else ""

    @property
    def elapsed(self) -> float:
        """Seconds from the start of the first call to the end of the last one, or until now."""
        span = self._latest.span if self._over and self._latest is not None else None
        return (time.perf_counter() if span is None else span[1]) - self._began

    @property
    def scale(self) -> str:
        """Data and engines of the call with the most rows."""
        reports = tuple(self._reports)
        return max(reports, key=lambda report: report.n_samples).scale if reports else ""

    @property
    def result(self) -> str:
        """The best score and its parameters, in words; empty if no score is known."""
        if self.best is None:
            return ""
        score, parameters = self.best
        folds = f" of the first {counted(len(self._scores[None]), 'fold')}" if None in self._scores else ""
        return f"mean score {format_number(score)}{folds}" + (f" with {pairs(parameters)}" if parameters else "")

    @property
    def headline(self) -> str:
        """The search, its status, its time and its result, on one line."""
        joint = {"running": "for", "finished": "in"}.get(self.status, "after")
        said = f"{self.title}: {self.status} {joint} {format_seconds(self.elapsed)}, {counted(len(self), 'call')}"
        return plain(f"{said}, {self._kind}{self.result}" if self.result else said)

    @property
    def _kind(self) -> str:
        """Whether there are several candidates, of which one has the best score."""
        return "" if None in self._scores else "best "

    def line(self) -> str:
        """Return the progress of the search, on one line."""
        best = f"{self._kind}{self.result}" if self.result else ""
        parts = [self.title, self.part, format_seconds(self.elapsed), best, self.message]
        return "  ".join(plain(part) for part in parts if part)

    def __str__(self) -> str:
        rows = self._rows()
        lines = [self.headline, *([table_text(_HEADER, rows, "lrrr")] if rows else [])]
        lines += [f"  {plain(line)}" for line in self.message.splitlines()[:1]]
        return "\n".join(lines)

    def _rows(self) -> list[list[str]]:
        return [
            [plain(title), str(calls), format_seconds(seconds), format_seconds(seconds / calls)]
            for title, (calls, seconds) in self._totals().items()
        ]

    def parts(self) -> list[str]:
        """Return the pieces of HTML of the search, for a block whose style is that of `css`."""
        status = self.status
        found = [head(self.title, status, f"{self.scale} · {format_seconds(self.elapsed)}")]
        if status == "running" and self.total:
            found.append(bar(self.done / self.total, "fits done"))
        facts = {"calls": f"{len(self):,}", "now": self.part if status == "running" else ""}
        facts[f"{self._kind}score"] = self.result.removeprefix("mean score ")
        found += [facts_html({name: value for name, value in facts.items() if value}), message_html(self.message)]
        found.append(table_html(_HEADER, self._rows(), "lrrr", "Time of the calls by estimator"))
        return found

    def _repr_html_(self) -> Html:
        return block(self.headline, [*self.parts(), *self.folded(), self.as_of()], css())

    def as_of(self) -> str:
        """Return the time of the latest update if the search still runs."""
        return as_of_html(self)

    def folded(self) -> list[str]:
        """Return the report of the last fit, folded; nothing while the search runs, which would fold it again."""
        fits = [report for report in self._reports if report.lasting]
        if not self._over or not fits:
            return []
        where = f", {fits[-1].part}" if fits[-1].part else ""
        summary = Html(f"report of the last fit: {plain(fits[-1].title)}{where}")
        return [f"<details><summary>{summary}</summary>{''.join(fit_parts(fits[-1]))}</details>"]
