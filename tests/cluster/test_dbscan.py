"""DBSCAN against scikit-learn's: equal cores and equal numbering of clusters for any number of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sent import nothing_sent
from sklearn.datasets import make_blobs, make_moons

import xpulab
from xpulab.cluster import DBSCAN

pytestmark = pytest.mark.cluster

METRICS: list[dict[str, Any]] = [
    {"metric": "euclidean"},
    {"metric": "sqeuclidean"},
    {"metric": "manhattan"},
    {"metric": "chebyshev"},
    {"metric": "cosine"},
    {"metric": "minkowski", "p": 3},
    {"metric": "minkowski", "metric_params": {"p": 1.5}},
]


def assert_same(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(ours.core_sample_indices_, theirs.core_sample_indices_)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_array_equal(ours.components_, theirs.components_)
    assert (ours.labels_.dtype, ours.core_sample_indices_.dtype) == (np.intp, np.intp)
    assert ours.components_.dtype == theirs.components_.dtype


def check(X: Any, weights: Any = None, **parameters: Any) -> DBSCAN:
    """Compare the fits of xpulab's and scikit-learn's DBSCAN, for rows that scikit-learn searches in a tree.

    Where scikit-learn compares all rows instead, it rounds distances in another way.
    """
    theirs = sklearn.cluster.DBSCAN(**parameters).fit(X, sample_weight=weights)
    ours = DBSCAN(**parameters).fit(X, sample_weight=weights)
    assert_same(ours, theirs)
    return ours


def blobs(n: int, d: int, dtype: Any = np.float64) -> np.ndarray:
    """Return clusters of different density and noise, in random order."""
    spread = [0.3, 0.6, 1.0, 0.5, 0.4]
    X, _ = make_blobs(n - n // 8, d, centers=5, cluster_std=spread, center_box=(-5, 5), random_state=d)
    rng = np.random.default_rng(d)
    return rng.permutation(np.vstack([X, rng.uniform(-6, 6, (n // 8, d))])).astype(dtype)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("d", "eps"), [(1, 0.01), (2, 0.2), (3, 0.4), (4, 0.7), (5, 0.9), (9, 1.6), (20, 2.9)])
def test_the_clusters_are_scikit_learn_s(current: xpulab.XPUCluster, d: int, eps: float, dtype: Any) -> None:
    X = blobs(2000, d, dtype)
    ours = check(X, eps=eps, min_samples=8)
    assert ours.labels_.max() > 1
    assert -1 in ours.labels_
    assert 0 < len(ours.core_sample_indices_) < (ours.labels_ >= 0).sum()  # some rows are at the edge of clusters
    assert sum(engine.rows for engine in ours.report_.engines) == 2000


@pytest.mark.parametrize(
    ("parameters", "d"),
    [(each, 3) for each in METRICS[::2]] + [(each, 20) for each in METRICS[:1] + METRICS[1::2]],
    ids=str,
)
def test_clusters_for_each_metric_are_scikit_learn_s(
    current: xpulab.XPUCluster, parameters: dict[str, Any], d: int
) -> None:
    X = blobs(1500, d)
    eps = {"sqeuclidean": 1.0, "manhattan": 2.2, "cosine": 0.004}.get(parameters["metric"], 0.9) * (d / 3) ** 0.5
    ours = check(X, eps=eps, min_samples=6, **parameters)
    assert 0 < len(ours.core_sample_indices_) < 1500


def test_clusters_that_cross_borders_of_regions_are_joined(current: xpulab.XPUCluster) -> None:
    X, moon = make_moons(3000, noise=0.04, random_state=0)
    ours = check(X, eps=0.1, min_samples=5)
    assert ours.labels_.max() == 1
    np.testing.assert_array_equal(ours.labels_ == ours.labels_[0], moon == moon[0])


def test_one_long_chain_is_one_cluster(current: xpulab.XPUCluster) -> None:
    """The clusters of all ranks are joined, for any order of the rows."""
    X = np.random.default_rng(0).permutation(np.arange(5000.0))[:, None]
    assert set(check(X, eps=1.0, min_samples=3).labels_) == {0}
    assert set(check(X, eps=0.5, min_samples=2).labels_) == {-1}


def test_rows_at_a_distance_of_exactly_eps_are_neighbours(current: xpulab.XPUCluster) -> None:
    X = np.array([0, 1, 2, 3, np.nextafter(4.0, 5.0), 6.0])[:, None]
    assert check(X, eps=1.0, min_samples=2, algorithm="kd_tree").labels_.tolist() == [0, 0, 0, 0, -1, -1]
    single = X.astype(np.float32)
    single[4] = np.nextafter(np.float32(4), np.float32(5))
    assert check(single, eps=1.0, min_samples=2, algorithm="kd_tree").labels_.tolist() == [0, 0, 0, 0, -1, -1]


def test_a_row_near_two_clusters_is_in_the_first(current: xpulab.XPUCluster) -> None:
    left, right = np.array([-1.0, -1.1, -1.2, -1.3]), np.array([1.0, 1.1, 1.2, 1.3])
    X = np.concatenate([[0.0], right, left])[:, None]
    assert check(X, eps=1.0, min_samples=4).labels_.tolist() == [0] * 5 + [1] * 4


def test_rows_that_are_all_neighbours_are_clustered_without_all_pairs(current: xpulab.XPUCluster) -> None:
    """All rows are neighbours. Of the 4e8 pairs few are compared, and none are stored."""
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    X[5000:9000] = 0
    ours = DBSCAN(eps=50.0, min_samples=1000).fit(X)
    assert set(ours.labels_) == {0}
    assert len(ours.core_sample_indices_) == 20_000


def test_distances_that_overflow_are_compared(current: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    assert set(DBSCAN(eps=1e200, min_samples=200).fit(X).labels_) == {0}
    assert set(DBSCAN(eps=1.0, min_samples=2).fit(X * 1e200).labels_) == {-1}


def test_negative_weights_keep_neighbours_from_being_cores(current: xpulab.XPUCluster) -> None:
    """No row has enough weight before all of its neighbours are counted."""
    X, weights = np.repeat([0.0, 0.5, 9.0], [100, 300, 20])[:, None], np.repeat([1.0, -1.0, 1.0], [100, 300, 20])
    assert np.unique(check(X, weights, eps=1.0, min_samples=5).core_sample_indices_ >= 400).tolist() == [True]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_random_rows_weights_and_shards_give_scikit_learn_s_clusters(
    current: xpulab.XPUCluster, data: st.DataObject
) -> None:
    """The rows have few different values, so that rows are equal and distances are exactly eps."""
    n, d = data.draw(st.integers(1, 300)), data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 10, 21]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = data.draw(st.integers(1, 12))
    X = rng.integers(0, values, (n, d)).astype(dtype)
    if data.draw(st.booleans()):
        X += rng.normal(scale=0.2, size=(n, d)).astype(dtype)
    weights = rng.integers(*data.draw(st.sampled_from([(-2, 4), (0, 2), (1, 9)])), n)
    weights[-1] = 1  # scikit-learn rejects weights that are all 0
    weights = data.draw(st.sampled_from([None, weights, weights / 2]))
    parameters = {
        "eps": data.draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 100.0])),
        "min_samples": data.draw(st.integers(1, 12)),
        "metric": data.draw(st.sampled_from(["euclidean", "manhattan", "chebyshev"])),
    }
    theirs = sklearn.cluster.DBSCAN(algorithm="kd_tree", **parameters).fit(X, sample_weight=weights)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=current.size - 1, max_size=current.size - 1)))
    handle = current.scatter(X, counts=np.diff([0, *cuts, n]).tolist())
    for given_rows in (X, handle):
        assert_same(DBSCAN(**parameters).fit(given_rows, sample_weight=weights), theirs)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_uneven_shards_and_a_file_give_the_same_clusters(
    current: xpulab.XPUCluster, tmp_path: Path, metric: str
) -> None:
    X = blobs(900, 3, np.float32)
    parameters = {"eps": 0.4 if metric == "euclidean" else 0.002, "min_samples": 6, "metric": metric}
    theirs = sklearn.cluster.DBSCAN(**parameters).fit(X)
    for counts in ([900 - 7 * (current.size - 1)] + [7] * (current.size - 1), [0] * (current.size - 1) + [900]):
        handle = current.scatter(X, counts=counts)
        assert_same(DBSCAN(**parameters).fit(handle), theirs)
        np.testing.assert_array_equal(handle.gather(), X)
    np.save(tmp_path / "X.npy", X)
    assert_same(DBSCAN(**parameters).fit(np.load(tmp_path / "X.npy", mmap_mode="r")), theirs)


def test_rows_of_zeros_get_scikit_learn_s_cosine_distances(current: xpulab.XPUCluster) -> None:
    X = blobs(300, 3)
    X[::10] = 0
    for eps in (0.01, 1.0, 1.5):
        check(X, eps=eps, min_samples=1, metric="cosine")
        check(X, eps=eps, min_samples=40, metric="cosine")


def test_there_may_be_fewer_rows_than_engines(current: xpulab.XPUCluster) -> None:
    assert check([[1.0, 2.0]], eps=1.0, min_samples=1).labels_.tolist() == [0]
    assert check([[1, 2], [1, 2]], eps=1.0, min_samples=3).components_.shape == (0, 2)


def test_names_of_columns_are_kept(on_pair: xpulab.XPUCluster) -> None:
    frame = pd.DataFrame(blobs(300, 3), columns=list("abc"))
    ours = DBSCAN(eps=0.5)
    np.testing.assert_array_equal(ours.fit_predict(frame), sklearn.cluster.DBSCAN(eps=0.5).fit_predict(frame))
    assert list(ours.feature_names_in_) == list("abc")
    assert ours.n_features_in_ == 3


def test_bad_input_is_refused_before_anything_is_sent(on_pair: xpulab.XPUCluster) -> None:
    X = blobs(40, 3)
    spoilt = X.copy()
    spoilt[3, 1] = np.nan
    handle, weights = on_pair.scatter(X), on_pair.scatter(X[:, 0], counts=[1, 39])
    refused: list[tuple[Any, str]] = [
        (lambda: DBSCAN(eps=0.0).fit(X), "'eps' parameter"),
        (lambda: DBSCAN(eps=-1.0).fit(X), "'eps' parameter"),
        (lambda: DBSCAN(min_samples=0).fit(X), "'min_samples' parameter"),
        (lambda: DBSCAN(p=-1.0).fit(X), "'p' parameter"),
        (lambda: DBSCAN(metric="minkowski", p=0).fit(X), "a number above 0"),
        (lambda: DBSCAN(metric="hyperspace").fit(X), "'metric' parameter"),
        (lambda: DBSCAN(metric="canberra").fit(X), r"is not computed on the engines.*use sklearn\.cluster\.DBSCAN"),
        (lambda: DBSCAN(metric="precomputed").fit(X), "'precomputed' is not computed on the engines"),
        (lambda: DBSCAN(metric=lambda a, b: 0.0).fit(X), "is not computed on the engines"),
        (lambda: DBSCAN(metric="minkowski", metric_params={"w": np.ones(3)}).fit(X), "weights 'w' of the features"),
        (lambda: DBSCAN(algorithm="tree").fit(X), "'algorithm' parameter"),
        (lambda: DBSCAN().fit(spoilt), r"contains NaN(.|\n)*row 3, column 1"),
        (lambda: DBSCAN().fit(X[:, 0]), "Expected 2D array"),
        (lambda: DBSCAN().fit(X[:0]), "0 sample"),
        (lambda: DBSCAN().fit(sparse.csr_matrix(X)), "[Ss]parse"),
        (lambda: DBSCAN().fit(X, sample_weight=np.ones(39)), r"sample_weight.shape == \(39,\)"),
        (lambda: DBSCAN().fit(X, sample_weight=spoilt[:, 1]), "contains NaN"),
        (lambda: DBSCAN().fit(handle, sample_weight=weights), r"pass sample_weight\.gather\(\)"),
    ]
    with nothing_sent(on_pair):
        for call, message in refused:
            with pytest.raises((ValueError, TypeError), match=message):
                call()
