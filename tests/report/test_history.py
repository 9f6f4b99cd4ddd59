"""The history of calls, and calls that are laid over each other."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime

import pytest
from reports import EVIL, Document, report

from xpulab.report.history import History
from xpulab.report.overlay import LINES, overlay_html
from xpulab.report.usage import Run

STARTED = datetime(2026, 1, 2, 3, 4, 5)


def history() -> History:
    found = History()
    found.add(report(parameters={"n_clusters": 8, "max_iter": 300}), STARTED)
    found.add(Run("%%xpu cell 1", 0.5, "failed", None), STARTED)
    searched = report(parameters={"n_clusters": 9, "max_iter": 300}, status="interrupted")
    searched.part = "candidate 3 of 12, fold 2 of 5"
    found.add(searched, STARTED)
    return found


def test_text_html_and_csv_have_what_the_reports_have() -> None:
    calls = history()
    text, page = str(calls), Document(calls._repr_html_()).text
    for words in (
        "1  KMeans.fit",
        "2  %%xpu cell 1",
        "candidate 3 of 12, fold 2 of 5; n_clusters=9",
        "1,000 × 14",
        "inertia 332.333",
        "03:04:05",
        "interrupted",
    ):
        assert words in text
        assert words in page
    assert "max_iter" not in text  # it does not differ
    lines = list(csv.DictReader(io.StringIO(calls.to_csv())))
    assert [line["name"] for line in lines] == ["KMeans.fit", "%%xpu cell 1", "KMeans.fit"]
    assert [line["part"] for line in lines] == ["", "", "candidate 3 of 12, fold 2 of 5"]
    assert json.loads(lines[2]["parameters"]) == {"n_clusters": 9, "max_iter": 300}
    assert [line["iterations"] for line in lines] == ["3", "", "3"]
    assert [line["seconds"] for line in lines] == ["4.000000", "0.500000", "4.000000"]
    assert [line["started"] for line in lines] == [STARTED.isoformat()] * 3


def test_a_box_chooses_each_call_of_an_estimator() -> None:
    boxes = [about for tag, about in Document(history().html(chosen=True)).tags if tag == "input"]
    assert [box["data-call"] for box in boxes] == ["3", "1"]
    assert [box["aria-label"] for box in boxes] == ["compare call 3, KMeans.fit", "compare call 1, KMeans.fit"]


def test_a_long_history_forgets_the_oldest_calls_and_keeps_their_numbers() -> None:
    calls = History()
    for n in range(400):
        calls.add(Run(f"cell {n}", 0.1, "finished", None), STARTED)
    assert len(calls) == 300
    assert calls.numbered(100) is None
    assert (last := calls.numbered(400)) is not None
    assert last.title == "cell 399"
    assert str(calls).startswith("400 calls of this process on the cluster; the last 50")
    assert len(str(calls).splitlines()) == 52


@pytest.mark.slow
def test_long_fits_make_the_history_short() -> None:
    calls = History()
    for _ in range(32):
        calls.add(report(iterations=20_000), STARTED)
    assert len(calls) == 10
    assert calls.calls[-1].number == 32


def test_an_empty_history_has_no_table() -> None:
    assert str(History()) == "0 calls of this process on the cluster"
    assert "<table" not in History()._repr_html_()


def test_calls_are_laid_over_each_other_with_a_line_for_each() -> None:
    page = Document(overlay_html([(1, report()), (3, report(iterations=5, parameters={"n_clusters": 9}))]))
    lines = [about["class"] for tag, about in page.tags if tag == "polyline"]
    assert lines == ["xpu-o0", "xpu-o1"] * 2
    labels = [about["aria-label"] for tag, about in page.tags if tag == "svg" and about.get("role") == "img"]
    assert labels[0] == "Inertia by iteration: call 1 ends at 332.333 after 3; call 3 ends at 199 after 5"
    assert "3  KMeans.fit (n_clusters=9)" in page.text
    assert "Mean of the engines by phase" in page.text


def test_the_best_run_of_a_call_is_drawn() -> None:
    page = Document(overlay_html([(1, report(runs=3)), (2, report(runs=2))]))
    labels = [about["aria-label"] for tag, about in page.tags if tag == "svg" and about.get("role") == "img"]
    assert labels[0] == "Inertia by iteration: call 1 ends at 330.333 after 3; call 2 ends at 331.333 after 3"


def test_there_are_as_many_lines_as_can_be_told_apart() -> None:
    page = Document(overlay_html([(n, report()) for n in range(len(LINES) + 3)]))
    assert sum(tag == "polyline" for tag, _ in page.tags) == 2 * len(LINES)


def test_what_users_and_engines_wrote_is_escaped() -> None:
    calls = History()
    calls.add(report(parameters={"init": EVIL}), STARTED)
    calls.add(report(parameters={"init": "random"}), STARTED)
    calls.add(Run(EVIL, 0.1, "finished", None), STARTED)
    page = calls.html(chosen=True) + overlay_html([(n, calls.calls[n].report) for n in (0, 1)])  # type: ignore[misc]
    assert "<script" not in page
