"""scikit-learn's tests and checks of DBSCAN on two engines, and copies, pickles and lost engines."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.cluster import DBSCAN
from xpulab.exceptions import EngineLostError, HandleError

pytestmark = pytest.mark.cluster

#: Parts of the names of tests of input that this estimator rejects with an error, so that the tests cannot pass.
REFUSED = ["sparse", "precomputed", "csr", "callable", "similarity"]
CANNOT = {
    "test_dbscan_balltree": "it also fits precomputed distances, which are refused",
    "test_weighted_dbscan": "it also fits precomputed distances, which are refused",
    "test_pickle": "the class that counts calls of fit cannot be pickled; copies are tested below",
}
LEAST_CALLING = 8
X = np.random.default_rng(0).normal(size=(30_000, 3))


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """All tests pass except those that cannot, and enough of them call our fit."""
    only = " and ".join(f"not {part}" for part in REFUSED)
    run_suite(
        tmp_path, pair, ["sklearn.cluster.tests.test_dbscan"], ["xpulab.cluster:DBSCAN"], LEAST_CALLING, CANNOT, only
    )


_checks = parametrize_with_checks([DBSCAN()])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(on_pair: xpulab.XPUCluster, estimator: Any, check: Any) -> None:
    check(estimator)


def test_clones_pickles_and_plain_estimators(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(sklearn.exceptions.NotFittedError):
        DBSCAN().to_sklearn()
    fitted = DBSCAN(eps=0.2).fit(X[:3000])
    assert not hasattr(clone(fitted), "labels_")
    plain = fitted.to_sklearn()
    assert type(plain) is sklearn.cluster.DBSCAN
    assert not hasattr(plain, "report_")
    for other in (plain, pickle.loads(pickle.dumps(fitted)), pickle.loads(pickle.dumps(plain))):
        np.testing.assert_array_equal(other.labels_, fitted.labels_)
        np.testing.assert_array_equal(other.components_, fitted.components_)
    assert fitted.get_params() == sklearn.cluster.DBSCAN(eps=0.2).get_params()


def die_on_rank_1(task: Any) -> None:
    """Kill rank 1 at its next launch of a kernel."""

    def die(event: Any, arguments: Any) -> None:
        if task.comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    task.device.track = die


def wait_for_the_interrupt(task: Any) -> None:
    """Let the next check for a request to stop, inside of a pass, wait until there is one."""
    from xpulab.engine.engine import Task

    look = Task.leave_if_cancelled

    def waiting(self: Any) -> None:
        Task.leave_if_cancelled = look  # type: ignore[method-assign]
        until = time.monotonic() + 10
        while not self.cancelled():
            assert time.monotonic() < until
            time.sleep(0.01)
        look(self)

    Task.leave_if_cancelled = waiting  # type: ignore[method-assign]


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
    labels: np.ndarray = DBSCAN(eps=0.15).fit(X).labels_
    assert labels.max() > 1
    return labels


def test_a_fit_goes_on_with_new_engines(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    running.run(die_on_rank_1)
    ours = DBSCAN(eps=0.15).fit(X)
    assert any("new engines" in note for note in ours.report_.notes)
    np.testing.assert_array_equal(ours.labels_, expected)


def test_rows_of_a_handle_are_lost_with_the_engine(running: xpulab.XPUCluster) -> None:
    handle = running.scatter(X)
    running.run(die_on_rank_1)
    with pytest.raises(EngineLostError):
        DBSCAN(eps=0.15).fit(handle)
    running.restart()
    with pytest.raises(HandleError, match=r"."):
        DBSCAN(eps=0.15).fit(handle)


def test_an_interrupted_fit_leaves_the_engines_ready(running: xpulab.XPUCluster, expected: np.ndarray) -> None:
    running.run(wait_for_the_interrupt)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    ours = DBSCAN(eps=0.15)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"DBSCAN\.fit was interrupted; nothing was fitted"):
            ours.fit(X)
    finally:
        timer.join()
    assert not hasattr(ours, "labels_")
    np.testing.assert_array_equal(ours.fit_predict(X), expected)
