"""Neighbours against those of scikit-learn's brute force, and the predictions from them against scikit-learn's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.neighbors
from scipy import sparse
from sent import nothing_sent
from waiting import until

import xpulab
from xpulab.exceptions import HandleError
from xpulab.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors

pytestmark = pytest.mark.cluster

METRICS: list[dict[str, Any]] = [
    {"metric": "euclidean"},
    {"metric": "sqeuclidean"},
    {"metric": "manhattan"},
    {"metric": "chebyshev"},
    {"metric": "cosine"},
    {"p": 3},
    {"p": 1.5},
]


def table(n: int, d: int, m: int = 80, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(m, d)).astype(dtype)


def brute(X: np.ndarray, Q: np.ndarray | None, k: int, **parameters: Any) -> tuple[np.ndarray, np.ndarray]:
    theirs = sklearn.neighbors.NearestNeighbors(n_neighbors=k, algorithm="brute", **parameters).fit(X)
    found: tuple[np.ndarray, np.ndarray] = theirs.kneighbors(Q)
    return found


@pytest.mark.parametrize("parameters", [{}, {"p": 1}, {"metric": "chebyshev"}], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tree_finds_the_same_neighbours(current: xpulab.XPUCluster, parameters: dict[str, Any], dtype: Any) -> None:
    unit = dtype(2.0**-100)  # squares leave the range of float32
    X, Q = (np.round(8 * each) * unit for each in table(701, 3, dtype=dtype))  # many distances are equal
    rows, queries = current.scatter(X), current.scatter(Q)
    y = current.scatter(X @ np.arange(3))
    tree, all_rows = ({"n_neighbors": 6, "algorithm": each, **parameters} for each in ("kd_tree", "brute"))
    for fit, asked in ((X, Q), (X, None), (rows, queries), (rows, Q), (rows, None)):
        found = NearestNeighbors(**tree).fit(fit).kneighbors(asked)
        expected = NearestNeighbors(**all_rows).fit(fit).kneighbors(asked)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        KNeighborsRegressor(**tree).fit(rows, y).predict(queries),
        KNeighborsRegressor(**all_rows).fit(rows, y).predict(queries),
    )


def test_a_tree_is_searched_for_many_queries(on_pair: xpulab.XPUCluster) -> None:
    X, Q = table(5000, 3, 2000)
    model = NearestNeighbors(n_neighbors=4).fit(X)

    def trees(task: Any) -> set[str]:
        return {name for name, kept in task.engine.handles.items() if len(getattr(kept, "whole", ()))}

    of_others = on_pair.run(trees)  # of earlier tests
    few = model.kneighbors(Q[:1500])
    assert [now - before for now, before in zip(on_pair.run(trees), of_others, strict=True)] == [set(), set()]
    many = model.kneighbors(Q)
    assert [len(now - before) for now, before in zip(on_pair.run(trees), of_others, strict=True)] == [1, 1]
    again = model.kneighbors(Q[:5])
    for one, other, third in zip(few, many, again, strict=True):
        np.testing.assert_array_equal(one, other[:1500])
        np.testing.assert_array_equal(third, one[:5])


@pytest.mark.parametrize(
    ("parameters", "n", "d", "k"),
    [(each, 900, 40, 30) for each in METRICS[::2]] + [(each, 700, 3, 5) for each in METRICS[:1] + METRICS[1::2]],
    ids=str,
)
def test_the_neighbours_are_those_of_brute_force(
    current: xpulab.XPUCluster, parameters: dict[str, Any], n: int, d: int, k: int
) -> None:
    X, Q = table(n, d)
    ours = NearestNeighbors(n_neighbors=k, **parameters).fit(X)
    for queries in (Q, None):
        distances, places = ours.kneighbors(queries)
        their_distances, their_places = brute(X, queries, k, **parameters)
        np.testing.assert_array_equal(places, their_places)
        np.testing.assert_allclose(distances, their_distances, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(ours.kneighbors(queries, return_distance=False), places)


@pytest.mark.parametrize("parameters", METRICS, ids=str)
def test_rows_within_a_radius_are_those_of_brute_force(current: xpulab.XPUCluster, parameters: dict[str, Any]) -> None:
    X, Q = table(300, 4, m=40)
    radius = {"cosine": 0.2, "manhattan": 2.0}.get(parameters.get("metric", ""), 1.3)
    ours = NearestNeighbors(radius=radius, **parameters).fit(X)
    theirs = sklearn.neighbors.NearestNeighbors(radius=radius, algorithm="brute", **parameters).fit(X)
    for queries in (Q, None):
        found = ours.radius_neighbors(queries, sort_results=True)
        expected = theirs.radius_neighbors(queries, sort_results=True)
        assert 0 < len(np.concatenate(found[1])) < 300 * len(found[1])
        np.testing.assert_array_equal(np.concatenate(found[1]), np.concatenate(expected[1]))
        np.testing.assert_allclose(np.concatenate(found[0]), np.concatenate(expected[0]), rtol=1e-9, atol=1e-12)
        assert list(map(len, found[0])) == list(map(len, found[1])) == list(map(len, expected[1]))
        unsorted = ours.radius_neighbors(queries, return_distance=False)
        assert all((np.diff(some) > 0).all() for some in unsorted)
    assert (ours.radius_neighbors_graph(Q) != theirs.radius_neighbors_graph(Q)).nnz == 0


@pytest.mark.parametrize("d", [3, 40])
def test_only_near_ties_differ_in_float32(current: xpulab.XPUCluster, d: int) -> None:
    """A neighbour that is not among the nearest in float64 is farther by at most d + 2 rounding errors."""
    X, Q = table(3000, d, dtype=np.float32)
    distances, places = NearestNeighbors(n_neighbors=10).fit(X).kneighbors(Q)
    exact = np.sqrt(((Q[:, None].astype(np.float64) - X) ** 2).sum(axis=2))
    nearest = np.sort(exact, axis=1)[:, :10]
    assert (places.dtype, distances.dtype) == (np.int64, np.float64)
    np.testing.assert_allclose(distances, np.take_along_axis(exact, places, 1), rtol=1e-12)
    np.testing.assert_allclose(distances, nearest, rtol=(d + 2) * float(np.finfo(np.float32).eps))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neighbours_far_from_the_origin_are_exact(current: xpulab.XPUCluster, dtype: Any) -> None:
    """From products alone the neighbours would be random, because |y|^2 is 1e8 times the squared distances."""
    X, Q = table(2000, 20, dtype=dtype)
    X, Q = X + dtype(1e4), Q + dtype(1e4)
    _, places = NearestNeighbors(n_neighbors=10).fit(X).kneighbors(Q)
    exact = ((Q[:, None].astype(np.float64) - X) ** 2).sum(axis=2)
    np.testing.assert_array_equal(places, np.argsort(exact, axis=1, kind="stable")[:, :10])


def test_rows_whose_squares_overflow_float32_have_exact_neighbours(current: xpulab.XPUCluster) -> None:
    X, Q = table(300, 20, m=5, dtype=np.float32)
    X, Q = X * np.float32(1e25), Q * np.float32(1e25)
    distances, places = NearestNeighbors(n_neighbors=4).fit(X).kneighbors(Q)
    exact = np.sqrt(((Q[:, None].astype(np.float64) - X) ** 2).sum(axis=2))
    np.testing.assert_array_equal(places, np.argsort(exact, axis=1)[:, :4])
    np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :4], rtol=1e-12)


@pytest.mark.parametrize("d", [2, 20])
def test_ties_go_to_the_lowest_index(current: xpulab.XPUCluster, d: int) -> None:
    """The rows are whole numbers, and more rows are equal than there are candidates."""
    X = np.random.default_rng(0).integers(0, 2, size=(400, d)).astype(np.float64)
    X[100:300, 1:] = 0
    exact = ((X[:, None] - X) ** 2).sum(axis=2)
    _, places = NearestNeighbors(n_neighbors=25).fit(X).kneighbors(X)
    np.testing.assert_array_equal(places, np.argsort(exact, axis=1, kind="stable")[:, :25])


def test_a_row_with_many_equal_rows_is_not_its_own_neighbour(current: xpulab.XPUCluster) -> None:
    X = np.zeros((12, 2))
    X[0] = 5
    places = NearestNeighbors(n_neighbors=3).fit(X).kneighbors(return_distance=False)
    np.testing.assert_array_equal(places[2], [1, 3, 4])
    np.testing.assert_array_equal(places[9], [2, 3, 4])  # it is not among the first four, of which one is left out


def test_a_radius_is_exact(current: xpulab.XPUCluster) -> None:
    """It is exact even if the search in float32 finds rows that are too far by a rounding error."""
    X = np.array([0, 1, np.nextafter(np.float32(1), np.float32(2)), -1, 3], np.float32)[:, None]
    ours = NearestNeighbors(radius=1.0).fit(X)
    (found,) = ours.radius_neighbors(X[:1], return_distance=False)
    np.testing.assert_array_equal(found, [0, 1, 3])
    (found,) = ours.radius_neighbors(np.array([[1e-12]]), return_distance=False)
    np.testing.assert_array_equal(found, [0, 1])
    for radius in (np.inf, 1e200):  # the square of which is infinite
        (found,) = ours.radius_neighbors(X[:1], radius, return_distance=False)
        np.testing.assert_array_equal(found, np.arange(5))


@pytest.mark.parametrize("k", [1, 7, 10])
def test_a_query_has_more_neighbours_than_a_shard_has_rows(current: xpulab.XPUCluster, k: int) -> None:
    X, Q = table(10, 3)
    _, places = NearestNeighbors(n_neighbors=k).fit(X).kneighbors(Q)
    np.testing.assert_array_equal(places, brute(X, Q, k)[1])


@pytest.mark.fraction(2)
@pytest.mark.parametrize("weights", ["uniform", "distance", lambda distances: 1 / (1 + distances)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_votes_and_means_are_those_of_scikit_learn(current: xpulab.XPUCluster, weights: Any, outputs: int) -> None:
    X, Q = table(600, 5)
    Q[:20] = X[:20]  # these queries are rows of the fit
    rng = np.random.default_rng(1)
    labels = rng.choice(["a", "b", "c"], (600, outputs))
    labels[:5] = "first"  # a class that only one rank has
    targets = rng.normal(size=(600, outputs))
    labels, targets = (each[:, 0] if outputs == 1 else each for each in (labels, targets))
    ours = KNeighborsClassifier(7, weights=weights).fit(X, labels)
    theirs = sklearn.neighbors.KNeighborsClassifier(7, weights=weights).fit(X, labels)
    np.testing.assert_array_equal(ours.predict(Q), theirs.predict(Q))
    np.testing.assert_allclose(ours.predict_proba(Q), theirs.predict_proba(Q), atol=1e-12)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    if outputs == 1:
        assert ours.score(Q, labels[:80]) == theirs.score(Q, labels[:80])
    mine = KNeighborsRegressor(7, weights=weights).fit(X, targets)
    their = sklearn.neighbors.KNeighborsRegressor(7, weights=weights).fit(X, targets)
    np.testing.assert_allclose(mine.predict(Q), their.predict(Q), atol=1e-12)
    assert mine.score(Q, targets[:80]) == pytest.approx(their.score(Q, targets[:80]))
    # scikit-learn computes these distances by products: none is exactly 0.
    np.testing.assert_allclose(mine.to_sklearn().predict(Q), their.predict(Q), atol=1e-6)


def test_predictions_of_several_labels_are_those_of_scikit_learn(current: xpulab.XPUCluster) -> None:
    X, Q = table(300, 5)
    labels = np.random.default_rng(1).integers(0, 2, (300, 4))
    ours = KNeighborsClassifier().fit(X, labels)
    theirs = sklearn.neighbors.KNeighborsClassifier().fit(X, labels)
    np.testing.assert_array_equal(ours.predict(Q), theirs.predict(Q))
    assert ours.score(Q, labels[:80]) == theirs.score(Q, labels[:80])


def test_graphs_are_those_of_scikit_learn(current: xpulab.XPUCluster) -> None:
    X, Q = table(300, 5)
    ours = NearestNeighbors().fit(X)
    theirs = sklearn.neighbors.NearestNeighbors(algorithm="brute").fit(X)
    for mode in ("connectivity", "distance"):
        for queries in (None, Q):
            difference = ours.kneighbors_graph(queries, 4, mode) - theirs.kneighbors_graph(queries, 4, mode)
            assert abs(difference).max() < 1e-12


def test_handles_files_and_uneven_shards_give_the_same_neighbours(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, Q = table(500, 20)
    expected = brute(X, Q, 5)[1]
    counts = [500 - 7 * (current.size - 1)] + [7] * (current.size - 1) if current.size > 1 else [500]
    for some in (counts, [0] * (current.size - 1) + [500]):
        handle = current.scatter(X, counts=some)
        ours = NearestNeighbors().fit(handle)
        np.testing.assert_array_equal(ours.kneighbors(current.scatter(Q))[1], expected)
        np.testing.assert_array_equal(ours.kneighbors()[1], brute(X, None, 5)[1])
        np.testing.assert_array_equal(ours.to_sklearn().kneighbors(Q)[1], expected)
    labels = (X[:, 0] > 0).astype(np.float64)
    voted = KNeighborsClassifier().fit(handle, current.scatter(labels)).predict(Q)
    np.testing.assert_array_equal(voted, KNeighborsClassifier().fit(X, labels).predict(Q))
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    np.testing.assert_array_equal(NearestNeighbors().fit(mapped).kneighbors(mapped[:9])[1], brute(X, X[:9], 5)[1])


def test_the_engines_keep_the_rows_and_free_them(on_pair: xpulab.XPUCluster) -> None:
    def held(task: Any) -> set[str]:
        return set(task.engine.handles)

    X, Q = table(500, 20)
    others = set.union(*on_pair.run(held))
    ours = NearestNeighbors().fit(X)
    (first,) = set.intersection(*on_pair.run(held)) - others
    assert ours.report_.sent > 0
    ours.kneighbors(Q)
    assert set.union(*on_pair.run(held)) - others == {first}
    ours.fit(X)
    until(lambda: all(first not in ids for ids in on_pair.run(held)))  # a thread frees the rows
    (second,) = set.intersection(*on_pair.run(held)) - others
    assert not {first, second} & set(on_pair.handles())  # they belong to the estimator, and not to the user
    del ours
    until(lambda: all(second not in ids for ids in on_pair.run(held)))


def test_the_rows_are_sent_to_another_cluster(pair: xpulab.XPUCluster) -> None:
    X, Q = table(300, 20)
    with xpulab.XPUCluster(1, timeout=60):
        ours = NearestNeighbors().fit(X)
        handled = NearestNeighbors().fit(xpulab.current_cluster().scatter(X))
    pair.activate()
    np.testing.assert_array_equal(ours.kneighbors(Q)[1], brute(X, Q, 5)[1])
    with pytest.raises(HandleError, match="another cluster"):
        handled.kneighbors(Q)


def test_bad_input_is_refused_before_anything_is_sent(on_pair: xpulab.XPUCluster) -> None:
    X, Q = table(20, 3)
    fitted = NearestNeighbors().fit(X)
    spoilt = X.copy()
    spoilt[3, 1] = np.nan
    refused: list[tuple[Any, str]] = [
        (lambda: NearestNeighbors().fit(spoilt), "contains NaN"),
        (lambda: NearestNeighbors(metric="l1").fit(sparse.csr_matrix(X)), "[Ss]parse"),
        (lambda: NearestNeighbors().fit(sklearn.neighbors.KDTree(X)), "a KDTree was given; expected rows"),
        (lambda: fitted.kneighbors(spoilt), "contains NaN"),
        (lambda: fitted.kneighbors(X[:, :2]), "X has 2 features, but NearestNeighbors is expecting 3"),
        (lambda: fitted.kneighbors(Q, 21), "Expected n_neighbors <= n_samples_fit, but n_neighbors = 21"),
        (lambda: fitted.kneighbors(None, 20), "Expected n_neighbors < n_samples_fit, but n_neighbors = 20"),
        (lambda: fitted.kneighbors(Q, 0), "Expected n_neighbors > 0"),
        (lambda: fitted.kneighbors(Q, -1.5), "enter integer value"),  # type: ignore[arg-type]
        (lambda: fitted.radius_neighbors(Q, -1.0), "one number of at least 0"),
        (lambda: fitted.radius_neighbors(Q, sort_results=True, return_distance=False), "return_distance must be True"),
        (lambda: NearestNeighbors(metric="haversine").fit(X), "metric='haversine' is not computed on the engines"),
        (lambda: NearestNeighbors(metric="precomputed").fit(X), "metric='precomputed' is not computed"),
        (lambda: NearestNeighbors(metric=lambda a, b: 0.0).fit(X), "is not computed on the engines"),
        (lambda: NearestNeighbors(metric="hyperspace").fit(X), "hyperspace"),
        (lambda: NearestNeighbors(metric_params={"w": np.ones(3)}).fit(X), "weights 'w' of the features"),
        (lambda: NearestNeighbors(metric_params={"v": 2}).fit(X), "expected only 'p'"),
        (lambda: KNeighborsClassifier().fit(X, None), "requires y to be passed"),  # type: ignore[arg-type]
        (lambda: KNeighborsClassifier().fit(X, np.ones(19)), "inconsistent numbers of samples"),
        (lambda: KNeighborsClassifier().fit(X, np.linspace(0, 1, 20)), "Unknown label type"),
        (lambda: KNeighborsRegressor().fit(X, spoilt[:, 1]), "contains NaN"),
        (lambda: KNeighborsRegressor(weights="other").fit(X, X[:, 0]), "weights"),
    ]
    with nothing_sent(on_pair):
        for call, message in refused:
            with pytest.raises((ValueError, TypeError), match=message):
                call()
        with pytest.raises(TypeError, match="enter integer value"):
            fitted.kneighbors(Q, 2.5)  # type: ignore[arg-type]
