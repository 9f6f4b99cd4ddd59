"""Neighbours among sparse rows against scikit-learn's brute force: indices, distances, predictions, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest
import sklearn.neighbors
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sent import nothing_sent

import xpulab
from xpulab.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors

pytestmark = pytest.mark.cluster

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
#: More rows than the queries of one block.
N = 701
METRICS = pytest.mark.parametrize("metric", ["euclidean", "cosine"])


def rows(n: int, seed: int, dtype: Any = np.float64, index: Any = np.int32) -> Any:
    """Return CSR rows with an empty row, explicit zeros, and unsorted columns."""
    X = sparse.random(n, 300, density=0.05, format="csr", random_state=seed).tolil()
    X[5] = 0
    X = X.tocsr()
    X.data -= 0.2
    X.data[::11] = 0
    for first, last in zip(X.indptr, X.indptr[1:], strict=False):
        X.indices[first:last], X.data[first:last] = X.indices[first:last][::-1].copy(), X.data[first:last][::-1].copy()
    X = sparse.csr_matrix((X.data.astype(dtype), X.indices, X.indptr), X.shape)
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    return X


def theirs_of(metric: str, X: Any, k: int = 6) -> Any:
    return sklearn.neighbors.NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(X)


@METRICS
@DTYPES
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_neighbours_are_those_of_brute_force(current: xpulab.XPUCluster, metric: str, dtype: Any, index: Any) -> None:
    X, Q = rows(N, 1, dtype, index), rows(203, 2, dtype, index)
    exact = X.astype(np.float64), Q.astype(np.float64)
    theirs, uneven = theirs_of(metric, exact[0]), [0] * (current.size - 1) + [N]
    distances, places = theirs.kneighbors(exact[1])
    own = theirs.kneighbors()
    firm = np.diff(theirs.kneighbors(exact[1], 7)[0], axis=1).min(axis=1) > 1e-9  # none are equally near
    for given in (X, current.scatter(X, counts=uneven)):
        ours = NearestNeighbors(n_neighbors=6, metric=metric).fit(given)
        for queries in (Q, Q.tocsc(), Q.toarray(), current.scatter(Q), current.scatter(Q.toarray())):
            found = ours.kneighbors(queries)
            assert_allclose(found[0], distances, atol=1e-7)
            assert_array_equal(found[1][firm], places[firm])
        found = ours.kneighbors()
        assert_allclose(found[0], own[0], atol=1e-7)
        assert (found[1] != np.arange(N)[:, None]).all()
    radius = float(np.median(distances[:, 3])) * (1 + 1e-6)
    found, expected = ours.radius_neighbors(Q, radius), theirs.radius_neighbors(exact[1], radius)
    for some, right in zip(found[1], expected[1], strict=True):
        assert_array_equal(np.sort(some), np.sort(right))
    graph = ours.kneighbors_graph(Q, mode="distance")
    assert_allclose(graph.data, distances.ravel(), atol=1e-7)


@METRICS
def test_equal_rows_come_in_the_order_of_their_indices(current: xpulab.XPUCluster, metric: str) -> None:
    X = sparse.vstack([rows(300, 1)] * 4, "csr")
    ours = NearestNeighbors(n_neighbors=4, metric=metric).fit(X)
    some = [0, 7, 250]
    distances, places = ours.kneighbors(X[some])
    assert_array_equal(distances, 0)
    assert_array_equal(places, np.add.outer(some, [0, 300, 600, 900]))


def test_predictions(current: xpulab.XPUCluster) -> None:
    X, Q, labels = rows(N, 1), rows(203, 2)[6:], np.array(["a", "b", "c"])[np.arange(N) * 7 % 3]
    y = X @ np.arange(300.0)
    for weights in ("uniform", "distance"):
        pairs = (
            (KNeighborsClassifier(7, weights=weights), sklearn.neighbors.KNeighborsClassifier, labels),
            (KNeighborsRegressor(7, weights=weights, metric="cosine"), sklearn.neighbors.KNeighborsRegressor, y),
        )
        for ours, kind, targets in pairs:
            theirs = kind(**ours.get_params()).fit(X, targets)
            for given in (X, current.scatter(X)):
                ours.fit(given, targets)
                found, expected = ours.predict(Q), theirs.predict(Q)
                if targets is labels:
                    assert (found != expected).mean() < 0.01  # of ties
                else:
                    assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
            assert ours.score(Q, expected) > 0.98
            assert ours.to_sklearn().predict(Q).shape == (197,)


def test_rows_of_which_the_memory_could_not_hold_the_zeros(on_pair: xpulab.XPUCluster) -> None:
    shape, random = (60_000, 1 << 18), np.random.default_rng(0)
    places = [random.integers(0, n, 600_000) for n in shape]
    X = sparse.csr_matrix((random.random(600_000, np.float32), places), shape)
    assert 4 * shape[0] * shape[1] > 2 * psutil.virtual_memory().total
    distances, places = NearestNeighbors(n_neighbors=1, metric="cosine").fit(X).kneighbors(X[100:300])
    assert_array_equal(places[:, 0], np.arange(100, 300))
    assert_allclose(distances, 0, atol=1e-6)


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    X = rows(301, 1)
    fitted, dense = NearestNeighbors().fit(X), NearestNeighbors().fit(X.toarray())
    handle, spoilt = on_pair.scatter(X), X.copy()
    spoilt.data[7] = np.inf
    with nothing_sent(on_pair):
        with pytest.raises(TypeError, match=r"metric='manhattan' is computed of dense rows.*toarray\(\) takes 705 KiB"):
            NearestNeighbors(metric="manhattan").fit(X)
        for queries in (X, handle):
            with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required"):
                dense.kneighbors(queries)
        with pytest.raises(ValueError, match="300 features as input"):
            fitted.kneighbors(X[:, :299])
        with pytest.raises(ValueError, match="The first such value is in row"):
            NearestNeighbors().fit(spoilt)
        with pytest.raises(ValueError, match="Expected n_neighbors <= n_samples_fit"):
            fitted.kneighbors(X, 302)
