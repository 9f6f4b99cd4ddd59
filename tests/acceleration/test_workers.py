"""accel in the worker processes that joblib starts."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import joblib
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

import xpulab
from xpulab.exceptions import UsageError

X = np.random.default_rng(0).normal(size=(500, 4))
Y = X.sum(axis=1)


def searched(n_jobs: int | None = None) -> GridSearchCV:
    return GridSearchCV(Ridge(), {"alpha": [0.1, 10.0]}, cv=2, n_jobs=n_jobs).fit(X, Y)


def engines_of_fits(acceleration: xpulab.acceleration.Acceleration) -> dict[str, list[int]]:
    """Return, by process, on how many engines each fit ran."""
    acceleration.log.read()
    found: dict[str, list[int]] = {}
    for entry in acceleration.log.since(0).entries:
        if entry.method == "fit":
            found.setdefault(entry.process, []).append(entry.engines)
    return found


def test_a_search_with_two_jobs_has_two_groups_of_engines(on_pair: xpulab.XPUCluster) -> None:
    plain = searched()
    with xpulab.accel(least=0) as acceleration:
        search = searched(2)
        found = engines_of_fits(acceleration)
        assert joblib.Parallel(2)(joblib.delayed(_is_replaced)() for _ in range(2)) == [True, True]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    assert found.pop("") == [2]  # of all rows, at the end
    assert found.keys() <= {f"worker {engine.pid}" for engine in on_pair.engines.facts}
    assert [n for fits in found.values() for n in fits] == [1] * 4
    # Jobs that are sent after accel was turned off are scikit-learn's own.
    with joblib.parallel_config("xpulab", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(_is_replaced)() for _ in range(2)) == [False, False]


def test_what_scikit_learn_would_compute_is_an_error_in_jobs_too(on_pair: xpulab.XPUCluster) -> None:
    with xpulab.accel(strict=True), pytest.raises(UsageError, match=r"Ridge\.fit would be computed by scikit-learn"):
        GridSearchCV(Ridge(), {"alpha": [0.1, 10.0]}, cv=2, n_jobs=2, error_score="raise").fit(X, Y)


def test_a_search_with_more_jobs_than_engines_uses_the_cluster_of_this_process(on_pair: xpulab.XPUCluster) -> None:
    plain = searched()
    with xpulab.accel(least=0) as acceleration:
        search = searched(3)
        found = engines_of_fits(acceleration)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    assert [n for fits in found.values() for n in fits] == [2] * 5
    assert found.pop("") == [2]
    assert f"worker {os.getpid()}" not in found
    assert on_pair.running
    # Workers that start after accel was turned off are ordinary ones.
    with joblib.Parallel(2) as parallel:
        assert parallel(joblib.delayed(lambda: "xpulab" in sys.modules)() for _ in range(2)) == [False, False]
        parallel._backend._workers.terminate()


def test_a_worker_without_a_cluster_says_why(on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xpulab.XPUCluster, "known_as", "nowhere")
    with xpulab.accel(least=0) as acceleration:
        assert joblib.Parallel(3)(joblib.delayed(_labels)(X) for _ in range(2))
        acceleration.log.read()
        entries = acceleration.log.since(0).entries
    assert len(entries) == 2
    assert all("this worker could not attach to the cluster" in str(entry) for entry in entries)
    assert all("nowhere" in str(entry) for entry in entries)
    assert not any(entry.engines for entry in entries)


def test_a_forked_worker_says_why(on_pair: xpulab.XPUCluster) -> None:
    # A scaler, because OpenMP's threads, which k-means uses, may stand still in a forked process.
    with xpulab.accel(least=0) as acceleration:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as workers:  # joblib's may wait for ever
            assert len(list(workers.map(_mean, [X, X]))) == 2
        acceleration.log.read()
        entries = acceleration.log.since(0).entries
    assert len(entries) == 2
    assert all(f"was forked, and only process {os.getpid()} can use the cluster" in str(entry) for entry in entries)


def _labels(rows: np.ndarray) -> np.ndarray:
    labels: np.ndarray = KMeans(2, random_state=0, n_init=1).fit(rows).labels_
    return labels


def _is_replaced() -> bool:
    return "xpulab" in Ridge.fit.__code__.co_filename


def _mean(rows: np.ndarray) -> np.ndarray:
    mean: np.ndarray = StandardScaler().fit(rows).mean_
    return mean
