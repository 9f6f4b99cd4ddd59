"""Timelines of iterations and of cells: seconds by phase, stragglers, and their forms and exports."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reports import Document

from xpulab.report.timeline import Timeline, kind_of, of_cell, of_iterations
from xpulab.report.usage import Activity, CellUsage, RankUsage, Span
from xpulab.sharing.board import ITERATIONS, PHASES, Board

KERNEL, WAIT = PHASES.index("kernel"), PHASES.index("wait")


def ring(kernels: list[float], waits: list[float], task: int = 1) -> np.ndarray:
    """Return what a rank notes of iterations that take a second each, from the moment 100 on."""
    board = Board.create(1)
    for n in range(len(kernels)):
        spent = [0.0] * len(PHASES)
        spent[KERNEL], spent[WAIT] = sum(kernels[: n + 1]), sum(waits[: n + 1])
        board.note(0, task, 1, 1, n + 1, 101.0 + n, 1.0 + n, *spent)
    return board.iterations(0)


@pytest.fixture
def timeline() -> Timeline:
    """Two engines, of which engine 1 is slow in the second iteration."""
    rings = {0: ring([0.5, 0.25, 0.5], [0.25, 0.5, 0.25]), 1: ring([0.375, 0.75, 0.375], [0.5, 0.0, 0.5])}
    return of_iterations("KMeans.fit", rings)


def test_seconds_are_those_of_each_iteration(timeline: Timeline) -> None:
    assert timeline.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert timeline.iteration.tolist() == [1, 2, 3] * 2
    assert timeline.start.tolist() == [0.0, 1.0, 2.0] * 2
    assert timeline.seconds[:, KERNEL].tolist() == [0.5, 0.25, 0.5, 0.375, 0.75, 0.375]
    assert timeline.seconds[:, WAIT].tolist() == [0.25, 0.5, 0.25, 0.5, 0.0, 0.5]
    assert np.allclose(timeline.seconds.sum(axis=1), 1.0)
    assert timeline.phases == (*PHASES, "other")


def test_the_engine_with_the_most_work_is_the_slowest_of_an_iteration(timeline: Timeline) -> None:
    assert timeline.slowest.tolist() == [0, 1, 0] * 2
    rows = [line.split() for line in str(timeline).splitlines()[2:]]
    assert [row[-1] for row in rows] == ["2", "1"]


def test_iterations_whose_predecessor_was_replaced_are_left_out() -> None:
    late = ring([0.5] * (ITERATIONS + 3), [0.25] * (ITERATIONS + 3))
    found = of_iterations("KMeans.fit", {0: late})
    assert found.iteration.tolist() == list(range(5, ITERATIONS + 4))
    assert np.allclose(found.seconds[:, KERNEL], 0.5)


def test_tasks_that_follow_each_other_do_not_mix() -> None:
    found = of_iterations("fits", {0: np.concatenate([ring([0.5, 0.5], [0, 0], 1), ring([0.25, 0.25], [0, 0], 2)])})
    assert found.seconds[:, KERNEL].tolist() == [0.5, 0.5, 0.25, 0.25]


def test_a_call_without_iterations_has_an_empty_timeline() -> None:
    found = of_iterations("KMeans.predict", {0: ring([], [])})
    assert len(found) == 0
    assert "0 iterations" in str(found)
    assert "<table" not in found._repr_html_()
    assert len(found.to_csv().splitlines()) == 1


def test_a_trace_has_an_event_for_each_phase_in_the_order_of_time(timeline: Timeline, tmp_path: Path) -> None:
    trace = json.loads(timeline.to_trace(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text()) == trace
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sum(event["dur"] for event in events) == pytest.approx(6e6)
    kernel = [event for event in events if event["name"] == "kernel" and event["tid"] == 1]
    assert [(event["ts"], event["dur"], event["args"]) for event in kernel] == [
        (pytest.approx(1e6 * n), pytest.approx(1e6 * dur), {"run": 1, "iteration": n + 1})
        for n, dur in enumerate((0.375, 0.75, 0.375))
    ]
    for rank in (0, 1):
        mine = sorted((event for event in events if event["tid"] == rank), key=lambda event: event["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in itertools.pairwise(mine))
    names = {event["args"].get("name") for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"KMeans.fit", "engine 0", "engine 1"} <= names


def test_pandas_reads_the_csv(timeline: Timeline) -> None:
    table = pd.read_csv(io.StringIO(timeline.to_csv()))
    assert table[["engine", "run", "iteration"]].to_numpy().tolist() == [[r, 1, n] for r in (0, 1) for n in (1, 2, 3)]
    assert table["kernel"].tolist() == timeline.seconds[:, KERNEL].tolist()
    assert table["wait"].sum() == pytest.approx(2.0)


def test_the_picture_is_a_png(timeline: Timeline, tmp_path: Path) -> None:
    png = timeline.to_png(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes() == png
    assert png.startswith(b"\x89PNG")
    assert timeline.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]  # as a notebook shows it


def test_a_cell_has_its_activities_at_their_moments() -> None:
    usage = CellUsage(
        "%%xpu cell 3",
        {
            0: RankUsage(
                1.0,
                [Activity("kernel", "add", 2000, None, 0.5), Activity("MPI", "Allreduce", 1, 8, 0.25, 0.125)],
                0.0,
                [Span("kernel", "add", 0.25, 0.25, 0.0), Span("MPI", "Allreduce", 0.5, 0.25, 0.125)],
            ),
            2: RankUsage(
                1.5,
                [Activity("transfer", "memcpy", 1, 8, 0.25)],
                0.125,
                [Span("transfer", "memcpy", 0.75, 0.25, 0.0)],
            ),
        },
    )
    found = of_cell(usage)
    assert (len(found), found.engines) == (5, [0, 2])
    assert found.phases == ("cell", "transfer memcpy", "kernel add", "wait in Allreduce", "MPI Allreduce")
    assert [kind_of(phase) for phase in found.phases] == ["other", "transfer", "kernel", "wait", "communicate"]
    assert found.start.tolist() == [0.25, 0.5, 0, 0.75, 0.125]
    assert found.iteration.tolist() == [1, 2, 0, 1, 0]
    assert found.seconds.tolist() == [
        [0, 0, 0.25, 0, 0],
        [0, 0, 0, 0.125, 0.125],
        [1, 0, 0, 0, 0],
        [0, 0.25, 0, 0, 0],
        [1.5, 0, 0, 0, 0],
    ]
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert (float(lines[1]["MPI Allreduce"]), float(lines[1]["start"])) == (0.125, 0.5)
    events = [event for event in json.loads(found.to_trace())["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["tid"], event["ts"], event["dur"]) for event in events] == [
        ("kernel add", 0, 250_000, 250_000),
        ("wait in Allreduce", 0, 500_000, 125_000),
        ("MPI Allreduce", 0, 625_000, 125_000),
        ("cell", 0, 0, 1_000_000),
        ("transfer memcpy", 2, 750_000, 250_000),
        ("cell", 2, 125_000, 1_500_000),
    ]
    for text in (str(found), Document(found._repr_html_()).text):  # the sums of all activities, not of the latest alone
        assert "%%xpu cell 3: 2 engines" in text
        assert "2,001" in text
    assert found.to_png().startswith(b"\x89PNG")
