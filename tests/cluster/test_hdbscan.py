"""HDBSCAN against scikit-learn's: the same hierarchy for any number of engines, and ties in a fixed order."""

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
from scipy.spatial.distance import cdist
from sent import nothing_sent
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score

import xpulab
from xpulab.cluster import HDBSCAN

pytestmark = pytest.mark.cluster

METRICS: list[dict[str, Any]] = [
    {"metric": "euclidean"},
    {"metric": "sqeuclidean"},
    {"metric": "manhattan", "alpha": 1.3},
    {"metric": "chebyshev"},
    {"metric": "cosine"},
    {"metric": "minkowski", "metric_params": {"p": 1}},
]


def theirs_of(X: Any, **parameters: Any) -> Any:
    return sklearn.cluster.HDBSCAN(copy=True, **parameters).fit(X)


def tree_of(estimator: Any) -> np.ndarray:
    """Return the hierarchy, which is the one array of an estimator whose numbers have names."""
    (tree,) = (each for each in vars(estimator).values() if isinstance(each, np.ndarray) and each.dtype.names)
    return tree


def assert_same_groups(some: np.ndarray, others: np.ndarray) -> None:
    """Check that two labellings are the same but for the numbers of their clusters."""
    pairs = set(zip(some.tolist(), others.tolist(), strict=True))
    assert len(pairs) == len(set(some.tolist())) == len(set(others.tolist()))


def check(X: Any, rtol: float = 1e-12, **parameters: Any) -> HDBSCAN:
    """Compare the hierarchies of xpulab's and scikit-learn's HDBSCAN, which are the same but for ties."""
    ours, theirs = HDBSCAN(**parameters).fit(X), theirs_of(X, **parameters)
    heights = tree_of(theirs)["value"]
    np.testing.assert_allclose(tree_of(ours)["value"], heights, rtol=rtol, atol=1e-15)
    for cut in np.quantile(heights, [0.1, 0.4, 0.7, 0.9, 0.97]) * (1 + 1e-9):
        assert_same_groups(ours.dbscan_clustering(cut, 1), theirs.dbscan_clustering(cut, 1))
    assert (ours.labels_.dtype, ours.probabilities_.dtype) == (theirs.labels_.dtype, theirs.probabilities_.dtype)
    assert ours.labels_.shape == ours.probabilities_.shape == (len(X),)
    return ours


