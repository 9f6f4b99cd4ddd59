"""Reports for the tests, and a reader of the HTML made of them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np

from xpulab.report.fit import EngineReport, FitReport, Iteration
from xpulab.report.rendering import format_number

EVIL = "<script>alert('x')</script>\x1b[2J"
_VOID = {"meta", "img", "br", "hr", "input"}


def engine(rank: int, kernel: float = 1.0, **changes: Any) -> EngineReport:
    """Return an engine whose work takes 1 + ``kernel`` seconds of 3.5."""
    seconds = {"transfer": 0.5, "compile": 0.5, "kernel": kernel, "communicate": 0.25, "wait": 2.0 - kernel}
    values: dict[str, Any] = {
        "rank": rank,
        "host": "node01",
        "pid": 100 + rank,
        "device": f"Arc A{rank}",
        "rows": 500,
        "cores": [0, 1],
        "memory": 2**20,
        "seconds": seconds,
        "total": 3.5,
    }
    return EngineReport(**{**values, **changes})


def report(engines: int = 2, runs: int = 1, iterations: int = 3, **changes: Any) -> FitReport:
    """Return a finished fit. The last engine is the slowest, and the last run is the best."""
    values: dict[str, Any] = {
        "estimator": "KMeans",
        "method": "fit",
        "parameters": {"n_clusters": 8, "max_iter": 300},
        "n_samples": 1000,
        "n_features": 14,
        "dtype": "float32",
        "status": "finished",
        "seconds": 4.0,
        "n_init": runs,
        "engines": [engine(rank, kernel=1.0 + rank) for rank in range(engines)],
        "iterations": [
            Iteration(number, {"inertia": 1000.0 / number - run, "center_shift": 0.5**number}, 0.1, run)
            for run in range(1, runs + 1)
            for number in range(1, iterations + 1)
        ],
        "versions": {"xpulab": "0.1.0"},
        "notes": ["2 engines share the cores 0-1"],
    }
    return FitReport(**{**values, **changes})


def require_report_of(estimator: Any) -> None:
    """Check that the report of the last fit shows the iterations and the result that the estimator has."""
    shown: FitReport | None = getattr(estimator, "report_", None)  # none if the fit asks no engine
    if shown is None or (reached := shown.reached) is None:
        return
    steps = getattr(estimator, "n_steps_", getattr(estimator, "n_iter_", reached.number))
    fits = len(getattr(estimator, "Cs_", ()))  # each is an iteration
    if shown.estimator == "SGDClassifier":  # the runs are those of the classes
        steps = [each.number for each in shown.iterations if each.init == reached.init]
        assert estimator.n_iter_ == max(each.number for each in shown.iterations)
    kept = fits or np.max(steps)
    assert kept == reached.number, shown
    assert shown.objective
    name, value = shown.objective
    assert value == getattr(estimator, f"{name}_", value), shown
    assert f"iteration {reached.number}" in str(shown)
    assert f"{name.replace('_', ' ')} {format_number(value)}" in str(shown)
    assert f"<dd>{format_number(value)}</dd>" in shown._repr_html_()


class Document(HTMLParser):
    """Reads HTML, and checks that every open tag is closed in its place."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every element of this kind, in order."""
        return [attributes for name, attributes in self.tags if name == tag]
