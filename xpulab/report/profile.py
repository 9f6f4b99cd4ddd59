"""The profile that ``%%xpu_profile`` shows: all calls of estimators and all cells on the engines in a block of code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xpulab.report import progress
from xpulab.report.fit import PHASES, FitReport
from xpulab.report.rendering import (
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
from xpulab.report.usage import LEGEND, CellUsage, collecting

__all__ = ["Profile", "profiled"]

_HEADER = ("call", "data", "iterations", "time", *PHASES, "other", "slowest", "imbalance")
_ALIGN = "lrr" + "r" * (len(PHASES) + 2) + "lr"


@dataclass(repr=False)
class Profile(Displayed):
    """The calls of estimators, and the users' code on the engines, during a block of code, in their order.

    Attributes
    ----------
    reports : list of FitReport
        One report for each call: fits, predicts, transforms, scores.
    cells : list of CellUsage
        One element for each ``%%xpu`` cell or `XPUCluster.run`: kernels, transfers and calls of MPI, by rank.
    seconds : float
        Wall time of the whole block, including everything else that it did.
    """

    reports: list[FitReport] = field(default_factory=list)
    seconds: float = 0.0
    cells: list[CellUsage] = field(default_factory=list)

    @property
    def inside(self) -> float:
        """Seconds of the wall time that the calls took."""
        return sum(report.elapsed for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON-serialisable values."""
        return {
            "seconds": self.seconds,
            "reports": [report.to_dict() for report in self.reports],
            "cells": [cell.to_dict() for cell in self.cells],
        }

    def __str__(self) -> str:
        parts = [self._title]
        if self.reports:
            table = table_text(_HEADER, [_row(number, r) for number, r in enumerate(self.reports, 1)], _ALIGN)
            parts += [table, f"  {_LEGEND}"]
        if self.cells:
            parts += [*map(str, self.cells), f"  {LEGEND}"]
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> Html:
        title = f"<div><strong>{escape(self._title)}</strong></div>"
        body = [title]
        if self.reports:
            rows = [_row(number, r) for number, r in enumerate(self.reports, 1)]
            body.append(table_html(_HEADER, rows, _ALIGN, _LEGEND))
        if self.cells:
            body += [*(part for cell in self.cells for part in cell.html()), f"<div>{escape(LEGEND)}</div>"]
        return block("Profile", body)

    @property
    def _title(self) -> str:
        n = len(self.reports)
        cells = f"{counted(len(self.cells), 'cell')} on the engines, " if self.cells else ""
        if cells and n == 0:
            return f"Profile: {cells}{format_seconds(self.seconds)}"
        calls = "no call of an estimator" if n == 0 else f"{counted(n, 'call')}, {format_seconds(self.inside)}"
        share = f" ({100 * self.inside / self.seconds:.0f} %)" if n and self.seconds > 0 else ""
        return f"Profile: {cells}{calls}{share} of {format_seconds(self.seconds)}"


_LEGEND = (
    "Phases are means over the engines; imbalance is how much longer than the mean the own work of the slowest took, "
    "without waits."
)


def _row(number: int, report: FitReport) -> list[str]:
    engines = report.engines
    phases: list[float | None] = [None] * (len(PHASES) + 1)
    if engines:
        by_engine = [(*engine.seconds.values(), engine.other) for engine in engines]
        phases = [sum(seconds) / len(engines) for seconds in zip(*by_engine, strict=True)]
    slowest, imbalance = report.slowest, report.imbalance
    ended = "" if report.status == "finished" else f", {report.status}"
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
    """Collect the report of every call, and the activity of every cell on the engines, until the block ends."""
    profile = Profile()

    def collect(report: Any) -> None:
        if isinstance(report, FitReport):
            profile.reports.append(report)

    unsubscribe = progress.subscribe(collect)
    started = time.perf_counter()
    try:
        with collecting(profile.cells):
            yield profile
    finally:
        unsubscribe()
        profile.seconds = time.perf_counter() - started