def blobs(n: int, d: int, dtype: Any = np.float64) -> np.ndarray:
    """Return clusters of different density and noise, in random order."""
    spread = [0.3, 0.6, 1.0, 0.5, 0.4]
    X, _ = make_blobs(n - n // 8, d, centers=5, cluster_std=spread, center_box=(-5, 5), random_state=d)
    rng = np.random.default_rng(d)
    return rng.permutation(np.vstack([X, rng.uniform(-6, 6, (n // 8, d))])).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 5, 20])
def test_the_hierarchy_is_scikit_learn_s(current: xpulab.XPUCluster, d: int, dtype: Any) -> None:
    X = blobs(1000, d, dtype)
    ours = check(X, min_cluster_size=20, min_samples=5)
    theirs = theirs_of(X, min_cluster_size=20, min_samples=5)
    assert ours.labels_.max() > 1
    assert -1 in ours.labels_
    assert adjusted_rand_score(ours.labels_, theirs.labels_) > 0.97  # rows at borders may be in another cluster
    assert sum(engine.rows for engine in ours.report_.engines) == 1000


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"cluster_selection_method": "leaf"}, {"cluster_selection_epsilon": 0.3}, {"max_cluster_size": 150},
        {"allow_single_cluster": True}, {"min_cluster_size": 40},
    ],
    ids=str,
)  # fmt: skip
def test_clusters_without_ties_are_scikit_learn_s(current: xpulab.XPUCluster, parameters: dict[str, Any]) -> None:
    """If a row alone is a core, no two pairs of rows are as far from each other."""
    X = blobs(700, 3)
    ours = HDBSCAN(min_samples=1, **parameters).fit(X)
    theirs = theirs_of(X, min_samples=1, **parameters)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.probabilities_, theirs.probabilities_, rtol=1e-9)
    assert ours.labels_.max() > 0


@pytest.mark.parametrize("parameters", METRICS, ids=str)
@pytest.mark.parametrize("d", [3, 20])
def test_each_metric_has_scikit_learn_s_hierarchy(
    on_pair: xpulab.XPUCluster, d: int, parameters: dict[str, Any]
) -> None:
    rounded = parameters["metric"] in ("cosine", "sqeuclidean")  # scikit-learn computes them as products
    check(blobs(500, d), 1e-9 if rounded else 1e-12, **parameters)


def test_clusters_of_any_shape(current: xpulab.XPUCluster) -> None:
    X, moon = make_moons(2000, noise=0.05, random_state=0)
    ours = check(X, min_cluster_size=50)
    inside = ours.labels_ >= 0
    assert inside.mean() > 0.95
    assert_same_groups(ours.labels_[inside], moon[inside])


def expected(X: np.ndarray, k: int, metric: str) -> tuple[list[tuple[int, ...]], list[float]]:
    """Return the rows of each group that is made, and its height, by comparing all pairs, the nearest first."""
    apart = cdist(X, X, {"manhattan": "cityblock"}.get(metric, metric))
    cores = np.sort(apart, axis=1)[:, k - 1]
    reach = np.maximum(apart, np.maximum(cores[:, None], cores[None]))
    first, second = np.triu_indices(len(X), 1)
    group, groups, heights = np.arange(len(X)), [], []
    for pair in np.lexsort((second, first, reach[first, second])):
        i, j = first[pair], second[pair]
        if group[i] != group[j]:
            group[group == group[j]] = group[i]
            groups.append(tuple(np.flatnonzero(group == group[i]).tolist()))
            heights.append(float(reach[i, j]))
    return groups, heights


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_ties_are_joined_in_the_order_of_their_rows(current: xpulab.XPUCluster, data: st.DataObject) -> None:
    """The rows have few different values, so that rows are equal and many distances are."""
    n, d = data.draw(st.integers(2, 60)), data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    X = rng.integers(0, data.draw(st.integers(1, 8)), (n, d)).astype(data.draw(st.sampled_from([np.float32, float])))
    k = data.draw(st.integers(1, min(n, 6)))
    metric = data.draw(st.sampled_from(["euclidean", "manhattan", "chebyshev"]))
    groups, heights = expected(X.astype(float), k, metric)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=current.size - 1, max_size=current.size - 1)))
    for rows in (X, current.scatter(X, counts=np.diff([0, *cuts, n]).tolist())):
        tree = tree_of(HDBSCAN(min_samples=k, metric=metric).fit(rows))
        np.testing.assert_allclose(tree["value"], heights, rtol=1e-12)
        there = [(row,) for row in range(n)]
        for node in tree:
            there.append(tuple(sorted([*there[node["left_node"]], *there[node["right_node"]]])))
        assert there[n:] == groups


def test_many_equal_rows(current: xpulab.XPUCluster) -> None:
    """Of 10,000 equal rows no two are compared more than a few times, and none of their pairs is stored."""
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    X[5000:15_000] = 0
    ours = HDBSCAN(min_cluster_size=100).fit(X)
    assert (tree_of(ours)["value"] == 0).sum() == 9999
    assert len(set(ours.labels_[5000:15_000])) == 1


@pytest.mark.parametrize("cosine", [False, True], ids=["", "cosine"])
def test_uneven_shards_and_files_give_the_same_clusters(
    current: xpulab.XPUCluster, tmp_path: Path, cosine: bool
) -> None:
    X = blobs(600, 3, np.float32)
    parameters: dict[str, Any] = {"metric": "cosine" if cosine else "euclidean", "min_cluster_size": 12}
    whole = HDBSCAN(**parameters).fit(X)
    np.save(tmp_path / "X.npy", X)
    parts = [current.scatter(X, counts=[600 - 7 * (current.size - 1)] + [7] * (current.size - 1))]
    parts.append(current.scatter(X, counts=[0] * (current.size - 1) + [600]))
    frame = pd.DataFrame(X, columns=list("abc"))
    for rows in (*parts, np.load(tmp_path / "X.npy", mmap_mode="r"), xpulab.scan(tmp_path / "X.npy"), frame):
        ours = HDBSCAN(**parameters)
        np.testing.assert_array_equal(ours.fit_predict(rows), whole.labels_)
        np.testing.assert_array_equal(ours.probabilities_, whole.probabilities_)
        np.testing.assert_array_equal(tree_of(ours), tree_of(whole))
    assert list(ours.feature_names_in_) == list("abc")


