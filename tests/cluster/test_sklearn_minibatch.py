"""scikit-learn's tests and checks of MiniBatchKMeans and BisectingKMeans on two engines, and lost and stopped fits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.cluster import BisectingKMeans, MiniBatchKMeans

pytestmark = pytest.mark.cluster

_WEIGHTS = (
    "rows are drawn by weight, so that weights do not stand for repeated rows; scikit-learn's does not pass either"
)
EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": _WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": _WEIGHTS,
}
CANNOT = {"test_bisecting_kmeans_custom_init_validation": "a callable init is refused"}
#: Numbers of tests that call the fit of the proxies, with scikit-learn 1.7 and 1.9.
LEAST_CALLING = {"MiniBatchKMeans": 60, "BisectingKMeans": 14}
X = np.random.default_rng(0).normal(size=(20_000, 8))


@pytest.mark.parametrize(
    ("proxy", "module", "only"),
    [
        ("MiniBatchKMeans", "test_k_means", "MiniBatch or mini_batch or minibatch"),
        ("BisectingKMeans", "test_bisect_k_means", ""),
    ],
)
def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path, proxy: str, module: str, only: str) -> None:
    """All tests pass except those that cannot, and enough of them call our fit."""
    modules, proxies = [f"sklearn.cluster.tests.{module}"], [f"xpulab.cluster:{proxy}"]
    run_suite(tmp_path, pair, modules, proxies, LEAST_CALLING[proxy], CANNOT, only)


_checks = parametrize_with_checks(
    [MiniBatchKMeans(n_clusters=3, n_init=1), BisectingKMeans(n_clusters=3)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(on_pair: xpulab.XPUCluster, estimator: Any, check: Any) -> None:
    check(estimator)


def at_step(task: Any, number: int, dies: bool) -> None:
    """On an engine: at this step of the next fit, rank 1 dies, or all ranks wait for the interrupt."""
    import os
    import signal
    import time

    from xpulab.engine.algorithms.clustering import minibatch

    minibatch._KEEP = -1.0  # keep the state after each step
    labelled, seen = minibatch._labelled, []

    def counting(problem: Any, *asked: Any) -> Any:
        seen.append(asked)
        if len(seen) == number:
            minibatch._labelled = labelled
            if dies and problem.comm.rank == 1:
                time.sleep(0.1)  # after rank 0 has kept a state
                os.kill(os.getpid(), signal.SIGKILL)
            until = time.monotonic() + 20
            while not dies and not problem.task.cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
        return labelled(problem, *asked)

    minibatch._labelled = counting  # type: ignore[assignment]


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


PARAMETERS: dict[str, Any] = {"n_clusters": 6, "random_state": 0, "max_no_improvement": None, "max_iter": 2}


def test_an_interrupted_fit_goes_on_as_if_it_had_not_been(running: xpulab.XPUCluster) -> None:
    expected = MiniBatchKMeans(**PARAMETERS).fit(X)
    model = MiniBatchKMeans(**PARAMETERS)
    running.run(at_step, 9, False)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt, match="interrupted in iteration 9; to go on, type"):
            model.fit(X)
    finally:
        timer.join()
    assert (model.report_.status, model.n_steps_, hasattr(model, "labels_")) == ("interrupted", 9, False)
    assert model.predict(X).shape == (20_000,)
    assert xpulab.interrupted() is model
    model.set_params(max_iter=1)  # the fit that goes on has the parameters that it began with
    assert model.resume() is model
    assert model.n_steps_ == expected.n_steps_ == 39
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    assert running.interrupted is None
    with pytest.raises(NotFittedError, match="no interrupted fit to go on with"):
        model.resume()


def test_a_fit_that_loses_an_engine_goes_on_with_new_ones(running: xpulab.XPUCluster) -> None:
    expected = MiniBatchKMeans(**PARAMETERS).fit(X)
    running.run(at_step, 9, True)
    model = MiniBatchKMeans(**PARAMETERS).fit(X)
    assert any("the fit went on from iteration" in note for note in model.report_.notes)
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    assert model.n_steps_ == expected.n_steps_
