"""The rows of a handle stay on the engines: no method moves them into this process, or sends them from it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn.naive_bayes
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import accuracy_score, r2_score

import xpulab
from xpulab import metrics
from xpulab.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from xpulab.data import ShardedArray
from xpulab.ensemble import RandomForestClassifier, RandomForestRegressor
from xpulab.ensemble._targets import WEIGHTS_DRAW
from xpulab.linear_model import ElasticNetCV, LassoCV, RidgeCV
from xpulab.naive_bayes import GaussianNB
from xpulab.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]


def sharded(current: xpulab.XPUCluster, rows: np.ndarray) -> list[ShardedArray]:
    """The rows on the engines, cut evenly and unevenly."""
    uneven = [0] * (current.size - 1) + [len(rows)]
    return [current.scatter(rows), current.scatter(rows, counts=uneven)]


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_queries_of_neighbours(
    current: xpulab.XPUCluster, written: list[int], received: list[int], dtype: Any, metric: str
) -> None:
    rng = np.random.default_rng(0)
    X, Q = rng.normal(size=(900, 12)).astype(dtype), rng.normal(size=(1000, 12)).astype(dtype)
    ours = NearestNeighbors(n_neighbors=4, metric=metric).fit(X)
    distances, places = ours.kneighbors(Q)
    near = ours.radius_neighbors(Q[:300], 0.3 if metric == "cosine" else 2.5, sort_results=True)
    for queries in sharded(current, Q):
        del written[:], received[:]
        found = ours.kneighbors(queries)
        assert (sum(written), sum(received)) == (0, len(Q) * 4 * 16)
        np.testing.assert_array_equal(found[1], places)
        np.testing.assert_array_equal(found[0], distances)
    for queries in sharded(current, Q[:300]):
        del written[:], received[:]
        some = ours.radius_neighbors(queries, 0.3 if metric == "cosine" else 2.5, sort_results=True)
        assert (sum(written), sum(received)) == (0, 0)
        for ours_too, expected in zip(some, near, strict=True):
            np.testing.assert_array_equal(np.concatenate(ours_too), np.concatenate(expected))


@pytest.mark.parametrize(
    ("estimator", "kind"),
    [(each, kind) for each in (KMeans, MiniBatchKMeans, BisectingKMeans) for kind in ("float32", "float64", "CSR")]
    + [(KMeans, "large")],
)
def test_distances_to_centres(
    current: xpulab.XPUCluster, written: list[int], received: list[int], estimator: Any, kind: str
) -> None:
    drawn = np.random.default_rng(0).normal(scale=1e200 if kind == "large" else 1, size=(700, 5))
    X = drawn.astype(np.float32 if kind == "float32" else np.float64)
    rows = csr_matrix(X) if kind == "CSR" else X
    ours = estimator(4, random_state=0).fit(rows)
    expected = ours.transform(rows)
    for there in [current.scatter(rows)] if kind == "CSR" else sharded(current, X):
        del written[:], received[:]
        found = ours.transform(there)
        assert (sum(written), sum(received)) == (0, 0)
        assert (found.shape, found.dtype, found.counts) == ((700, 4), X.dtype, there.counts)
        np.testing.assert_array_equal(found.gather(), expected)


def test_rows_of_the_fit_as_queries_and_predictions(
    current: xpulab.XPUCluster, written: list[int], received: list[int]
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 6)), rng.integers(0, 3, 600)
    expected = KNeighborsClassifier().fit(X, y)
    places, labels = expected.kneighbors(return_distance=False), expected.predict(X)
    for rows in sharded(current, X):
        ours = KNeighborsClassifier().fit(rows, y)
        del written[:], received[:]
        np.testing.assert_array_equal(ours.kneighbors(return_distance=False), places)
        np.testing.assert_array_equal(ours.predict(rows), labels)
        assert (sum(written), sum(received)) == (0, 2 * len(X) * 5 * 16)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_targets_of_neighbours(
    current: xpulab.XPUCluster, written: list[int], received: list[int], dtype: Any, weights: str
) -> None:
    rng = np.random.default_rng(0)
    X, numbers = rng.normal(size=(600, 6)).astype(dtype), rng.normal(size=(600, 2)).astype(dtype)
    labels = rng.choice([-1.5, 2.0, 7.0], 600).astype(dtype) * 2
    several = np.stack([labels, rng.integers(0, 4, 600)], axis=1).astype(dtype)
    for kind, y in (
        (KNeighborsClassifier, labels),
        (KNeighborsClassifier, several),
        (KNeighborsRegressor, numbers),
        (KNeighborsRegressor, numbers[:, 0].copy()),
    ):
        arrays: Any = kind(4, weights=weights).fit(X, y)
        expected, of_others = arrays.predict(X), arrays.predict(None)
        plain: Any = kind(4, weights=weights).sklearn_class()(4, weights=weights).fit(X, y)
        for rows, targets in zip(sharded(current, X), sharded(current, y), strict=True):
            del written[:], received[:]
            ours: Any = kind(4, weights=weights).fit(rows, targets)
            assert (sum(written), sum(received)) == (0, 0)
            np.testing.assert_array_equal(ours.predict(rows), expected)
            np.testing.assert_array_equal(ours.predict(None), of_others)
            n_targets = 1 if y.ndim == 1 else 2
            assert (sum(written), sum(received)) == (0, 2 * len(X) * 4 * (16 + 8 * n_targets))
            if kind is KNeighborsClassifier:
                np.testing.assert_array_equal(np.hstack(ours.classes_), np.hstack(plain.classes_))
                shares, of_sklearn = (np.hstack(each.predict_proba(X[:99])) for each in (ours, plain))
                np.testing.assert_array_equal(shares, of_sklearn)
            np.testing.assert_array_equal(ours.to_sklearn()._y, plain._y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_of_clusterings(current: xpulab.XPUCluster, written: list[int], received: list[int], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(800, 6)).astype(dtype), rng.choice([-1.5, 2.0, 7.0], 800)
    expected = [
        metrics.davies_bouldin_score(X, labels),
        metrics.calinski_harabasz_score(X, labels),
        metrics.silhouette_score(X, labels),
        metrics.silhouette_score(X, labels, sample_size=300, random_state=0),
        *metrics.silhouette_samples(X, labels),
    ]
    for rows, clusters in zip(sharded(current, X), sharded(current, labels), strict=True):
        del written[:], received[:]
        scores = [
            metrics.davies_bouldin_score(rows, clusters),
            metrics.calinski_harabasz_score(rows, clusters),
            metrics.silhouette_score(rows, clusters),
        ]
        assert (sum(written), sum(received)) == (0, 0)
        scores.append(metrics.silhouette_score(rows, clusters, sample_size=300, random_state=0))
        assert (sum(written), sum(received)) == (2 * 300 * 8, 0)  # which rows were drawn
        scores += list(metrics.silhouette_samples(rows, clusters))
        assert sum(received) == len(X) * np.dtype(dtype).itemsize
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="Number of labels is 800"):
        metrics.silhouette_score(rows, current.scatter(np.arange(800.0), counts=list(rows.counts)))


@pytest.mark.parametrize("estimator", [LassoCV(cv=3), ElasticNetCV(), RidgeCV(cv=4), RidgeCV()], ids=repr)
def test_targets_of_folds(current: xpulab.XPUCluster, written: list[int], received: list[int], estimator: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 6))
    y = X @ rng.normal(size=6) + rng.normal(size=600)
    expected = clone(estimator).fit(X, y)
    for rows, targets in zip(sharded(current, X), sharded(current, y), strict=True):
        del written[:], received[:]
        ours = clone(estimator).fit(rows, targets)
        assert (sum(written), sum(received)) == (0, 0)
        np.testing.assert_allclose(ours.coef_, expected.coef_)
        assert ours.alpha_ == pytest.approx(expected.alpha_)


@pytest.mark.parametrize("kind", [RandomForestClassifier, RandomForestRegressor])
def test_out_of_bag_rows_of_forests(
    current: xpulab.XPUCluster, written: list[int], received: list[int], kind: Any
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 60))
    y = X[:, 0] + X[:, 1] > 0.3 if kind is RandomForestClassifier else X[:, 0] + X[:, 1]
    name = "oob_decision_function_" if kind is RandomForestClassifier else "oob_prediction_"
    for parameters in ({"ccp_alpha": 1e-3}, {"warm_start": True}):
        forests = [kind(30, max_depth=3, oob_score=True, random_state=0, **parameters) for _ in range(3)]
        weights = rng.integers(1, 3, 1000) * 1.0 if parameters == {"warm_start": True} else None
        for rows, ours in zip([X, *sharded(current, X)], forests, strict=True):
            ours.fit(rows, y, weights)
            del written[:], received[:]
            ours.set_params(n_estimators=33).fit(rows, y, weights)
            if rows is not X:  # the targets, weights and trees are small
                assert sum(written) < X.nbytes / 10
                assert sum(received) == (len(X) * 8 * (3 if kind is RandomForestClassifier else 2))
            assert ours.report_.n_features == 60
            np.testing.assert_array_equal(getattr(ours, name), getattr(forests[0], name))
            assert ours.oob_score_ == forests[0].oob_score_


def test_many_classes_of_a_handle_are_labels(
    current: xpulab.XPUCluster, written: list[int], received: list[int]
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 3)), rng.integers(0, 30, 600) * 1.0
    for rows, labels in zip(sharded(current, X), sharded(current, y), strict=True):
        del written[:], received[:]
        ours = GaussianNB().fit(rows, labels)
        assert (sum(written), sum(received)) == (0, 0)
        np.testing.assert_allclose(ours.theta_, sklearn.naive_bayes.GaussianNB().fit(X, y).theta_)


def assert_equal_forests(ours: Any, expected: Any) -> None:
    """All numbers are equal; but sums of predictions out of the bag, by trees of several threads, are rounded."""
    for one, other in zip(ours.estimators_, expected.estimators_, strict=True):
        states = [each.tree_.__getstate__() for each in (one, other)]
        for name in ("nodes", "values"):
            np.testing.assert_array_equal(states[0][name], states[1][name])
    votes = isinstance(ours, RandomForestClassifier)
    if votes:
        assert np.hstack(ours.classes_).dtype == np.hstack(expected.classes_).dtype
        np.testing.assert_array_equal(np.hstack(ours.classes_), np.hstack(expected.classes_))
    if expected.oob_score:
        name = "oob_decision_function_" if votes else "oob_prediction_"
        np.testing.assert_allclose(getattr(ours, name), getattr(expected, name), rtol=1e-12)
        assert ours.oob_score_ == (expected.oob_score_ if votes else pytest.approx(expected.oob_score_, rel=1e-12))


@pytest.mark.fraction(4)
@pytest.mark.parametrize(
    ("class_weight", "weighted"),
    [
        (None, False),
        (None, True),
        ("balanced", True),
        ("balanced", False),
        ("balanced_subsample", True),
        ({-3: 1.0, 4: 1.5}, True),
        ([{-3: 1.0, 4: 1.5}, "balanced"], False),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "given", [{"max_samples": 0.5}, {"bootstrap": False}, {"oob_score": True}, {"ccp_alpha": 1e-3}], ids=str
)
def test_labels_of_forests(
    current: xpulab.XPUCluster,
    written: list[int],
    received: list[int],
    given: dict[str, Any],
    class_weight: Any,
    weighted: bool,
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    labels = np.where(X[:, 0] + X[:, 1] > 0.3, 4.0, -3.0).astype(np.float32)
    several = np.stack([labels, X[:, 2] > 0.2], axis=1).astype(np.float32)
    weights = rng.uniform(0.5, 1.5, 500) if weighted else None
    y = several if class_weight is None or isinstance(class_weight, list) else labels
    parameters = {**given, "class_weight": class_weight, "random_state": 0, "max_depth": 3}
    trees = 40 if "oob_score" in given else 12  # so many that each row is out of some bags
    expected = RandomForestClassifier(trees, **parameters).fit(X, y, weights)
    for rows, targets in zip(sharded(current, X), sharded(current, y), strict=True):
        del written[:], received[:]
        ours = RandomForestClassifier(trees, **parameters).fit(rows, targets, weights)
        assert sum(received) == 0
        predictions = (1 if y.ndim == 1 else 2) if ours.oob_score else 0
        calls = sum(written) // (8 * len(X)) - predictions
        assert sum(written) == 8 * len(X) * (calls + predictions)
        assert calls in ({1, 2, 3} if weighted else {0})  # with the weights, which are in this process
        assert_equal_forests(ours, expected)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("criterion", ["squared_error", "poisson"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_forests(
    current: xpulab.XPUCluster, written: list[int], received: list[int], criterion: str, dtype: Any
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    several = np.exp(np.stack([X[:, 0] + rng.normal(size=500), X[:, 1]], axis=1)).astype(dtype)
    for y in (several[:, 0].copy(), several):
        expected = RandomForestRegressor(30, criterion=criterion, max_depth=3, random_state=0, oob_score=True).fit(X, y)
        for rows, targets in zip(sharded(current, X), sharded(current, y), strict=True):
            ours = clone(expected)
            del written[:], received[:]
            ours.fit(rows, targets)
            assert (sum(written), sum(received)) == (y.size * 8, 0)  # the predictions out of the bag
            assert_equal_forests(ours, expected)
            assert ours.oob_score_ == r2_score(y, ours.oob_prediction_)
            np.testing.assert_array_equal(ours.predict(X), expected.predict(X))
    for refused, message in ((-several, "negative"), (0 * several, "not strictly positive")):
        rows, targets = current.scatter(X), current.scatter(refused)
        if criterion == "poisson":
            with pytest.raises(ValueError, match=message):
                RandomForestRegressor(2, criterion=criterion).fit(rows, targets)


@pytest.mark.parametrize("kind", [RandomForestClassifier, RandomForestRegressor])
def test_forests_that_go_on_with_targets_on_the_engines(
    current: xpulab.XPUCluster, received: list[int], kind: Any
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5))
    y = rng.integers(0, 3, 500) * 1.0 if kind is RandomForestClassifier else X[:, 0] + rng.normal(size=500)
    how = {"class_weight": {0: 1, 1: 2, 2: 0.8}} if kind is RandomForestClassifier else {}
    scorer = accuracy_score if kind is RandomForestClassifier else r2_score
    arrays = kind(30, max_depth=4, random_state=0, warm_start=True, oob_score=True, **how).fit(X, y)
    arrays.set_params(n_estimators=33).fit(X, y)
    values = 3 if kind is RandomForestClassifier else 1
    for rows, targets in zip(sharded(current, X), sharded(current, y), strict=True):
        ours = clone(arrays).set_params(n_estimators=30).fit(rows, targets)
        del received[:]
        ours.set_params(n_estimators=33).fit(rows, targets)
        assert sum(received) == len(X) * 8 * (values + 1)  # the sums of the predictions out of the bag
        assert_equal_forests(ours, arrays)
        assert_equal_forests(pickle.loads(pickle.dumps(ours)), arrays)
        ours = clone(arrays).set_params(oob_score=lambda truth, predicted: 2 * scorer(truth, predicted))
        del received[:]
        ours.fit(rows, targets)
        assert sum(received) == y.nbytes  # for the callable
        assert ours.oob_score_ == pytest.approx(2 * arrays.oob_score_)
        if how and WEIGHTS_DRAW:
            with pytest.raises(AttributeError, match=r"for estimators_samples_, fit with y\.gather"):
                _ = ours.estimators_samples_
        else:
            for one, other in zip(ours.estimators_samples_, arrays.estimators_samples_, strict=True):
                np.testing.assert_array_equal(one, other)


def test_targets_that_forests_refuse(current: xpulab.XPUCluster) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    rows = current.scatter(X)
    several = current.scatter(rng.integers(0, 3, (200, 2)) * 1.0)
    missing = np.where(np.arange(200) == 7, np.nan, X[:, 0])
    cases: list[tuple[Any, Any, str]] = [
        (RandomForestClassifier(), current.scatter(X[:, 0].copy()), "Unknown label type"),
        (RandomForestClassifier(oob_score=True), several, "cannot be used to compute OOB estimates"),
        (RandomForestClassifier(class_weight={0: 1}), several, "should be a list of dicts"),
        (RandomForestRegressor(), current.scatter(missing, allow_nan=True), "Input y contains NaN.* is row 7"),
        (RandomForestRegressor(), current.scatter(X[:99, 0].copy()), "inconsistent numbers of samples"),
    ]
    for forest, y, message in cases:
        with pytest.raises(ValueError, match=message):
            forest.fit(rows, y)
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        RandomForestRegressor(2).fit(rows, current.scatter(X[:, :1].copy()))
