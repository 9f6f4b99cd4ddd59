"""`BisectingKMeans` against scikit-learn's, on 1, 2 and 3 real engines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import make_blobs

import xpulab
from xpulab.cluster import BisectingKMeans

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]
X, _ = make_blobs(1501, 5, centers=10, cluster_std=1.5, random_state=1)
WEIGHTS = np.random.default_rng(0).uniform(0, 2, len(X)) * (np.arange(len(X)) % 7 > 0)


@pytest.fixture
def current(cluster: xpulab.XPUCluster) -> xpulab.XPUCluster:
    return cluster.activate()


def nodes(node: Any) -> list[Any]:
    return [node] if node.left is None else [node, *nodes(node.left), *nodes(node.right)]


def assert_same(ours: Any, theirs: Any, rtol: float = 1e-9) -> None:
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    assert ours.labels_.dtype == theirs.labels_.dtype
    scale = float(np.abs(theirs.cluster_centers_).max())
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=rtol * scale)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=max(rtol, 1e-9))
    pairs = list(zip(nodes(ours._bisecting_tree), nodes(theirs._bisecting_tree), strict=True))
    for a, b in pairs:
        assert (a.left is None) == (b.left is None)
        assert getattr(a, "label", None) == getattr(b, "label", None)
        np.testing.assert_allclose(a.center, np.ravel(b.center), atol=rtol * scale)
        np.testing.assert_allclose(a.score, b.score, rtol=max(rtol, 1e-9))


@pytest.mark.fraction(3)
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"init": "k-means++", "n_init": 3, "algorithm": "elkan"},
        {"bisecting_strategy": "largest_cluster", "tol": 0.0, "max_iter": 4},
        {"n_clusters": 1},
    ],
    ids=["defaults", "plusplus", "largest", "one"],
)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
def test_the_same_random_state_gives_scikit_learn_s_tree(parameters: dict[str, Any], weights: Any) -> None:
    given = {"n_clusters": 6, **parameters}
    random, their_random = np.random.RandomState(3), np.random.RandomState(3)
    ours = BisectingKMeans(random_state=random, **given).fit(X, sample_weight=weights)
    theirs = sklearn.cluster.BisectingKMeans(random_state=their_random, **given).fit(X, sample_weight=weights)
    assert_same(ours, theirs)
    assert random.random_sample() == their_random.random_sample()
    queries = 3 * X[::-2]
    expected = theirs.predict(queries)
    np.testing.assert_array_equal(ours.predict(queries), expected)
    for copy in (ours.to_sklearn(), pickle.loads(pickle.dumps(ours)), pickle.loads(pickle.dumps(ours)).to_sklearn()):
        np.testing.assert_array_equal(copy.predict(queries), expected)
    np.testing.assert_allclose(ours.transform(queries), theirs.transform(queries))
    np.testing.assert_allclose(ours.score(queries), theirs.score(queries))


def test_csr_and_files(tmp_path: Path) -> None:
    rows = np.where(np.abs(X) < 4, 0, X)
    for n_clusters in (1, 6):
        ours = BisectingKMeans(n_clusters, random_state=0).fit(sparse.csr_matrix(rows), sample_weight=WEIGHTS)
        theirs = sklearn.cluster.BisectingKMeans(n_clusters, random_state=0)
        theirs.fit(sparse.csr_matrix(rows), sample_weight=WEIGHTS)
        assert_same(ours, theirs)
        assert not hasattr(ours, "_X_mean")
    np.testing.assert_array_equal(ours.predict(sparse.csr_matrix(rows)), theirs.predict(sparse.csr_matrix(rows)))
    np.save(tmp_path / "rows.npy", X)
    ours.fit(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert_same(ours, theirs.fit(X))


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.tuples(*[st.integers(0, 60)] * 2), dtype=st.sampled_from([np.float32, np.float64]))
def test_uneven_and_empty_shards(current: xpulab.XPUCluster, counts: Any, dtype: Any) -> None:
    n, size = 200, current.size
    rows = X[:n].astype(dtype)
    cut = [0] * size
    cut[:2] = [*counts][:size]
    cut[-1] = n - sum(cut[:-1])
    handle = current.scatter(rows, counts=cut)
    ours = BisectingKMeans(5, random_state=1).fit(handle, sample_weight=WEIGHTS[:n])
    theirs = sklearn.cluster.BisectingKMeans(5, random_state=1).fit(rows, sample_weight=WEIGHTS[:n])
    assert_same(ours, theirs, 1e-9 if dtype == np.float64 else 1e-4)
    np.testing.assert_array_equal(ours.predict(handle), theirs.predict(rows))


def test_bad_input_is_rejected() -> None:
    with pytest.raises(TypeError, match="init is a callable"):
        BisectingKMeans(init=lambda X, k, random_state: X[:k]).fit(X)
    with pytest.raises(ValueError, match="n_samples=4 should be >= n_clusters=8"):
        BisectingKMeans(8).fit(X[:4])
    equal = np.repeat(X[:1], 3, axis=0)
    weights = np.array([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="Cannot take a larger sample than population"):
        BisectingKMeans(3).fit(equal, sample_weight=weights)
    assert BisectingKMeans(2, random_state=0).fit(X).labels_.max() == 1
