"""What docs/promises.md and `KMeans` say of agreement with scikit-learn, at sizes where rounding matters."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.cluster
import sklearn.metrics

from xpulab.cluster import KMeans

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("on_pair")]


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_the_same_random_state_starts_at_the_rows_that_scikit_learn_draws_in_float64(init: str, dtype: type) -> None:
    X: np.ndarray = cloud(300_000, 12, seed=0).astype(dtype)
    once = {"n_clusters": 8, "init": init, "n_init": 1, "max_iter": 1, "tol": 0, "random_state": 0}
    ours = KMeans(**once).fit(X)
    theirs = sklearn.cluster.KMeans(**once).fit(X.astype(np.float64))
    rtol = 1e-5 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=rtol, atol=rtol)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=rtol)


def test_only_rows_half_way_between_two_centres_may_have_the_other_label() -> None:
    X = np.random.default_rng(1).integers(-3, 4, size=(20_000, 3)) * 0.1 + 0.7
    X[:, 0] = np.where(X[:, 0] > 0.7, X[:, 0], 1.4 - X[:, 0])  # each row on the right has a mirror image on the left
    half_way = np.isclose(X[:, 0], 0.7)
    X = np.concatenate([X, X * [-1, 1, 1] + [1.4, 0, 0]])
    weights = np.where(np.tile(half_way, 2), 0.0, 1.0)
    start = np.array([[0.5, 0.7, 0.7], [0.9, 0.7, 0.7]])
    ours, theirs = (
        cls(2, init=start, n_init=1).fit(X, sample_weight=weights) for cls in (KMeans, sklearn.cluster.KMeans)
    )
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-10)
    distances = sklearn.metrics.pairwise_distances(X, theirs.cluster_centers_) ** 2
    tied = np.abs(distances[:, 0] - distances[:, 1]) < 1e-12
    assert 5_000 < tied.sum() < 20_000
    np.testing.assert_array_equal(ours.labels_[~tied], theirs.labels_[~tied])
