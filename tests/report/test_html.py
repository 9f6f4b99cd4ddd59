"""Reports as HTML are complete, escaped, and readable without sight, colours or style sheets."""

from __future__ import annotations

from pathlib import Path

import pytest
from reports import EVIL, Document, engine, report

from xpulab.report.calls import Calls
from xpulab.report.fit import EngineReport, Iteration
from xpulab.report.html import fit_html, page_html, task_html
from xpulab.report.progress import TaskReport


@pytest.mark.parametrize("engines", [0, 1, 4, 16])
@pytest.mark.parametrize("status", ["running", "finished", "interrupted", "failed"])
def test_every_state_is_well_formed_html_with_a_label(engines: int, status: str) -> None:
    document = Document(fit_html(report(engines=engines, status=status, runs=3)))
    assert f" {status}" in document.text
    assert document.attributes("div")[0]["role"] == "group"
    label = document.attributes("div")[0]["aria-label"]
    assert label is not None
    assert label.startswith(f"KMeans.fit: {status}")


def test_the_table_holds_every_figure_of_every_engine() -> None:
    document = Document(fit_html(report(engines=2)))
    scopes = [attributes.get("scope") for attributes in document.attributes("th")]
    assert scopes == ["col"] * 9 + ["row"] * 2
    for text in (
        "Arc A1",
        "500 rows",
        "1.0 MiB",
        "seconds by phase",
        "2.000",
        "3.500",
        "whose own work, without waits, took 20 % longer than the mean",
    ):
        assert text in document.text


def test_hosts_are_named_once_or_with_each_engine() -> None:
    one = report(engines=2)
    assert Document(fit_html(one)).text.count("node01") == 1
    one.engines[1].host = "node02"
    assert Document(fit_html(one)).text.count("node02") == 1


def test_bars_show_the_phases_to_scale_with_a_pattern_for_each() -> None:
    drawn = report(engines=0)
    drawn.engines = [engine(0), engine(1, total=0.0, seconds={"kernel": 1.75})]
    pieces = [a for a in Document(fit_html(drawn)).attributes("i") if "style" in a]
    assert [(a["class"], a["style"]) for a in pieces] == [
        ("xpu-p-transfer", "width:14.29%"),
        ("xpu-p-compile", "width:14.29%"),
        ("xpu-p-kernel", "width:28.57%"),
        ("xpu-p-communicate", "width:7.14%"),
        ("xpu-p-wait", "width:28.57%"),
        ("xpu-p-other", "width:7.14%"),
        ("xpu-p-kernel", "width:50.00%"),
    ]


def test_pictures_are_hidden_from_screen_readers_or_described() -> None:
    document = Document(fit_html(report(iterations=5)))
    assert [a["aria-hidden"] for a in document.attributes("div") if a.get("class") == "xpu-bar"] == ["true", "true"]
    inertia, shift = document.attributes("svg")
    assert (inertia["role"], shift["role"]) == ("img", "img")
    assert inertia["aria-label"] == "Inertia by iteration: from 999 to 199 in 5 iterations"
    assert shift["aria-label"] == (
        "Center shift by iteration, on a logarithmic scale: from 0.5 to 0.0312 in 5 iterations"
    )


def test_the_curve_spans_its_frame_and_the_best_run_stands_out() -> None:
    drawn = report(runs=1, iterations=0, n_init=2)
    drawn.iterations = [
        Iteration(1, {"inertia": 10.0}, init=1),
        Iteration(2, {"inertia": 8.0}, init=1),
        Iteration(1, {"inertia": 9.0}, init=2),
    ]
    drawn.iterations += [Iteration(3, {"inertia": 0.0}, init=2)]
    lines = Document(fit_html(drawn)).attributes("polyline")
    assert [(a["class"], a["points"]) for a in lines] == [
        ("xpu-run", "0.00,0.00 50.00,20.00"),
        ("xpu-best", "0.00,10.00 100.00,100.00"),
    ]


