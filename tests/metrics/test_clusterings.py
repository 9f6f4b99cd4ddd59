"""Silhouettes and the scores of clusterings against scikit-learn: dtypes, metrics, samples, handles, files, errors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from constants import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import make_blobs

import xpulab
from xpulab import metrics

pytestmark = pytest.mark.cluster

ONE_AND_THREE = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
METRICS: list[tuple[str, dict[str, Any]]] = [
    ("euclidean", {}),
    ("l2", {"n_jobs": 2}),
    ("sqeuclidean", {}),
    ("cityblock", {}),
    ("chebyshev", {}),
    ("cosine", {}),
    ("minkowski", {}),
    ("minkowski", {"p": 1}),
    ("minkowski", {"p": 2.5}),
]


def blobs(n: int = 403, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Rows near 100, where products of float32 would lose their differences; one is alone in its cluster."""
    X, y = make_blobs(n, 5, centers=6, cluster_std=4.0, random_state=2)
    y[7] = 9
    return (X + 100).astype(dtype), y


def ways(cluster: xpulab.XPUCluster, X: np.ndarray) -> list[Any]:
    """Return an array, and a handle; with several engines, the first has no rows."""
    n, size = len(X), cluster.size
    return [X, cluster.scatter(X, counts=[n] if size == 1 else [0, n - 5 * (size - 2), *[5] * (size - 2)])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_silhouettes(current: xpulab.XPUCluster, dtype: Any) -> None:
    X, y = blobs(dtype=dtype)
    names = np.array(list("abcdefghij"))[y]
    for rows in ways(current, X):
        for metric, arguments in METRICS if current.size == 3 else METRICS[:1]:
            expected = sklearn.metrics.silhouette_samples(X.astype(np.float64), y, metric=metric, **arguments)
            found = metrics.silhouette_samples(rows, names, metric=metric, **arguments)
            assert found.dtype == sklearn.metrics.silhouette_samples(X[:9], y[:9], metric=metric, **arguments).dtype
            exact = 1e-12 if dtype == np.float64 else 1e-3 if metric == "cosine" else 3e-6
            np.testing.assert_allclose(found, expected, rtol=0, atol=exact)
            assert found[7] == 0
            score = metrics.silhouette_score(rows, y, metric=metric, **arguments)
            assert score == pytest.approx(expected.mean(), abs=exact)


@ONE_AND_THREE
def test_samples_are_drawn_as_in_scikit_learn(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y = blobs()
    np.save(tmp_path / "X.npy", X)
    labels = current.scatter(y.astype(np.float64))
    for rows in [*ways(current, X), np.load(tmp_path / "X.npy", mmap_mode="r")]:
        for state in (0, np.random.RandomState(3)):
            again = 0 if state == 0 else np.random.RandomState(3)
            expected = sklearn.metrics.silhouette_score(X, y, sample_size=101, random_state=again)
            found = metrics.silhouette_score(rows, labels, sample_size=101, random_state=state)
            assert found == pytest.approx(expected, abs=1e-12)
        assert metrics.silhouette_score(rows, y) == pytest.approx(sklearn.metrics.silhouette_score(X, y), abs=1e-12)


@ONE_AND_THREE
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_spreads(current: xpulab.XPUCluster, dtype: Any) -> None:
    X, y = blobs(dtype=dtype)
    for rows in ways(current, X):
        for name in ("davies_bouldin_score", "calinski_harabasz_score"):
            theirs = getattr(sklearn.metrics, name)(X.astype(np.float64), y)
            assert getattr(metrics, name)(rows, y) == pytest.approx(theirs, rel=1e-11)


def pairs_of_points(repeat: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two clusters of two points, each of so many rows, and their labels."""
    return np.repeat([[0.0, 0], [1, 0], [10, 0], [11, 0]], repeat, axis=0), np.repeat([0, 0, 1, 1], repeat)


@functools.cache
def theirs_of_pairs(name: str, repeat: int) -> float:
    return float(getattr(sklearn.metrics, name)(*pairs_of_points(repeat)))


@pytest.mark.parametrize("name", ["davies_bouldin_score", "calinski_harabasz_score", "silhouette_score"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scale=st.integers(-40, 40), away=st.integers(0, 30), repeat=st.sampled_from([1, 1000]))
def test_scores_of_rows_of_any_size_and_distance_from_zero(
    name: str, scale: int, away: int, repeat: int, on_pair: xpulab.XPUCluster
) -> None:
    P, labels = pairs_of_points(repeat)
    moved = (P + 2.0**away) * 2.0**scale  # exactly
    assert getattr(metrics, name)(moved, labels) == pytest.approx(theirs_of_pairs(name, repeat), rel=1e-6)


@pytest.mark.parametrize("scale", [-600, 510, 600, 1000])
def test_a_ratio_of_distances_whose_squares_no_number_holds(scale: int, on_pair: xpulab.XPUCluster) -> None:
    X, y = blobs()
    expected = sklearn.metrics.davies_bouldin_score(X, y)
    for rows in (scaled := X * 2.0**scale, sparse.csr_matrix(scaled), on_pair.scatter(scaled)):
        assert metrics.davies_bouldin_score(rows, y) == pytest.approx(expected, rel=1e-9)


def test_clusters_that_are_points_have_the_scores_of_scikit_learn(on_pair: xpulab.XPUCluster) -> None:
    labels = np.repeat([0, 1], [1000, 777])
    for X in (np.full((1777, 3), 0.1), np.where(labels, 0.1, 0.3)[:, None] * np.ones(3)):
        assert metrics.davies_bouldin_score(X, labels) == pytest.approx(0, abs=1e-12)


def test_many_steps_are_the_same_as_one(on_pair: xpulab.XPUCluster) -> None:
    X, y = blobs()
    with constants(on_pair, "xpulab.engine.algorithms.clustering.silhouette", _WORK=1.0, _PIECE=50):
        found = metrics.silhouette_samples(X, y)
    np.testing.assert_allclose(found, sklearn.metrics.silhouette_samples(X, y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_beyond_the_dtype(on_pair: xpulab.XPUCluster, scale: float) -> None:
    X, y = blobs()
    small, usual = ((X * factor).astype(np.float32) for factor in (scale, 1.0))
    expected = sklearn.metrics.silhouette_score(usual.astype(np.float64), y)
    for metric in ("euclidean", "sqeuclidean"):
        expected = sklearn.metrics.silhouette_score(usual.astype(np.float64), y, metric=metric)
        assert metrics.silhouette_score(small, y, metric=metric) == pytest.approx(expected, abs=1e-5)


def test_near_duplicates_are_told_apart(on_pair: xpulab.XPUCluster) -> None:
    """Far from the origin, products of float32 round away the distances within clusters."""
    rng = np.random.default_rng(0)
    X = (rng.integers(0, 3, (300, 1)) * 8 + 4096 + rng.integers(0, 4, (300, 8)) / 1024).astype(np.float32)
    y = np.round((X[:, 0] - 4096) / 8).astype(int)
    y[::3] = rng.integers(0, 3, 100)
    expected = sklearn.metrics.silhouette_samples(X.astype(np.float64) - 4096, y)
    np.testing.assert_allclose(metrics.silhouette_samples(X, y), expected, rtol=0, atol=1e-6)


def test_rows_of_zeros_have_no_direction(on_pair: xpulab.XPUCluster) -> None:
    X, y = blobs(60)
    X[::7] = 0
    expected = sklearn.metrics.silhouette_samples(X, y, metric="cosine")
    np.testing.assert_allclose(metrics.silhouette_samples(X, y, metric="cosine"), expected, rtol=0, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(3, 70), d=st.integers(1, 20), k=st.integers(2, 40), data=st.data())
def test_any_shape(pair: xpulab.XPUCluster, n: int, d: int, k: int, data: st.DataObject) -> None:
    pair.activate()
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    X, y = rng.integers(-3, 4, (n, d)).astype(np.float32), rng.integers(0, min(k, n - 1), n)
    y[:2] = 0, 1
    if len(np.unique(y)) == n:
        y[-1] = y[0]
    cut = data.draw(st.integers(0, n))
    for rows in (X, pair.scatter(X, counts=[cut, n - cut])):
        expected = sklearn.metrics.silhouette_samples(X.astype(np.float64), y)
        np.testing.assert_allclose(metrics.silhouette_samples(rows, y), expected, rtol=0, atol=1e-5)


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    X, y = blobs(40)
    for wrong, words in (
        ({"metric": "precomputed"}, "'precomputed' is not computed on the engines; expected one of 'euclidean'"),
        ({"metric": np.dot}, "is not computed on the engines"),
        ({"squared": True}, "squared was given for metric='euclidean'"),
        ({"metric": "minkowski", "p": 0}, "p=0 was given"),
        ({"sample_size": 0}, "The 'sample_size' parameter of silhouette_score must be"),
    ):
        with pytest.raises(ValueError, match=words):
            metrics.silhouette_score(X, y, **wrong)
    for function in (metrics.silhouette_score, metrics.davies_bouldin_score, metrics.calinski_harabasz_score):
        for labels in (np.zeros(40), np.arange(40)):
            with pytest.raises(ValueError, match=r"Number of labels is \d+. Valid values are 2 to n_samples - 1"):
                function(on_pair.scatter(X), labels)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            function(X, y[1:])
        with pytest.raises(ValueError, match="contains NaN"):
            function(np.where(X > 100, np.nan, X), y)
    assert on_pair.last_report is not None
    metrics.davies_bouldin_score(X, y)
    assert on_pair.last_report.title == "metrics.davies_bouldin_score"
