"""Interrupts and lost engines during a pass over the rows: each estimator goes on, or says what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import xpulab
from xpulab.basic_statistics import BasicStatistics
from xpulab.cluster import BisectingKMeans
from xpulab.covariance import EmpiricalCovariance
from xpulab.decomposition import PCA, IncrementalPCA, TruncatedSVD
from xpulab.exceptions import EngineLostError
from xpulab.impute import SimpleImputer
from xpulab.linear_model import Lasso, LassoCV, LinearRegression, Ridge, RidgeCV
from xpulab.metrics import silhouette_score
from xpulab.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20_000, 6)) * np.arange(1, 7)
Y = X @ np.arange(6.0) + RNG.normal(size=20_000)
#: An estimator, the attribute to compare, and the launch of a kernel at which a fault happens; the first lays out rows.
CASES: list[tuple[Any, str, int]] = [
    (StandardScaler(), "scale_", 2),
    (MinMaxScaler(), "data_range_", 2),
    (MaxAbsScaler(), "scale_", 2),
    (RobustScaler(), "center_", 3),
    (BasicStatistics(), "variance_", 2),
    (EmpiricalCovariance(), "covariance_", 2),
    (PCA(3), "components_", 2),
    (PCA(3, svd_solver="full"), "components_", 1),
    (PCA(3, svd_solver="randomized", random_state=0), "components_", 4),
    (IncrementalPCA(3), "components_", 1),
    (TruncatedSVD(3, random_state=0), "components_", 4),
    (LinearRegression(), "coef_", 3),
    (Ridge(), "coef_", 3),
    (RidgeCV(), "coef_", 3),
    (Lasso(), "coef_", 3),
    (LassoCV(), "coef_", 3),
    (BisectingKMeans(3, random_state=0), "cluster_centers_", 4),
    (SimpleImputer(strategy="median"), "statistics_", 3),
    (QuantileTransformer(n_quantiles=50, random_state=0), "quantiles_", 1),
]
NAMES = [type(estimator).__name__ for estimator, *_ in CASES]
#: Of each kind of algorithm one: a restart takes seconds.
RESTARTED = ("RobustScaler", "IncrementalPCA", "LassoCV", "BisectingKMeans")
LOST = [case for case, name in zip(CASES, NAMES, strict=True) if name in RESTARTED]


def strike(task: Any, launch: int, act: Callable[[Any], None]) -> None:
    """On an engine: call `act` at a launch of the next task, which has then begun and not ended."""
    device, track, launches = task.device, task.device.track, []

    def counting(event: Any, arguments: Any) -> None:
        track(event, arguments)
        launches.append(event)
        if len(launches) == launch:
            device.track = track
            act(task)

    device.track = counting


def die_on_rank_1(task: Any) -> None:
    if task.comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_interrupt(task: Any) -> None:
    import time

    until = time.monotonic() + 10
    while not task.engine.board.cancelled(int(task.engine.record["task"])):
        assert time.monotonic() < until
        time.sleep(0.01)


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


@contextlib.contextmanager
def interrupted_soon() -> Iterator[None]:
    """A context whose body gets SIGINT after half a second."""
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()  # it has not fired if the body ended too early
        timer.join()


def fit(estimator: Any) -> Any:
    """Fit the estimator, with targets if it takes any, and return it."""
    return estimator.fit(X, Y)


@pytest.mark.parametrize(("estimator", "attribute", "launch"), LOST, ids=RESTARTED)
def test_a_lost_engine_costs_a_restart(running: xpulab.XPUCluster, estimator: Any, attribute: str, launch: int) -> None:
    expected = getattr(fit(estimator), attribute).copy()
    running.run(strike, launch, die_on_rank_1)
    pids = [fact["pid"] for fact in running.facts]
    assert_allclose(getattr(fit(estimator), attribute), expected, rtol=1e-9)
    assert [fact["pid"] for fact in running.facts] != pids
    assert any("lost" in note or "ended" in note for note in estimator.report_.notes)


@pytest.mark.parametrize(("estimator", "attribute", "launch"), CASES, ids=NAMES)
def test_an_interrupt_says_what_to_type_and_the_cluster_goes_on(
    running: xpulab.XPUCluster, estimator: Any, attribute: str, launch: int
) -> None:
    expected = getattr(fit(estimator), attribute).copy()
    pids = [fact["pid"] for fact in running.facts]
    running.run(strike, launch, wait_for_the_interrupt)
    with interrupted_soon(), pytest.raises(KeyboardInterrupt, match=r"nothing was fitted: call it again"):
        fit(estimator)
    assert estimator.report_.status == "interrupted"
    assert_allclose(getattr(fit(estimator), attribute), expected, rtol=1e-9)
    assert [fact["pid"] for fact in running.facts] == pids


def test_a_transform_goes_on_with_new_engines(running: xpulab.XPUCluster) -> None:
    scaler = StandardScaler().fit(X)
    expected = scaler.transform(X)
    running.run(strike, 2, die_on_rank_1)
    assert_allclose(scaler.transform(X), expected)


def test_categories_are_found_after_an_interrupt(running: xpulab.XPUCluster) -> None:
    whole = X.round()
    expected = OneHotEncoder().fit(whole).categories_
    running.run(strike, 1, wait_for_the_interrupt)
    encoder = OneHotEncoder()
    with interrupted_soon(), pytest.raises(KeyboardInterrupt):
        encoder.fit(whole)
    for found, column in zip(encoder.fit(whole).categories_, expected, strict=True):
        np.testing.assert_array_equal(found, column)


def test_a_silhouette_goes_on_with_new_engines_and_ends_with_an_interrupt(running: xpulab.XPUCluster) -> None:
    few, labels = X[:3_000], (X[:3_000, 5] > 0).astype(int)
    expected = silhouette_score(few, labels)
    running.run(strike, 2, die_on_rank_1)
    assert_allclose(silhouette_score(few, labels), expected)
    running.run(strike, 2, wait_for_the_interrupt)
    with interrupted_soon(), pytest.raises(KeyboardInterrupt):
        silhouette_score(few, labels)
    assert_allclose(silhouette_score(few, labels), expected)


def test_rows_of_a_handle_are_lost_with_the_engine(running: xpulab.XPUCluster) -> None:
    rows = running.scatter(X)
    running.run(strike, 1, die_on_rank_1)
    with pytest.raises(EngineLostError):
        StandardScaler().fit(rows)