def test_the_best_run_of_a_metric_that_rises_is_the_highest() -> None:
    drawn = report(iterations=0, n_init=2)
    drawn.iterations = [
        Iteration(number, {"lower_bound": bound}, init=run)
        for run, bounds in enumerate(((1.0, 4.0), (2.0, 3.0)), 1)
        for number, bound in enumerate(bounds, 1)
    ]
    assert (drawn.best_run, drawn.objective) == (1, ("lower_bound", 4.0))
    lines = Document(fit_html(drawn)).attributes("polyline")
    assert [each["class"] for each in lines] == ["xpu-best", "xpu-run"]


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    drawn = report(iterations=10_000)
    points = str(Document(fit_html(drawn)).attributes("polyline")[0]["points"]).split()
    assert len(points) <= 201
    assert points[0] == "0.00,0.00"
    assert points[-1] == "100.00,100.00"


def test_a_constant_inertia_is_a_curve_too() -> None:
    drawn = report()
    for iteration in drawn.iterations:
        iteration.metrics["inertia"] = 0.0
    assert "polyline" in fit_html(drawn)
    assert "<span>0</span> <span></span>" in fit_html(drawn)  # one number at the axis, where the line is


def bars(document: Document) -> list[dict[str, str | None]]:
    return [attributes for attributes in document.attributes("div") if attributes.get("role") == "progressbar"]


def test_only_a_running_call_has_a_progress_bar() -> None:
    document = Document(fit_html(report(status="running", iterations=46, parameters={"max_iter": 200})))
    (bar,) = bars(document)
    assert (bar["aria-valuenow"], bar["aria-valuemax"], bar["aria-label"]) == ("0.230", "1", "iterations done")
    assert any(part.get("style") == "width:23.0%" for part in document.attributes("i"))
    assert not bars(Document(fit_html(report())))


def test_a_report_that_is_redrawn_has_no_folded_parts() -> None:
    assert not Document(fit_html(report(status="running"))).attributes("details")
    assert len(Document(fit_html(report())).attributes("details")) == 2


def test_every_text_that_comes_from_data_is_escaped() -> None:
    evil = report(
        estimator=EVIL, method=EVIL, parameters={EVIL: EVIL}, dtype=EVIL, message=EVIL, started=EVIL,
        versions={EVIL: EVIL}, notes=[EVIL],
    )  # fmt: skip
    evil.engines = [EngineReport(rank, EVIL + str(rank), 1, EVIL, 5, total=1.0) for rank in range(2)]
    task = TaskReport(EVIL, message=EVIL)
    calls = Calls()
    calls.add(evil)
    calls.add(report(estimator=EVIL, parameters={EVIL: "another"}))
    for html in (
        fit_html(evil),
        page_html(evil),
        calls._repr_html_(),
        evil.compare(evil)._repr_html_(),
        task_html(task),
    ):
        assert "<script" not in html
        assert "\x1b" not in html
        assert Document(html).text.count("<script>alert('x')</script>") >= 1


def test_a_page_is_self_contained(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    page = report().to_html(path, extra=["<h2>Before and after</h2>"])
    assert path.read_text(encoding="utf-8") == page
    document = Document(page)
    assert page.startswith("<!DOCTYPE html>")
    assert "<section><h2>Before and after</h2></section>" in page
    for text in ("n_clusters = 8", "xpulab = 0.1.0", "Arc A1", "Started at 20"):
        assert text in document.text
    assert all("open" in attributes for attributes in document.attributes("details"))
    assert not any(word in page for word in ("http:", "https:", "src=", "url(", "@import"))


def test_comparison_is_a_table_with_headers() -> None:
    document = Document(report(engines=1).compare(report(engines=2))._repr_html_())
    assert "first: KMeans.fit, 1,000 × 14 float32 on 1 engine (Arc A0)" in document.text
    assert "second: KMeans.fit, 1,000 × 14 float32 on 2 engines (Arc A0, Arc A1)" in document.text
    assert [a.get("scope") for a in document.attributes("th")].count("col") == 4


def test_a_task_shows_its_steps_until_it_ends() -> None:
    task = TaskReport("start 4 engines", total=4, done=1, message="waiting for engine 2 of 4")
    document = Document(task_html(task))
    assert bars(document)[0]["aria-valuenow"] == "0.250"
    assert "waiting for engine 2 of 4" in document.text
    task.finish()
    assert not bars(Document(task_html(task)))
    assert "finished" in Document(task_html(task)).text
