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

X = np.random.default_rng(0).normal(size=(500, 4))
Y = X.sum(axis=1)


def test_a_search_with_two_jobs_uses_the_cluster_of_this_process(on_pair: xpulab.XPUCluster) -> None:
    plain = GridSearchCV(Ridge(), {"alpha": [0.1, 10.0]}, cv=2).fit(X, Y)
    with xpulab.accel(least=0) as acceleration:
        search = GridSearchCV(Ridge(), {"alpha": [0.1, 10.0]}, cv=2, n_jobs=2).fit(X, Y)
        acceleration.log.read()
        entries = acceleration.log.since(0).entries
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    fits = [entry for entry in entries if entry.method == "fit"]
    assert [entry.engines for entry in fits] == [2] * 5, [str(entry) for entry in entries]
    elsewhere = {entry.process for entry in fits if entry.process}
    assert elsewhere
    assert f"worker {os.getpid()}" not in elsewhere
    assert on_pair.running
    # Workers that start after accel was turned off are ordinary ones.
    with joblib.Parallel(2) as parallel:
        assert parallel(joblib.delayed(lambda: "xpulab" in sys.modules)() for _ in range(2)) == [False, False]
        parallel._backend._workers.terminate()


def test_a_worker_without_a_cluster_says_why(on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xpulab.XPUCluster, "known_as", "nowhere")
    with xpulab.accel(least=0) as acceleration:
        assert joblib.Parallel(2)(joblib.delayed(_labels)(X) for _ in range(2))
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


def _mean(rows: np.ndarray) -> np.ndarray:
    mean: np.ndarray = StandardScaler().fit(rows).mean_
    return mean
