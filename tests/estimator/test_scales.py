"""Rows that a dtype holds badly.

Those whose squares are below or above its range give the results of ordinary rows, times the scale. Rows of float32
after a fit in float64 are not rounded before they are computed, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.covariance
import sklearn.linear_model
import sklearn.neighbors
from scipy import sparse

import xpulab
from xpulab import cluster, covariance, decomposition, linear_model, mixture, naive_bayes, neighbors
from xpulab.basic_statistics import BasicStatistics

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("current")]

three = pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])
few = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
FAR = [(np.float32, -100), (np.float32, 116), (np.float64, -530), (np.float64, 530)]
NEAR = [(np.float32, -73), (np.float32, 66)]  # some squares are in the range of float32, and some are not
far, scales = (
    pytest.mark.parametrize(("dtype", "exponent"), some, ids=lambda value: getattr(value, "__name__", value))
    for some in (FAR, FAR + NEAR)
)

RNG = np.random.default_rng(0)
B = RNG.normal(size=(120, 3)) + np.repeat([[4.0], [0.0]], 60, axis=0)
Q = RNG.normal(size=(20, 3)) + 2
WIDE, WIDE_Q = RNG.normal(size=(90, 20)), RNG.normal(size=(9, 20))
Y = B @ [1.0, 2.0, 3.0] + 0.1 * RNG.normal(size=120)


def at(values: np.ndarray, dtype: Any, exponent: int) -> np.ndarray:
    """Return the values times a power of two; all of them are exact, also in float64."""
    return np.ldexp(values.astype(np.float32).astype(dtype), exponent)


def back(values: Any, exponent: int) -> np.ndarray:
    return np.ldexp(np.asarray(values, np.float64), -exponent)


@pytest.mark.fraction(2)
@three
@far
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "manhattan", "cosine", "minkowski"])
def test_neighbours(metric: str, dtype: Any, exponent: int) -> None:
    arguments: dict[str, Any] = {"metric": metric, **({"p": 3} if metric == "minkowski" else {})}
    degree = {"cosine": 0, "sqeuclidean": 2}.get(metric, 1)
    for rows, queries in ((B, Q), (WIDE, WIDE_Q)):
        plain = sklearn.neighbors.NearestNeighbors(algorithm="brute", **arguments)
        expected, places = plain.fit(at(rows, np.float64, 0)).kneighbors(at(queries, np.float64, 0))
        ours = neighbors.NearestNeighbors(**arguments).fit(at(rows, dtype, exponent))
        distances, found = ours.kneighbors(at(queries, dtype, exponent))
        np.testing.assert_array_equal(found, places)
        if dtype == np.float32 or degree < 2:  # squared distances of float64 rows leave the range of float64
            exact = 1e-6 if metric == "cosine" and dtype == np.float32 else 1e-9
            np.testing.assert_allclose(back(distances, degree * exponent), expected, rtol=exact, atol=exact)
    near = ours.radius_neighbors(at(WIDE_Q, dtype, exponent), 0.0 if degree == 0 else np.ldexp(5.0, exponent))[1]
    within = plain.radius_neighbors(at(WIDE_Q, np.float64, 0), 0.0 if degree == 0 else 5.0)[1]
    if degree == 1:
        assert [sorted(each) for each in near] == [sorted(each) for each in within]


@three
def test_neighbours_at_differences_far_below_the_rows() -> None:
    X = np.zeros((40, 1), np.float32)
    X[:, 0] = np.arange(40, 0, -1) * np.float32(1e-25)
    X[0] = 1
    places = neighbors.NearestNeighbors(n_neighbors=2).fit(X).kneighbors(X[20:21], return_distance=False)
    np.testing.assert_array_equal(places, [[20, 19]])


@three
@far
def test_k_means(dtype: Any, exponent: int) -> None:
    start = B[[0, 60]]
    bisected = [cluster.BisectingKMeans(2, random_state=0, tol=0).fit(at(B, dtype, place)) for place in (0, exponent)]
    np.testing.assert_array_equal(bisected[1].labels_, bisected[0].labels_)
    np.testing.assert_array_equal(bisected[1].predict(at(Q, dtype, exponent)), bisected[0].predict(at(Q, dtype, 0)))
    of_csr = [
        cluster.KMeans(2, init=at(start, dtype, place), n_init=1).fit(sparse.csr_matrix(at(B, dtype, place)))
        for place in (0, exponent)
    ]
    np.testing.assert_allclose(back(of_csr[1].cluster_centers_, exponent), of_csr[0].cluster_centers_, rtol=1e-5)
    for model in (cluster.KMeans, cluster.MiniBatchKMeans):
        fits = []
        for place in (0, exponent):
            X = at(B, dtype, place)
            km = model(2, init=at(start, dtype, place), n_init=1, random_state=0).fit(X)
            queries = at(Q, dtype, place)
            facts = back(km.cluster_centers_, place), back(km.transform(queries), place)
            fits.append((*facts, km.labels_, km.predict(queries), km.predict(np.repeat(queries, 50, axis=0))))
        for found, expected in zip(fits[1], fits[0], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    if dtype == np.float32:
        ordinary = cluster.KMeans(2, random_state=0).fit(at(B, dtype, 0))
        scaled = cluster.KMeans(2, random_state=0).fit(at(B, dtype, exponent))
        assert back(scaled.inertia_, 2 * exponent) == pytest.approx(ordinary.inertia_, rel=1e-5)
        assert back(-scaled.score(at(B, dtype, exponent)), 2 * exponent) == pytest.approx(ordinary.inertia_, rel=1e-5)


@few
@scales
def test_linear_models(current: xpulab.XPUCluster, dtype: Any, exponent: int) -> None:
    X, y, weights = at(B, dtype, exponent), at(Y, dtype, exponent), np.arange(1.0, 121)
    pairs: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (linear_model.LinearRegression, sklearn.linear_model.LinearRegression),
        (lambda **given: linear_model.Ridge(0, **given), sklearn.linear_model.LinearRegression),
        (linear_model.IncrementalLinearRegression, sklearn.linear_model.LinearRegression),
    ]
    for ours, plain in pairs:
        for intercept in (True, False):
            expected = plain(fit_intercept=intercept).fit(at(B, np.float64, 0), at(Y, np.float64, 0))
            fitted = ours(fit_intercept=intercept).fit(X, y)
            np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-4, atol=1e-5)
            assert back(fitted.intercept_, exponent) == pytest.approx(expected.intercept_, abs=1e-4)
    expected = sklearn.linear_model.LinearRegression().fit(B, Y, weights)
    for rows, targets in ((X, y), (current.scatter(X), y)):
        fitted = linear_model.LinearRegression().fit(rows, targets, weights)
        np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-4)
    np.testing.assert_allclose(back(fitted.predict(at(Q, dtype, exponent)), exponent), expected.predict(Q), rtol=1e-3)
    assert fitted.rank_ == 3


@three
@far
@pytest.mark.parametrize("solver", ["full", "covariance_eigh", "arpack"])
def test_principal_components(solver: Any, dtype: Any, exponent: int) -> None:
    if (dtype, exponent) == (np.float32, 116):
        exponent = 100  # the singular values are larger than the numbers, and float32 has no room for them
    found, expected = (decomposition.PCA(2, svd_solver=solver).fit(at(B, dtype, place)) for place in (exponent, 0))
    np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back(found.singular_values_, exponent), expected.singular_values_, rtol=1e-4)
    np.testing.assert_allclose(found.explained_variance_ratio_, expected.explained_variance_ratio_, rtol=1e-4)


@three
@scales
def test_moments(dtype: Any, exponent: int) -> None:
    X = at(B, dtype, exponent)
    found = BasicStatistics(["mean", "standard_deviation"]).fit(X)
    np.testing.assert_allclose(back(found.mean_, exponent), B.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(back(found.standard_deviation_, exponent), B.std(axis=0, ddof=1), rtol=1e-5)
    if dtype == np.float32:
        ours = covariance.EmpiricalCovariance().fit(X)
        expected = sklearn.covariance.EmpiricalCovariance().fit(B)
        np.testing.assert_allclose(back(ours.covariance_, 2 * exponent), expected.covariance_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(ours.mahalanobis(at(Q, dtype, exponent)), expected.mahalanobis(Q), rtol=1e-3)


@three
def test_small_columns_that_cancel_are_not_constant() -> None:
    X = np.column_stack([np.tile([1.0, 3.0], 20), np.arange(40.0)]).astype(np.float32) * np.float32(1e-25)
    found = covariance.EmpiricalCovariance().fit(X)
    np.testing.assert_allclose(found.covariance_, np.cov(X.T.astype(np.float64), bias=True), rtol=1e-5)
    fitted = linear_model.LinearRegression().fit(X, X[:, 0] + 2 * X[:, 1])
    np.testing.assert_allclose(fitted.coef_, [1, 2], rtol=1e-4)


@three
def test_estimators_that_need_squares_of_float64_refuse_rows_whose_squares_are_too_large() -> None:
    X, y = at(B, np.float64, 530), at(Y, np.float64, 530)
    for model in (linear_model.Lasso(), linear_model.ElasticNetCV(cv=3), linear_model.RidgeCV(cv=3)):
        with pytest.raises(ValueError, match="squares are too large for float64"):
            model.fit(X, y)


@pytest.mark.parametrize("exponent", [-133, -145])
def test_lasso_of_float32_rows_so_small_that_digits_are_lost(exponent: int) -> None:
    X, y = at(B, np.float32, exponent), at(Y, np.float32, exponent)
    every = [linear_model.Lasso(), linear_model.ElasticNet(), linear_model.Lasso(fit_intercept=False)]
    for model in (*every, linear_model.LassoCV(alphas=[1.0], cv=2), linear_model.ElasticNetCV(alphas=[1.0], cv=2)):
        np.testing.assert_array_equal(model.fit(X, y).coef_, np.zeros(3, np.float32))


PRECISE = RNG.normal(size=(200, 4)) * [1, 2, 3, 4] + 1e5
LINE = PRECISE @ [1.0, 2.0, 3.0, 4.0]
LABELS = np.greater(LINE, LINE.mean())
LATER = PRECISE.astype(np.float32)


@pytest.mark.parametrize(
    ("estimator", "y", "method"),
    [
        (linear_model.LinearRegression(), LINE, "predict"),
        (linear_model.Ridge(), np.stack([LINE, -LINE], axis=1), "predict"),
        (linear_model.RidgeCV(), LINE, "predict"),
        (linear_model.Lasso(0.1), LINE, "predict"),
        (linear_model.LogisticRegression(), LABELS, "predict_proba"),
        (decomposition.PCA(2), None, "transform"),
        (decomposition.PCA(2), None, "score_samples"),
        (decomposition.IncrementalPCA(2), None, "transform"),
        (decomposition.TruncatedSVD(2), None, "transform"),
        (cluster.KMeans(3, random_state=0), None, "transform"),
        (cluster.MiniBatchKMeans(3, random_state=0), None, "transform"),
        (mixture.GaussianMixture(2, random_state=0), None, "score_samples"),
        (naive_bayes.GaussianNB(), LABELS, "predict_log_proba"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else value if isinstance(value, str) else "",
)
def test_later_rows_of_float32_are_computed_in_the_dtype_of_the_fit(
    on_pair: xpulab.XPUCluster, estimator: Any, y: Any, method: str
) -> None:
    estimator.fit(PRECISE, y)
    expected = getattr(estimator, method)(LATER.astype(np.float64))
    assert getattr(estimator.to_sklearn(), method)(LATER).dtype == np.float64
    for rows in (LATER, on_pair.scatter(LATER)):
        found = getattr(estimator, method)(rows)
        found = found.gather() if isinstance(found, xpulab.ShardedArray) else found
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_rows_that_are_projected_back(on_pair: xpulab.XPUCluster) -> None:
    pca = decomposition.PCA(2).fit(PRECISE)
    back = pca.transform(PRECISE).astype(np.float32)
    expected = pca.to_sklearn().inverse_transform(back)
    for rows in (back, on_pair.scatter(back)):
        found = pca.inverse_transform(rows)
        np.testing.assert_allclose(np.asarray(found if rows is back else found.gather()), expected, rtol=1e-12)
