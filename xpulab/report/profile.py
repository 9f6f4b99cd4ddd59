"""All calls of estimators in a stretch of code, side by side: what ``%%xpu_profile`` shows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xpulab.rendering import (
    Displayed,
    Html,
    block,
    counted,
    escape,
    format_count,
    format_seconds,
    plain,
    table_html,
    table_text,
)
from xpulab.report import progress
from xpulab.report.fit import PHASES, FitReport

__all__ = ["Profile", "profiled"]

_HEADER = ("call", "data", "iterations", "time", *PHASES, "other", "slowest", "imbalance")
_ALIGN = "lrr" + "r" * (len(PHASES) + 2) + "lr"


@dataclass(repr=False)
class Profile(Displayed):
    """The calls of a stretch of code, in their order.

    Attributes
    ----------
    reports : list of FitReport
        One a call: fits, predicts, transforms, scores.
    seconds : float
        Wall time of all of it, whatever else it did included.
    """

    reports: list[FitReport] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inside(self) -> float:
        """Seconds of the wall time that the calls took."""
        return sum(report.elapsed for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as of use to JSON."""
        return {"seconds": self.seconds, "reports": [report.to_dict() for report in self.reports]}

    def __str__(self) -> str:
        if not self.reports:
            return self._title
        table = table_text(_HEADER, [_row(number, r) for number, r in enumerate(self.reports, 1)], _ALIGN)
        return f"{self._title}\n{table}\n  {_LEGEND}"

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        title = f"<div><strong>{escape(self._title)}</strong></div>"
        if not self.reports:
            return block("Profile", [title])
        table = table_html(_HEADER, [_row(number, r) for number, r in enumerate(self.reports, 1)], _ALIGN, _LEGEND)
        return block("Profile", [title, table])

    @property
    def _title(self) -> str:
        n = len(self.reports)
        calls = "no call of an estimator" if n == 0 else f"{counted(n, 'call')}, {format_seconds(self.inside)}"
        share = f" ({100 * self.inside / self.seconds:.0f} %)" if n and self.seconds > 0 else ""
        return f"Profile: {calls}{share} of {format_seconds(self.seconds)}"


_LEGEND = "Phases are means over the engines; imbalance is how much longer than the mean the slowest was busy."


def _row(number: int, report: FitReport) -> list[str]:
    engines = report.engines
    phases: list[float | None] = [None] * (len(PHASES) + 1)
    if engines:
        phases = [sum(e.phases[p] for e in engines) / len(engines) for p in engines[0].phases]
    slowest, imbalance = report.slowest, report.imbalance
    ended = "" if report.state == "finished" else f", {report.state}"
    return [
        f"{number}  {plain(report.title)}{ended}",
        f"{format_count(report.n_samples)} × {format_count(report.n_features)}",
        str(len(report.iterations) or "–"),
        format_seconds(report.elapsed),
        *(format_seconds(seconds) for seconds in phases),
        "–" if slowest is None else f"engine {slowest.rank}",
        "–" if imbalance is None else f"{imbalance:.0f} %",
    ]


@contextlib.contextmanager
def profiled() -> Iterator[Profile]:
    """Collect the report of every call until the block ends, however it ends."""
    profile = Profile()

    def collect(report: Any) -> None:
        if isinstance(report, FitReport):
            profile.reports.append(report)

    unsubscribe = progress.subscribe(collect)
    started = time.perf_counter()
    try:
        yield profile
    finally:
        unsubscribe()
        profile.seconds = time.perf_counter() - started
