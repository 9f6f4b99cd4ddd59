"""What the host's processor computes is a phase of its own, and says how far it is."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.cluster import DBSCAN, KMeans
from xpulab.ensemble import RandomForestClassifier
from xpulab.neighbors import NearestNeighbors
from xpulab.report import progress

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(20_000, 6))


def followed(call: Callable[[], Any]) -> tuple[Any, list[str], list[float]]:
    """Return the result of a call, its lines, and the fractions that its bar has shown."""
    lines: list[str] = []
    fractions: list[float] = []

    class View:
        def update(self, report: Any) -> None:
            lines.append(report.line())
            fractions.extend([report.fraction] if report.fraction is not None else [])

        def close(self, report: Any) -> None: ...

    unsubscribe = progress.subscribe(lambda report: View())
    try:
        return call(), lines, fractions
    finally:
        unsubscribe()


@pytest.fixture(scope="module")
def cluster(clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    return clusters(3)


@pytest.fixture(scope="module")
def kernels_are_finished(cluster: xpulab.XPUCluster) -> None:
    """The first call in an engine's life also finishes kernels."""
    cluster.activate()
    labels = (X[:999, 0] > 0).astype(int)
    RandomForestClassifier(3, random_state=0).fit(X[:999], labels)
    DBSCAN(eps=0.4).fit(X[:999])


@pytest.fixture(autouse=True)
def ready(kernels_are_finished: None, current: xpulab.XPUCluster) -> None:
    """Each test uses these engines."""


def share(cluster: xpulab.XPUCluster) -> float:
    """Return the part of the engines' own time in the last call that the phase has."""
    report = cluster.last_report
    assert all(engine.other >= 0 for engine in report.engines)
    own = [engine.total - engine.seconds["wait"] - engine.seconds["communicate"] for engine in report.engines]
    return sum(engine.seconds["host"] for engine in report.engines) / sum(own)


def test_a_forest_says_at_which_tree_it_is(cluster: xpulab.XPUCluster) -> None:
    for trees in (150, 600, 2_400):  # until a fit is long enough to be looked at several times
        forest = RandomForestClassifier(trees, random_state=0)
        _, lines, fractions = followed(lambda: forest.fit(X, (X[:, 0] * X[:, 1] > 0).astype(int)))  # noqa: B023
        assert share(cluster) > 0.6
        numbers = [int(found[1]) for line in lines if (found := re.search(rf"tree (\d+) of {trees}", line))]
        assert numbers == sorted(numbers)
        if len(set(numbers)) >= 2 and any(" left" in line for line in lines) and max(fractions) > 0.5:
            return
    pytest.fail(f"not shown as it goes on: {lines}")


def test_other_processes_see_the_call_as_the_user_has_made_it(cluster: xpulab.XPUCluster) -> None:
    names: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        ranks = cluster.engines.board.ranks  # type: ignore[union-attr]
        while not ended.wait(0.001):
            names.update(ranks["name"][ranks["task"] != 0].tolist())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        RandomForestClassifier(30, random_state=0).fit(X, (X[:, 0] * X[:, 1] > 0).astype(int))
    finally:
        ended.set()
        looking.join()
    assert b"RandomForestClassifier.fit" in names
    assert not {name for name in names if b"forest." in name}


def test_density_counts_as_work_of_the_host(cluster: xpulab.XPUCluster) -> None:
    DBSCAN(eps=0.4).fit(X)
    assert share(cluster) > 0.6


@pytest.mark.parametrize("shape", [(15_000, 40), (200_000, 4)], ids=["by comparing", "in a tree"])
def test_a_search_for_neighbours_says_at_which_query_it_is(cluster: xpulab.XPUCluster, shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(1).normal(size=shape)
    searched = NearestNeighbors(n_neighbors=20).fit(rows)
    _, lines, fractions = followed(lambda: searched.kneighbors(rows))
    assert any(re.search(rf"query [\d,]+ of {len(rows):,}", line) for line in lines)
    assert 0 < max(fractions) < 1
    report = cluster.last_report
    assert all(engine.seconds["host"] > 0 for engine in report.engines)


def test_dbscan_says_how_many_groups_of_rows_it_has_counted(cluster: xpulab.XPUCluster) -> None:
    rows = np.random.default_rng(1).normal(size=(100_000, 3))
    _, lines, fractions = followed(lambda: DBSCAN(0.5, min_samples=10_000).fit(rows))  # most of the time is counting
    assert any(re.search(r"counting neighbours: group [\d,]+ of [\d,]+", line) for line in lines)
    assert 0 < max(fractions) < 1


def test_estimators_that_compute_on_devices_have_no_such_phase(cluster: xpulab.XPUCluster) -> None:
    report = KMeans(5, random_state=0).fit(X).report_
    assert "host" not in report.phases
    assert report.to_dict()["engines"][0]["seconds"]["host"] == 0
