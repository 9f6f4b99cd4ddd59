"""After an interrupt of a search the rows are still on the engines; after the loss of an engine they are sent again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.exceptions import EngineLostError, HandleError
from xpulab.neighbors import NearestNeighbors

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(20_000, 20))


def die_on_rank_1(task: Any) -> None:
    """Kill rank 1 at its next launch of a kernel."""

    def die(event: Any, arguments: Any) -> None:
        if task.comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    task.device.track = die


def wait_for_the_interrupt(task: Any) -> None:
    """Let the second next check for a request to stop wait until there is one."""
    from xpulab.engine.engine import Task

    check, looks = Task.check, []

    def waiting(self: Any) -> None:
        looks.append(self)
        if len(looks) == 3:  # when the task begins, and before the first queries
            Task.check = check  # type: ignore[method-assign]
            until = time.monotonic() + 10
            while not self.cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
        check(self)

    Task.check = waiting  # type: ignore[method-assign]


def held(task: Any) -> list[int]:
    """Return the addresses of the rows that the engine keeps."""
    return [each.data.pointer for each in task.engine.handles.values()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, silence=5.0) as cluster:
        yield cluster


@pytest.fixture
def running(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    """The active cluster; a test may lose its engines."""
    if not cluster.running:
        cluster.restart()
    return cluster.activate()


@pytest.fixture(scope="module")
def expected(cluster: xpulab.XPUCluster) -> np.ndarray:
    places: np.ndarray = NearestNeighbors().fit(X).kneighbors(X[:300], return_distance=False)
    return places


def test_a_search_goes_on_with_new_engines(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    ours = NearestNeighbors().fit(X)
    running.run(die_on_rank_1)
    pids = [fact["pid"] for fact in running.facts]
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)
    assert [fact["pid"] for fact in running.facts] != pids
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)
    within = ours.radius_neighbors(X[:3], 2.5, return_distance=False)
    running.restart()
    again = ours.radius_neighbors(X[:3], 2.5, return_distance=False)
    assert [some.tolist() for some in again] == [some.tolist() for some in within]


def test_a_fit_goes_on_with_new_engines(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    running.run(die_on_rank_1)
    ours = NearestNeighbors().fit(X)
    assert any("new engines" in note for note in ours.report_.notes)
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)


def test_rows_of_a_handle_are_lost_with_the_engine(running: xpulab.XPUCluster) -> None:
    ours = NearestNeighbors().fit(running.scatter(X))
    running.run(die_on_rank_1)
    with pytest.raises(EngineLostError):
        ours.kneighbors(X[:3])
    running.restart()
    with pytest.raises(HandleError, match="are gone"):
        ours.kneighbors(X[:3])


def test_an_interrupted_search_leaves_the_rows_there(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    ours = NearestNeighbors().fit(X)
    there = running.run(held)
    running.run(wait_for_the_interrupt)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt, match=r"NearestNeighbors\.kneighbors was interrupted"):
            ours.kneighbors(np.vstack([X, X]))
    finally:
        timer.join()
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)
    assert running.run(held) == there
