"""Linear models of more columns than rows, against scikit-learn: an equation for each row, whatever is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import xpulab
from xpulab.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeCV

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

_RNG = np.random.default_rng(0)
ALPHAS = (0.01, 1.0, 100.0)
drawn = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _draw(data: st.DataObject, n_targets: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float]:
    """Return rows, targets, weights of which some are 0, and a tolerance for the dtype of the rows."""
    n, dtype = data.draw(st.integers(1 if n_targets is None else 3, 12)), data.draw(st.sampled_from(["f4", "f8"]))
    d, random = data.draw(st.integers(n + 1, n + 30)), np.random.default_rng(data.draw(st.integers(0, 99)))
    X = (random.normal(size=(n, d)) + 10 * random.normal(size=d)).astype(dtype)
    y = random.normal(size=(n, n_targets) if n_targets else n).astype(dtype)
    weights = random.integers(0, 3, n) + 1.0 * (np.arange(n) < 3) if data.draw(st.booleans()) else None
    return X, y, weights, 1e-4 if dtype == "f4" else 1e-8


def _same(ours: Any, theirs: Any, X: np.ndarray, tolerance: float) -> None:
    tiny = tolerance * np.abs(theirs.coef_).max() + 1e-20
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=tolerance, atol=tiny)
    assert ours.coef_.shape == theirs.coef_.shape
    largest = np.abs(X).max() * np.abs(theirs.coef_).sum(axis=-1).max() + np.abs(theirs.intercept_).max()
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X.astype(float)), rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize(
    ("estimator", "way"),
    [
        (LinearRegression(), "an equation for each row"),
        (Ridge(), "an equation for each row"),
        (Ridge(fit_intercept=False), "an equation for each row"),
        (Ridge(0.0, fit_intercept=False), "an equation for each row"),
        (Ridge(solver="svd"), "QR factorization of the transposed rows"),
        (RidgeCV(), "products of the rows"),
        (RidgeCV(gcv_mode="svd"), "QR factorization of the transposed rows"),
        (RidgeCV(cv=3), None),  # a fit of each fold
    ],
    ids=str,
)
def test_rows_of_many_columns_need_no_products_of_all_columns(estimator: Any, way: str | None) -> None:
    X, y = _RNG.normal(size=(20, 2000)), _RNG.normal(size=20)
    ours = clone(estimator).fit(X, y)
    assert way is None or way in str(ours.report_.notes)
    assert "normal equations" not in str(ours.report_.notes)
    theirs = ours.unfitted_sklearn().fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8, atol=1e-12)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-8)


@drawn
@given(data=st.data())
def test_ridge_is_scikit_learn_s(data: st.DataObject, current: xpulab.XPUCluster) -> None:
    n_targets = data.draw(st.sampled_from([None, 1, 3]))
    X, y, weights, tolerance = _draw(data, n_targets)
    alpha: Any = data.draw(st.sampled_from([1e-3, 1.0, 100.0]))
    if n_targets == 3:
        alpha = alpha * np.array([1.0, 2.0, 1.0])
    arguments: Any = {"alpha": alpha, "fit_intercept": data.draw(st.booleans())}
    ours = Ridge(**arguments, solver=data.draw(st.sampled_from(["auto", "svd"]))).fit(X, y, sample_weight=weights)
    assert "an equation for each row" in str(ours.report_.notes)
    theirs = sklearn.linear_model.Ridge(**arguments, solver="svd")
    theirs.fit(X.astype(float), y.astype(float), sample_weight=weights)
    _same(ours, theirs, X, tolerance)


@drawn
@given(data=st.data())
def test_the_shortest_coefficients_are_scikit_learn_s(data: st.DataObject, current: xpulab.XPUCluster) -> None:
    X, y, weights, tolerance = _draw(data, data.draw(st.sampled_from([None, 1, 3])))
    if len(X) > 1 and data.draw(st.booleans()):
        X[-1] = X[0]
    arguments: Any = {"fit_intercept": data.draw(st.booleans())}
    ours = LinearRegression(**arguments).fit(X, y, weights)
    theirs = sklearn.linear_model.LinearRegression(**arguments).fit(X.astype(float), y.astype(float), weights)
    assert ours.rank_ == theirs.rank_
    tiny = tolerance * theirs.singular_[0]
    np.testing.assert_allclose(ours.singular_, theirs.singular_, rtol=tolerance, atol=tiny)
    assert ours.singular_.dtype == X.dtype
    _same(ours, theirs, X, tolerance)


@drawn
@given(data=st.data())
def test_leaving_one_out_is_scikit_learn_s(data: st.DataObject, current: xpulab.XPUCluster) -> None:
    X, y, weights, tolerance = _draw(data, data.draw(st.sampled_from([1, 3])))
    arguments: Any = {"fit_intercept": data.draw(st.booleans()), "alpha_per_target": data.draw(st.booleans())}
    if weights is None or weights.all():  # scikit-learn divides 0 by 0 for rows without weight
        arguments["scoring"] = data.draw(st.sampled_from([None, "neg_mean_absolute_error"]))
    ours = RidgeCV(ALPHAS, **arguments, gcv_mode=data.draw(st.sampled_from([None, "eigen", "svd"])))
    ours.set_params(store_cv_results=True).fit(X, y, weights)
    theirs = sklearn.linear_model.RidgeCV(ALPHAS, **arguments, store_cv_results=True)
    with np.errstate(invalid="ignore"):
        theirs.fit(X.astype(float), y.astype(float), weights)
    np.testing.assert_allclose(ours.alpha_, theirs.alpha_)
    np.testing.assert_allclose(ours.best_score_, theirs.best_score_, rtol=100 * tolerance)
    weighty = np.ones(len(X), bool) if weights is None else weights > 0
    tiny = 100 * tolerance * np.abs(theirs.cv_results_[weighty]).max()
    np.testing.assert_allclose(ours.cv_results_[weighty], theirs.cv_results_[weighty], rtol=1e-6, atol=tiny)
    _same(ours, theirs, X, tolerance)


def test_predictions_without_a_row_of_no_weight_are_those_of_all_rows() -> None:
    X, y, weights = _RNG.normal(size=(9, 30)), _RNG.normal(size=9), np.ones(9)
    weights[4] = 0
    ours = RidgeCV([1.0], scoring="r2", store_cv_results=True).fit(X, y, weights)
    assert ours.cv_results_[4, 0] == pytest.approx(ours.predict(X)[4])


@pytest.mark.parametrize("model", [Ridge(), LinearRegression(), RidgeCV(store_cv_results=True)], ids=str)
def test_handles_and_ranks_without_rows(current: xpulab.XPUCluster, model: Any) -> None:
    X, y = _RNG.normal(size=(9, 40)), _RNG.normal(size=(9, 2))
    counts = [0] * (current.size - 1) + [9]
    sent, targets = current.scatter(X, counts=counts), current.scatter(y, counts=counts)
    expected, found = clone(model).fit(X, y), clone(model).fit(sent, targets)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-10)
    np.testing.assert_array_equal(sent.gather(), X)
    np.testing.assert_allclose(getattr(found, "cv_results_", 0), getattr(expected, "cv_results_", 0), rtol=1e-8)


@pytest.mark.parametrize("model", [Ridge(), LinearRegression(), RidgeCV()], ids=str)
def test_what_is_not_finite_is_named(model: Any) -> None:
    X, y = _RNG.normal(size=(9, 40)), _RNG.normal(size=9)
    X[7, 3] = np.nan
    with pytest.raises(ValueError, match="row 7"):
        clone(model).fit(X, y)


def test_equal_rows_with_a_small_penalty_are_left_to_the_exact_method() -> None:
    X, y = _RNG.normal(size=(20, 200)), _RNG.normal(size=20)
    X[1], y[1] = X[0], y[0]
    ours = Ridge(1e-12).fit(X, y)
    assert "QR factorization" in str(ours.report_.notes)
    assert ours.solver_ == "svd"
    theirs = sklearn.linear_model.Ridge(1e-12, solver="svd").fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8, atol=1e-10)


def _labels(n: int, n_classes: int) -> np.ndarray:
    return np.arange(n) % n_classes


@drawn
@given(data=st.data())
def test_newton_s_steps_are_scikit_learn_s(data: st.DataObject, current: xpulab.XPUCluster) -> None:
    n_classes = data.draw(st.sampled_from([2, 3]))
    n, dtype = data.draw(st.integers(n_classes + 1, 25)), data.draw(st.sampled_from([np.float32, np.float64]))
    d, random = data.draw(st.integers(n + 1, n + 40)), np.random.default_rng(data.draw(st.integers(0, 99)))
    X = (random.normal(size=(n, d)) + random.normal(size=d)).astype(dtype)
    if data.draw(st.booleans()):
        X[-1] = X[0]
    weights = random.uniform(0.5, 2, n) if data.draw(st.booleans()) else None
    arguments: Any = {
        "C": data.draw(st.sampled_from([0.01, 1.0, 30.0])),
        "fit_intercept": data.draw(st.booleans()),
        "solver": "newton-cholesky",
        "class_weight": data.draw(st.sampled_from([None, "balanced"])),
        "tol": 1e-6,
    }
    y = _labels(n, n_classes)
    ours = LogisticRegression(**arguments).fit(X, y, weights)
    theirs = sklearn.linear_model.LogisticRegression(**arguments).fit(X.astype(float), y, weights)
    tolerance = 1e-3 if dtype == np.float32 else 1e-6
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=tolerance * np.abs(theirs.coef_).max())
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X.astype(float)), atol=tolerance)
    if dtype == np.float64:
        assert ours.n_iter_ == theirs.n_iter_


def test_newton_s_method_of_few_rows_makes_no_matrix_of_all_columns() -> None:
    """Such a matrix would take 80 GB."""
    X, y = _RNG.normal(size=(20, 100_000)).astype(np.float32), _labels(20, 2)
    ours = LogisticRegression(solver="newton-cholesky", tol=1e-6).fit(X, y)
    theirs = sklearn.linear_model.LogisticRegression(tol=1e-7).fit(X.astype(float), y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3 * np.abs(theirs.coef_).max())
    with pytest.raises(ValueError, match="with a penalty"):
        LogisticRegression(solver="newton-cholesky", C=np.inf).fit(X, y)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_newton_s_method_begins_with_any_coefficients(n_classes: int) -> None:
    """Also with some beside the rows, which the penalty makes vanish."""
    X, y = _RNG.normal(size=(15, 40)), _labels(15, n_classes)
    fitted: list[Any] = []
    for home in (LogisticRegression, sklearn.linear_model.LogisticRegression):
        model: Any = home(solver="newton-cholesky", warm_start=True, tol=1e-8).fit(X, y)
        model.coef_ = model.coef_ + np.random.default_rng(1).normal(size=model.coef_.shape)
        fitted.append(model.fit(X, y))
    assert fitted[0].n_iter_ == fitted[1].n_iter_
    np.testing.assert_allclose(fitted[0].coef_, fitted[1].coef_, atol=1e-8)


def test_newton_s_method_that_does_not_converge_warns_as_scikit_learn_does() -> None:
    X, y, said = _RNG.normal(size=(15, 40)), _labels(15, 2), []
    for home in (LogisticRegression, sklearn.linear_model.LogisticRegression):
        with pytest.warns(ConvergenceWarning) as caught:
            home(solver="newton-cholesky", max_iter=1, tol=1e-9).fit(X, y)
        said.append([str(each.message) for each in caught])
    assert said[0] == said[1]
