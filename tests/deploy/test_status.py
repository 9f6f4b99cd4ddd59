"""A cluster's status, as HTML and as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from reports import EVIL, Document

from xpulab.deploy.status_view import shapes_html, status_html, status_text


def status(**changes: Any) -> dict[str, Any]:
    engine = {
        "rank": 0,
        "host": "node01",
        "pid": 991,
        "device": "Arc A770",
        "selector": "level_zero:0",
        "cores": [0, 1, 2, 8],
        "memory_used": 2**28,
        "memory_free": 2**36,
        "device_bytes": 2**20,
        "device_free": 2**34,
        "state": "idle",
        "heartbeat_age_s": 0.25,
    }
    lost = {**engine, "rank": 1, "pid": 992, "state": "silent", "heartbeat_age_s": 14.0}
    return {
        "state": "running",
        "n": 2,
        "id": "xpu-3f2a",
        "seconds_to_start": 6.25,
        "engines": [engine, lost],
        "warnings": ["engines 0 and 1 share the cores 0-2, 8"],
        **changes,
    }


def test_text_shows_the_cluster_each_engine_and_the_warnings() -> None:
    headline, header, first, second, warning = status_text(status()).splitlines()
    assert headline == "xpulab cluster xpu-3f2a: running, 2 engines, ready after 6.25 s"
    assert header.endswith("  sign of life")
    assert first.split("  ")[-1] == "250 ms ago"
    for text in (
        "● idle",
        "Arc A770",
        "level_zero:0",
        "1.0 MiB used, 16.0 GiB free",
        "0-2,8",
        "256 MiB used, 64.0 GiB free",
        "991",
    ):
        assert text in first
    assert "✕ silent" in second
    assert warning == "  warning: engines 0 and 1 share the cores 0-2, 8"


def test_launch_shapes_and_their_files_are_told_in_a_line_and_folded_away_in_html() -> None:
    about = status(launch_shape_files=["/home/me/.cache/xpulab/launch_shapes/arc.json"])
    for engine in about["engines"]:
        engine["launch_shape"] = "1x8x64, span 1024 (tuned), measured for 1 range of sizes"
    kept = "tuned launch shapes are kept in /home/me/.cache/xpulab/launch_shapes/arc.json"
    said = "  launch shapes, by which k-means cuts its work: 1x8x64, span 1024 (tuned), measured for 1 range of sizes"
    assert status_text(about).splitlines()[4:6] == [said, f"  {kept}"]
    shown, folded = status_html(about).split("<details>")
    assert "span" not in Document(f"{shown}</div>").text
    assert Document(status_html(about, shapes=False)).text == Document(f"{shown}</div>").text
    folded = Document(f"<div><details>{folded}").text
    for text in (folded, Document(shapes_html(about)).text):
        assert text.startswith("Launch shapes1x8x64, span 1024 (tuned), measured for 1 range of sizes")
        assert kept in text
        assert "rows of a thread of the device x centres at a time x threads of a group, span rows of a group" in text
    about["engines"][1]["launch_shape"] = "4x4x16, span 4096 (default)"
    assert "engine 0: 1x8x64, span 1024 (tuned), measured for 1 range of sizes; engine 1: 4x4x16" in status_text(about)
    assert shapes_html(status()) == ""


@pytest.mark.parametrize("word", ["work-item", "selector", "tile"])
def test_no_word_of_the_field_is_left_unexplained(word: str) -> None:
    about = status(launch_shape_files=["/home/me/arc.json"])
    about["engines"][0]["launch_shape"] = "1x8x64, span 1024 (tuned), measured for 1 range of sizes"
    for text in (status_text(about), Document(status_html(about)).text):
        assert word not in text


def test_html_holds_the_same() -> None:
    document = Document(status_html(status()))
    for text in (
        "xpulab cluster xpu-3f2a",
        "2 engines",
        "● idle",
        "✕ silent",
        "Arc A770",
        "14 s ago",
        "⚠ engines 0 and 1",
    ):
        assert text in document.text
    assert [a["scope"] for a in document.attributes("th")] == ["col"] * 10 + ["row"] * 2


def test_the_status_shows_the_iteration_of_a_fit() -> None:
    (engine, _) = status()["engines"]
    places: tuple[tuple[int, int, dict[str, float]], ...] = ((1, 0, {}), (1, 12, {"inertia": 1234.5678}), (3, 4, {}))
    states = [
        {**engine, "state": "KMeans.fit", "run": run, "iteration": i, "metrics": metrics} for run, i, metrics in places
    ]
    for words in ("▶ KMeans.fit ", "▶ KMeans.fit, iteration 12, inertia 1234.57 ", "▶ KMeans.fit, run 3, iteration 4 "):
        assert words in status_text(status(engines=states))
        assert words.strip() in Document(status_html(status(engines=states))).text


def test_columns_that_no_engine_fills_are_left_out() -> None:
    text = status_text(status(engines=[{"rank": 0, "device": "CPU", "cores": None}]))
    assert text.splitlines()[1].split() == ["engine", "device"]
    some = status_text(status(engines=[{"rank": 0, "cores": [1]}, {"rank": 1, "cores": None}]))
    assert [line.split() for line in some.splitlines()[2:4]] == [["0", "1"], ["1", "all"]]


def test_a_stopped_cluster_has_no_table() -> None:
    stopped = {"state": "stopped", "n": 0, "seconds_to_start": None, "engines": [], "warnings": []}
    assert status_text(stopped) == "xpulab cluster: stopped; type: %xpu_cluster start"
    assert "<table" not in status_html(stopped)


def test_a_lost_cluster_says_what_to_type() -> None:
    assert "lost, 2 engines, ready after 6.25 s; type: %xpu_cluster restart\n" in status_text(status(state="lost"))
    assert "%xpu_cluster restart" in Document(status_html(status(state="lost"))).text


def test_the_last_line_is_about_the_fit_that_can_go_on() -> None:
    said = "KMeans.fit was interrupted in iteration 119 of 500, run 1 of 4; to go on, type: model = %xpu_cluster resume"
    about = status(
        interrupted=said, others=["1 other cluster uses the cores 0-1"], launch_shape_files=["/home/me/arc.json"]
    )
    assert status_text(about).splitlines()[-1] == f"  {said}"
    assert Document(status_html(about)).text.endswith(said)
    assert said in status_html(about)


def test_everything_is_escaped() -> None:
    evil = dict.fromkeys(("host", "device", "selector", "state"), EVIL)
    wicked = status(state=EVIL, id=EVIL, engines=[{"rank": 0, **evil}], warnings=[EVIL])
    html = status_html(wicked)
    assert "<script" not in html
    assert Document(html).text.count("<script>") == 7
    assert "\x1b" not in status_text(wicked) + html


def test_a_path_in_the_home_folder_is_abbreviated(environment: Callable[..., None]) -> None:
    environment(HOME="/home/ada")
    kept = status(launch_shape_files=["/home/ada/.cache/shapes.json", "/home/adam/shapes.json"])
    for text in (status_text(kept), Document(status_html(kept)).text):
        assert "~/.cache/shapes.json" in text
        assert "/home/adam/shapes.json" in text
        assert "/home/ada/" not in text