def test_rows_with_nan_and_infinity_are_apart(current: xpulab.XPUCluster) -> None:
    X = blobs(400, 3)
    X[3, 1], X[7, 0], X[11] = np.nan, np.inf, [np.inf, -np.inf, 0]
    with np.errstate(invalid="ignore"):  # scikit-learn adds infinities
        theirs = theirs_of(X, min_samples=1)
    ours = HDBSCAN(min_samples=1).fit(X)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.probabilities_, theirs.probabilities_, rtol=1e-9)
    assert ours.labels_[[3, 7, 11]].tolist() == [-3, -2, -3]
    for cut in (0.1, 0.5):
        np.testing.assert_array_equal(ours.dbscan_clustering(cut), theirs.dbscan_clustering(cut))
    assert sorted(tree_of(ours)["value"])[-3:] == [np.inf] * 3
    holed = np.where(np.isinf(X), np.nan, X)  # handles have no infinity
    handle = current.scatter(holed, allow_nan=True)
    np.testing.assert_array_equal(HDBSCAN(min_samples=1).fit(handle).labels_, HDBSCAN(min_samples=1).fit(holed).labels_)


@pytest.mark.parametrize("centers", ["centroid", "medoid", "both"])
def test_centers_are_scikit_learn_s(on_pair: xpulab.XPUCluster, centers: str) -> None:
    X = blobs(400, 3)
    theirs = theirs_of(X, min_samples=1, store_centers=centers)
    holed = np.vstack([X, np.full((1, 3), np.nan)])  # with which scikit-learn has an error
    for rows in (X, on_pair.scatter(X), holed):
        ours = HDBSCAN(min_samples=1, store_centers=centers).fit(rows)
        for name in ("centroids_", "medoids_"):
            assert hasattr(ours, name) == hasattr(theirs, name)
            if hasattr(theirs, name):
                np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9)
    apart = np.arange(9.0)[:, None] ** 3
    assert HDBSCAN(min_cluster_size=9, store_centers="both").fit(apart).centroids_.shape == (0, 1)


def test_a_row_of_zeros_is_as_far_from_all_directions(current: xpulab.XPUCluster) -> None:
    X = blobs(200, 3)
    X[50] = 0
    check(X, 1e-9, metric="cosine")
    X[60] = 0
    with pytest.raises(ValueError, match=r"2 rows of zeros.*choose another metric"):
        HDBSCAN(metric="cosine").fit(X)


def test_what_only_the_engines_see_is_told(on_pair: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match="out of the range of float64"):
        HDBSCAN().fit(X * 1e200)
    X[4:] = np.nan
    with pytest.raises(ValueError, match=r"min_samples \(5\) must be at most the number of samples in X \(4\)"):
        HDBSCAN().fit(X)
    X[1:] = np.nan
    with pytest.raises(ValueError, match="n_samples=1 while HDBSCAN requires more than one sample"):
        HDBSCAN(min_samples=1).fit(X)
    assert HDBSCAN(min_cluster_size=2).fit(blobs(40, 2)).labels_.shape == (40,)


def test_bad_input_is_refused_before_anything_is_sent(on_pair: xpulab.XPUCluster) -> None:
    X = blobs(40, 3)
    refused: list[tuple[Any, str]] = [
        (lambda: HDBSCAN(min_cluster_size=1).fit(X), "'min_cluster_size' parameter"),
        (lambda: HDBSCAN(min_samples=0).fit(X), "'min_samples' parameter"),
        (lambda: HDBSCAN(alpha=0.0).fit(X), "'alpha' parameter"),
        (
            lambda: HDBSCAN(min_samples=41).fit(X),
            r"min_samples \(41\) must be at most the number of samples in X \(40\)",
        ),
        (lambda: HDBSCAN().fit(X[:1]), "n_samples=1 while HDBSCAN requires more than one sample"),
        (lambda: HDBSCAN(metric="canberra").fit(X), r"is not computed on the engines.*use sklearn\.cluster\.HDBSCAN"),
        (lambda: HDBSCAN(metric="precomputed").fit(X), "'precomputed' is not computed on the engines"),
        (lambda: HDBSCAN(metric=lambda a, b: 0.0).fit(X), "is not computed on the engines"),
        (lambda: HDBSCAN(metric="minkowski", metric_params={"p": 3}).fit(X), r"p=3 is not computed .* p=1, 2 or inf"),
        (lambda: HDBSCAN(algorithm="tree").fit(X), "'algorithm' parameter"),
        (lambda: HDBSCAN().fit(X[:, 0]), "Expected 2D array"),
        (lambda: HDBSCAN().fit(X[:0]), "0 sample"),
        (lambda: HDBSCAN().fit(sparse.csr_matrix(X)), "[Ss]parse"),
    ]
    with nothing_sent(on_pair):
        for call, message in refused:
            with pytest.raises((ValueError, TypeError), match=message):
                call()
