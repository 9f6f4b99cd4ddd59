"""%%xpu_profile shows every call in a cell, returns the cell's value, and also works if the cell raises an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reports import EVIL, Document, report

from xpulab.report import progress, usage
from xpulab.report.profile import Profile, profiled
from xpulab.sharing.answers import Measured

FITS = """
from reports import report
from xpulab.report import progress, usage
for method in ("fit", "predict"):
    with progress.open(report(method=method, status="running")):
        pass
"""


def test_every_call_is_collected_and_nothing_after() -> None:
    with profiled() as profile:
        with progress.open(report(status="running")):
            pass
        with progress.open(progress.TaskReport("start")):
            pass
        with pytest.raises(ZeroDivisionError), progress.open(report(method="predict", status="running")):
            1 / 0  # noqa: B018
    progress.open(report()).close()
    assert [(r.title, r.status) for r in profile.reports] == [("KMeans.fit", "finished"), ("KMeans.predict", "failed")]
    assert 0 < profile.inside <= profile.seconds
    assert json.loads(json.dumps(profile.to_dict()))["reports"][0]["method"] == "fit"


def test_text_and_html_say_the_same() -> None:
    profile = Profile([report(), report(method="predict", engines=1, iterations=0)], 16.0)
    for text in (str(profile), Document(profile._repr_html_()).text):
        assert "Profile: 2 calls, 8 s (50 %) of 16 s" in text
        for word in ("1  KMeans.fit", "2  KMeans.predict", "engine 1", "20 %", "1,000 × 14"):
            assert word in text
    assert str(Profile([], 2.0)) == "Profile: no call of an estimator of 2 s"
    assert "<table" not in Profile([], 2.0)._repr_html_()


def test_everything_is_escaped() -> None:
    evil = report()
    evil.estimator = evil.dtype = evil.engines[1].device = evil.engines[1].host = EVIL
    profile = Profile([evil], 8.0)
    assert "<script" not in profile._repr_html_()
    assert "\x1b" not in profile._repr_html_() + str(profile)


def test_the_magic_shows_the_calls_and_returns_the_cells_value(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell_magic("xpu_profile", "--out kept", f"{FITS}\nx = 20\nx + 1") == 21
    assert shell.user_ns["x"] == 20
    assert len(shell.user_ns["kept"].reports) == 2
    assert "Profile: 2 calls" in capsys.readouterr().out
    assert shell.run_cell_magic("xpu_profile", "", "x = 1") is None
    assert shell.run_cell_magic("xpu_profile", "-h", "x = 2") is None
    assert shell.user_ns["x"] == 1
    result = shell.run_cell("%%xpu_profile\n%config XPUMagics.n = 3\n[x]")
    assert result.result == [1]


def test_an_error_in_the_cell_is_raised_and_the_profile_is_shown(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("xpu_profile", "", f"{FITS}\n1 / 0")
    assert "Profile: 2 calls" in capsys.readouterr().out


@pytest.mark.cluster
def test_real_calls(pair: Any) -> None:
    import numpy as np

    from xpulab.cluster import KMeans

    pair.activate()
    X = np.random.RandomState(0).normal(size=(999, 2))
    with profiled() as profile:
        KMeans(3, random_state=0).fit(X).transform(X)
    assert [r.title for r in profile.reports] == ["KMeans.fit", "KMeans.transform"]
    assert all(len(r.engines) == 2 and r.status == "finished" for r in profile.reports)


def _times(entered: list[float], left: list[float]) -> Measured:
    activities: list[tuple[str, str, int, int | None, float]] = [
        ("MPI", "Bcast", len(entered), 80, 2.5),
        ("kernel", EVIL, 3, None, 0.5),
        ("MPI", "Recv", 1, 8, 1.0),
    ]
    moments = [("MPI", "Bcast", a, b - a) for a, b in zip(entered, left, strict=True)]
    return {
        "began": 0.5,
        "seconds": 4.0,
        "activities": activities,
        "collectives": {("Bcast", 0, 2): (entered, left)},
        "moments": moments,
    }


def test_what_a_cell_did_is_shown_as_text_and_html() -> None:
    profile = Profile(seconds=5.0)
    with usage.collecting(profile.cells):
        usage.collected(
            EVIL,
            [
                {"outcome": "ok", "usage": _times([1.0, 5.0], [2.0, 6.0])},
                {"outcome": "left out"},
                {"outcome": "ok", "usage": _times([2.5, 4.0], [2.6, 7.0])},
            ],
        )
    usage.collected("after", [{"outcome": "ok", "usage": _times([], [])}])
    (cell,) = profile.cells
    assert {rank: each.wait for rank, each in cell.ranks.items()} == {0: 1.0, 2: 1.0}
    assert [each.wait for each in cell.ranks[0].activities] == [1.0, None, None]
    assert cell.ranks[2].of("MPI") == 3.5
    for text in (str(profile), Document(profile._repr_html_()).text):
        assert "Profile: 1 cell on the engines, 5 s" in text
        for word in ("MPI Bcast", "80 B", "2.5 s", "500 ms", "1 s", "cannot be seen"):
            assert word in text
        assert "\x1b" not in text
    assert "<script" not in profile._repr_html_()
    assert json.loads(json.dumps(profile.to_dict()))["cells"][0]["ranks"]["0"]["activities"][0]["wait"] == 1.0
    profile.reports = [report()]
    assert "Profile: 1 cell on the engines, 1 call, 4 s (80 %) of 5 s" in str(profile)
    assert "KMeans.fit" in str(profile)


def test_waits_of_a_rank_of_another_host_are_counted_by_one_clock() -> None:
    """Rank 0 waits a second for rank 1, rank 1 then half a second for rank 0. The clock of rank 1 is ahead."""
    cells: list[usage.CellUsage] = []
    measured: list[Measured] = [
        {
            "began": began,
            "seconds": 9.0,
            "activities": [("MPI", "Bcast", 2, 80, 2.5)],
            "collectives": {("Bcast", 0, 1): (entered, left)},
            "moments": [("MPI", "Bcast", a, b - a) for a, b in zip(entered, left, strict=True)][::-1],
        }
        for began, entered, left in (
            (0.5, [1.0, 5.5], [2.25, 6.0]),
            (1e6 + 0.25, [1e6 + 2.0, 1e6 + 5.0], [1e6 + 2.5, 1e6 + 6.0]),
        )
    ]
    with usage.collecting(cells):
        usage.collected("cell", [{"outcome": "ok", "usage": each} for each in measured], 9.0, [0.0, 1e6])
    assert {rank: each.wait for rank, each in cells[0].ranks.items()} == {0: 1.0, 1: 0.5}
    assert {rank: each.start for rank, each in cells[0].ranks.items()} == {0: 0.25, 1: 0.0}
    assert {rank: [span[2:] for span in each.spans] for rank, each in cells[0].ranks.items()} == {
        0: [(0.75, 1.25, 1.0), (5.25, 0.5, 0.0)],
        1: [(1.75, 0.5, 0.0), (4.75, 1.0, 0.5)],
    }


@pytest.mark.cluster
def test_a_cell_of_the_engines(
    cluster: Any, shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("xpulab.magics.current_cluster", lambda: cluster)
    shell.run_cell_magic("xpu_profile", "--out kept", "%%xpu\ncomm.barrier()")
    assert [list(cell.ranks) for cell in shell.user_ns["kept"].cells] == [list(range(cluster.size))]
    assert "MPI barrier" in capsys.readouterr().out
