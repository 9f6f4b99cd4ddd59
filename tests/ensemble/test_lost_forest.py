"""A forest whose fit is interrupted, or loses an engine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import xpulab
from xpulab.ensemble import RandomForestClassifier
from xpulab.exceptions import EngineLostError

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(2_000, 5)).astype(np.float32)
Y = X[:, 0] * X[:, 1] > 0


def die_on_rank_1(task: Any) -> None:
    """Kill rank 1 when it grows its third tree."""
    from xpulab.engine.algorithms import forest as module

    forest: Any = module
    grow, grown = forest.grow_tree, []

    def die(*arguments: Any) -> Any:
        grown.append(1)
        if len(grown) == 3 and task.comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return grow(*arguments)

    forest.grow_tree = die


def wait_for_the_interrupt(task: Any) -> None:
    """Let the next tree wait until there is a request to stop."""
    import time

    from xpulab.engine.algorithms import forest as module

    forest: Any = module
    grow, board = forest.grow_tree, task.engine.board

    def waiting(*arguments: Any) -> Any:
        until = time.monotonic() + 20
        while not board.cancelled(int(task.engine.record["task"])):
            assert time.monotonic() < until
            time.sleep(0.01)
        forest.grow_tree = grow
        return grow(*arguments)

    forest.grow_tree = waiting


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
    cluster.activate()
    return RandomForestClassifier(20, random_state=0).fit(X, Y).predict_proba(X)


def test_a_fit_goes_on_with_new_engines(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    running.run(die_on_rank_1)
    ours = RandomForestClassifier(20, random_state=0).fit(X, Y)
    assert any("new engines" in note for note in ours.report_.notes)
    np.testing.assert_array_equal(ours.predict_proba(X), expected)
    running.restart()  # these have no trees
    np.testing.assert_array_equal(ours.predict_proba(X), expected)


def test_rows_of_a_handle_are_lost_with_the_engine(running: xpulab.XPUCluster) -> None:
    handle = running.scatter(X)
    running.run(die_on_rank_1)
    with pytest.raises(EngineLostError):
        RandomForestClassifier(20, random_state=0).fit(handle, Y)


def test_an_interrupted_fit_fits_nothing(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    forest = RandomForestClassifier(20, random_state=0)
    running.run(wait_for_the_interrupt)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt, match=r"RandomForestClassifier\.fit was interrupted; nothing was fitted"):
            forest.fit(X, Y)
    finally:
        timer.join()
    with pytest.raises(NotFittedError):
        forest.predict(X)
    np.testing.assert_array_equal(forest.fit(X, Y).predict_proba(X), expected)
