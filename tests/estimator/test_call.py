"""The report of a call is updated from the board while the call runs, and is complete at its end."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from descriptions import described
from strikes import acted_when, meetings, strike

import xpulab
from xpulab.cluster import KMeans
from xpulab.data import Outgoing
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator import call as calls
from xpulab.estimator.call import Call
from xpulab.report import progress
from xpulab.report.fit import FitReport
from xpulab.sharing.answers import Reply
from xpulab.sharing.board import PHASES, Board


class Recorded:
    """Replaces a cluster of two engines. `call` writes on the board as they do, and returns their answers."""

    warnings = ("2 engines share the core 0",)

    def __init__(self, script: Any) -> None:
        self.facts = [described(0), described(1)]
        self.board = Board.create(2)
        self.board.ranks["task"] = 0
        self.last_report: Any = None
        self.display = "full"
        self.unheard: dict[int, float] = {}
        self.recover, self.silence, self.size = True, 30.0, 2
        self.script = script

    def called(self, report: Any) -> None:
        self.last_report = report

    def outgoing(self) -> Outgoing:
        return Outgoing()

    def call(self, name: str, payload: dict[str, Any], watch: Any, again: Any) -> Answer:
        for fields in self.script:
            time.sleep(fields.pop("after", 0))
            for field, value in fields.items():
                self.board.ranks[field] = value
            watch(self.board.ranks, FIT["task"])
        history = [(1, number, 100.0 / number, 0.5, 0.25 * number) for number in range(1, 11)]
        iterations = {"history": history, "metrics": ("inertia", "center_shift")}
        replies: list[Reply] = [
            {
                "status": "ok",
                "result": {"rows": 50, **(iterations if rank == 0 else {})},
                "error": None,
                "engine": {"rank": rank, "host": "node", "pid": 7 + rank, "device": "Arc", "cores": [rank]},
                "seconds": dict.fromkeys(("transfer", "compile", "kernel", "communicate", "wait"), 0.5),
                "total": 3.0,
            }
            for rank in (0, 1)
        ]
        return Answer(replies)


class Nothing:
    """A packing without rows."""

    again = False

    def require_room(self, result: float = 0.0) -> None:
        pass

    def __call__(self, outgoing: Outgoing) -> dict[str, Any]:
        return {}


def followed(script: list[dict[str, Any]]) -> tuple[FitReport, list[dict[str, Any]]]:
    """Return the report at the end, and its states after each read of the board."""
    stages: list[dict[str, Any]] = []
    call = Call(KMeans(3), "fit", np.zeros((100, 2), np.float32), Recorded(script), runs=2)  # type: ignore[arg-type]
    with call:
        call._handle.update = lambda report=None: stages.append(call.report.to_dict())  # type: ignore[method-assign]
        call.send("KMeans.fit", Nothing())
    return call.report, stages


def test_silent_engines_are_named_with_the_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = Recorded([])
    call = Call(KMeans(3), "fit", np.zeros((9, 2)), cluster)

    def said(unheard: dict[int, float], again: bool) -> str:
        cluster.unheard, call._recovers = unheard, again
        return call._about_silence()

    assert said({}, True) == ""
    one = "nothing was heard of rank 1 for 7 s: stopped, asleep, or stuck in a driver? After 30 s "
    assert said({1: 7.2}, True).startswith(one + "the cluster starts new engines, and sends the rows again;")
    assert said({1: 7.2}, False).startswith(one + "the call ends; interrupt")
    assert "any engine for 8 s" in said({0: 6, 1: 8}, True)
    assert "After 300 s" in said({0: 6, 1: 8}, True)
    call.ranks.size = 1  # type: ignore[misc]
    assert "any engine for 7 s" in said({0: 7}, True)
    assert "After 30 s" in said({0: 7}, True)


FIT = {"name": b"KMeans.fit", "task": 5, "run": 1, "metrics": (9.0, 0.1, 0, 0), "rows": 50, "total": 2.0}


def test_what_an_earlier_task_left_on_the_board_is_not_shown() -> None:
    before = {**FIT, "task": 0, "iteration": 50, "seconds": [[1.0] * len(PHASES)] * 2}
    other = {**FIT, "task": 4, "name": b"release", "iteration": 50}
    _, stages = followed([before, other, {**FIT, "iteration": 1}, {"iteration": 3}])
    assert [[i["number"] for i in stage["iterations"]] for stage in stages] == [[], [], [1], [1, 3]]
    assert [stage["engines"][0]["total"] for stage in stages] == [0.0, 0.0, 2.0, 2.0]


def test_iterations_share_the_time_since_the_last_read_of_the_board() -> None:
    begun = time.perf_counter()
    _, stages = followed([{**FIT, "iteration": 0}, {"after": 0.4, "iteration": 4}, {"after": 0.2, "iteration": 5}])
    passed = time.perf_counter() - begun
    four, five = stages[-1]["iterations"]
    assert four["seconds"] >= 0.1
    assert five["seconds"] >= 0.2
    assert 4 * four["seconds"] + five["seconds"] <= passed


def test_a_second_run_begins_at_one_again() -> None:
    _, stages = followed([{**FIT, "iteration": 9}, {"run": 2, "iteration": 1}, {"run": 2, "iteration": 1}])
    assert [(i["init"], i["number"]) for i in stages[-1]["iterations"]] == [(1, 9), (2, 1)]


def test_the_report_ends_with_what_the_engines_answered() -> None:
    report, _ = followed([{**FIT, "iteration": 7}])
    assert [iteration.number for iteration in report.iterations] == list(range(1, 11))
    assert [iteration.seconds for iteration in report.iterations] == pytest.approx([0.25] * 10)
    assert [(e.rows, e.total, e.seconds["kernel"]) for e in report.engines] == [(50, 3.0, 0.5)] * 2
    assert (report.status, report.n_init, report.notes) == ("finished", 2, ["2 engines share the core 0"])
    for package in ("python", "xpulab", "scikit-learn", "numpy", "dpctl", "dpnp", "intel-opencl-rt", "mpi4py"):
        assert report.versions[package][0].isdigit()
    assert report.versions["driver of Arc"] == "1.3"


def test_package_that_is_not_there_is_left_out_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name == "intel-opencl-rt":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", installed)
    versions = calls._packages.__wrapped__()
    assert "intel-opencl-rt" not in versions
    assert versions["mpi4py"] == "1.0"


@pytest.fixture
def stages() -> Iterator[list[dict[str, Any]]]:
    """The states of each report that a view saw."""
    seen: list[dict[str, Any]] = []

    class View:
        def update(self, report: Any) -> None:
            ended, state = -1, {}
            while ended != len(report.iterations):  # the call goes on in another thread
                ended = len(report.iterations)
                state = report.to_dict() | {"fraction": report.fraction}
            seen.append(state)

        def close(self, report: Any) -> None: ...

    unsubscribe = progress.subscribe(lambda report: View())
    yield seen
    unsubscribe()


@pytest.mark.cluster
def test_a_real_fit_is_shown_while_it_runs(
    pair: xpulab.XPUCluster, stages: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Each iteration takes long until a view has seen one."""
    pair.activate()
    X = np.random.RandomState(0).normal(size=(20_000, 14)).astype(np.float32)
    for number in range(2):  # the second one's board holds the first one's end
        stages.clear()
        seen = tmp_path / f"seen-{number}"
        pair.run(strike, pause=0.2, enough=str(seen))
        with acted_when(lambda: any(stage["iterations"] for stage in stages), seen.touch):
            km = KMeans(100, init=X[:100], n_init=1, max_iter=100, tol=0).fit(X)
        kept = pair.last_report
        pair.run(meetings)
        running = [stage for stage in stages if stage["iterations"] and stage["status"] == "running"]
        assert running  # the last drawing may come when the fit has ended
        numbers = [stage["iterations"][-1]["number"] for stage in running]
        assert numbers == sorted(numbers)
        assert numbers[0] < km.n_iter_
        last = running[-1]
        assert np.isfinite(last["iterations"][-1]["metrics"]["inertia"])
        assert all(engine["seconds"]["kernel"] > 0 for engine in last["engines"])
        assert [engine["rows"] for engine in last["engines"]] == [10_000, 10_000]
        assert 0 < last["iterations"][-1]["seconds"] < km.report_.seconds
        assert km.report_ is kept


