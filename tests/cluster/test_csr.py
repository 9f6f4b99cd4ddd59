"""CSR input gives the same results as a dense array of the same rows, and as scikit-learn with CSR input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from agreement import assert_same_labels
from scipy import sparse
from sent import nothing_sent

import xpulab
from xpulab.cluster import KMeans
from xpulab.sharing.sources import bounds_by_stored

pytestmark = pytest.mark.cluster


def rows(n: int = 2000, d: int = 30, dtype: Any = np.float64, density: float = 0.2) -> sparse.csr_matrix:
    return sparse.random(n, d, density, "csr", dtype, np.random.default_rng(0))


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("init", ["k-means++", "random", "array"])
def test_the_fit_is_that_of_scikit_learn(current: xpulab.XPUCluster, dtype: Any, init: str) -> None:
    X = rows(dtype=dtype)
    given = X[:6].toarray() if init == "array" else init
    parameters: dict[str, Any] = {"n_clusters": 6, "init": given, "n_init": 1, "random_state": 0, "max_iter": 20}
    ours, theirs = KMeans(**parameters).fit(X), sklearn.cluster.KMeans(**parameters).fit(X)
    rtol = 1e-5 if dtype == np.float32 else 1e-10
    assert (ours.n_iter_, ours.cluster_centers_.dtype) == (theirs.n_iter_, theirs.cluster_centers_.dtype)
    assert_same_labels(X.toarray(), theirs.cluster_centers_, ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=rtol, atol=rtol)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=rtol)
    np.testing.assert_array_equal(ours.predict(X), ours.labels_)
    assert ours.score(X) == pytest.approx(-ours.inertia_, rel=rtol)
    np.testing.assert_allclose(ours.transform(X), ours.transform(X.toarray()), rtol=1e-3, atol=1e-3)


def test_indices_of_64_bits_are_as_good(current: xpulab.XPUCluster) -> None:
    X = rows(500)
    wide = sparse.csr_matrix(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    model = KMeans(4, random_state=0, n_init=1).fit(X)
    np.testing.assert_array_equal(KMeans(4, random_state=0, n_init=1).fit(wide).labels_, model.labels_)
    np.testing.assert_array_equal(model.predict(wide), model.labels_)
    assert wide.indices.dtype == np.int64  # the user's matrix is as it was


def test_weights_count_and_empty_clusters_are_relocated(current: xpulab.XPUCluster) -> None:
    X = rows()
    weights = np.random.default_rng(1).uniform(0.5, 2, X.shape[0])
    init = np.concatenate([X[:4].toarray(), np.full((2, X.shape[1]), 9.0)])  # no row is near the last two centres
    parameters: dict[str, Any] = {"n_clusters": 6, "init": init, "n_init": 1, "max_iter": 10}
    ours = KMeans(**parameters).fit(X, sample_weight=weights)
    theirs = sklearn.cluster.KMeans(**parameters).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9)


def test_rows_may_be_empty_and_fewer_than_engines(current: xpulab.XPUCluster) -> None:
    empty = sparse.csr_matrix((50, 30))
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="distinct clusters"):
        assert not KMeans(2, random_state=0).fit(empty).labels_.any()
    X = rows(2)
    assert sorted(KMeans(2, random_state=0).fit(X).labels_) == [0, 1]


def test_other_sparse_formats_give_the_same_and_the_input_is_not_changed(on_pair: xpulab.XPUCluster) -> None:
    X = rows(300)
    expected = KMeans(5, random_state=0).fit(X).labels_
    for other in (X.tocsc(), X.tocoo(), sparse.csr_array(X), X.toarray()):
        np.testing.assert_array_equal(KMeans(5, random_state=0).fit(other).labels_, expected)
    twice = sparse.csr_matrix((np.tile(X.data / 2, 2), np.tile(X.tocoo().col, 2), X.indptr * 2), X.shape)
    order = np.concatenate([np.r_[a:b, a + X.nnz : b + X.nnz] for a, b in zip(X.indptr, X.indptr[1:], strict=False)])
    twice.data, twice.indices = twice.data[order], twice.indices[order]
    before = twice.copy()
    np.testing.assert_array_equal(KMeans(5, random_state=0).fit(twice).labels_, expected)
    np.testing.assert_array_equal(twice.indices, before.indices)
    np.testing.assert_array_equal(twice.data, before.data)


def test_a_callable_start_gets_the_matrix(on_pair: xpulab.XPUCluster) -> None:
    X = rows(300)
    seen: list[Any] = []

    def first(matrix: Any, k: int, random_state: Any) -> np.ndarray:
        seen.append(matrix)
        return matrix[:k].toarray()

    ours = KMeans(5, init=first, n_init=1).fit(X)
    assert sparse.issparse(seen[0])
    np.testing.assert_array_equal(
        ours.labels_, sklearn.cluster.KMeans(5, init=X[:5].toarray(), n_init=1).fit(X).labels_
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: X.data.__setitem__(3, np.nan), "contains NaN"),
        (lambda X: X.data.__setitem__(3, np.inf), "contains infinity"),
        (lambda X: setattr(X, "data", X.data.astype(complex)), "Complex data not supported"),
    ],
)
def test_bad_values_are_refused_before_anything_is_sent(on_pair: xpulab.XPUCluster, change: Any, words: str) -> None:
    X = rows(300)
    change(X)
    with nothing_sent(on_pair), pytest.raises(ValueError, match=words):
        KMeans(3).fit(X)
    assert len(KMeans(3, random_state=0).fit(rows(300)).labels_) == 300


def test_ranks_get_similar_numbers_of_stored_values() -> None:
    indptr = np.concatenate([[0], np.cumsum([1000] * 10 + [0] * 90)])
    bounds = bounds_by_stored(indptr, 2)
    assert (bounds[0], bounds[-1]) == (0, 100)
    assert 4 <= bounds[1] <= 7
    assert bounds_by_stored(np.zeros(1, np.int32), 3) == [0, 0, 0, 0]
    assert bounds_by_stored(np.zeros(101, np.int32), 4) == [0, 25, 50, 75, 100]