@pytest.mark.cluster
def test_a_real_report_says_whether_it_converged_and_where_its_time_went(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    X = np.random.RandomState(0).normal(size=(100_000, 4))
    cut = KMeans(8, random_state=0, max_iter=2).fit(X).report_
    assert cut.status == "not converged"
    assert "it ended at max_iter, before it converged: raise max_iter, or tol" in str(cut).splitlines()[-1]
    whole = KMeans(2, random_state=0, n_init=3, tol=0.1).fit(X).report_
    assert (whole.status, whole.converged) == ("finished", True)
    assert 0 < whole.sent < whole.seconds
    assert whole.sent + max(engine.total for engine in whole.engines) <= whole.seconds
    again = FitReport.from_dict(whole.to_dict())
    assert (again.converged, again.sent) == (True, whole.sent)


@pytest.mark.cluster
def test_the_report_says_what_engines_do_before_the_first_iteration(
    pair: xpulab.XPUCluster, stages: list[dict[str, Any]]
) -> None:
    pair.activate()
    X = np.random.RandomState(0).normal(size=(200_000, 14)).astype(np.float32)
    for n_clusters in (400, 800, 1600):  # until the choice takes longer than the time before the first updates
        stages.clear()
        KMeans(n_clusters, random_state=0, max_iter=5, n_init=1).fit(X)
        begin = [stage for stage in stages if not stage["iterations"]]
        said = [re.fullmatch(rf"first centre ([\d,]+) of {n_clusters:,}", stage["message"]) for stage in begin]
        if any(said):
            break
    filled = [stage["fraction"] for stage, match in zip(begin, said, strict=True) if match]
    centres = [int(match[1].replace(",", "")) for match in said if match]
    # The bar goes as far as the message says, or, if the report changed while it was read, as far as the next says.
    ends = [(centre - 1) / n_clusters for centre in [*centres, n_clusters + 1]]
    assert all(least <= share <= most for least, share, most in zip(ends[:-1], filled, ends[1:], strict=True))
    assert max(filled) > 0
    assert not any(stage["message"] for stage in stages if stage["iterations"])
    assert pair.last_report.message == ""


def test_the_wait_for_another_call_is_counted() -> None:
    waiting = {**FIT, "task": 4}
    report, _ = followed([waiting, {"after": 0.2, **waiting}, {"after": 0.2, **FIT}])
    assert 0.2 <= report.waited <= report.seconds - 0.2


def test_a_task_that_runs_at_one_look_only_is_no_wait() -> None:
    report, _ = followed([FIT, {"after": 0.2, **FIT, "task": 4}, {"after": 0.2, **FIT}])
    assert report.waited == 0
