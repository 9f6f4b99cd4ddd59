"""`RidgeCV` against scikit-learn."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, ShuffleSplit
from tables import error, leaving_one_out, table

import xpulab
from xpulab.linear_model import RidgeCV

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

ALPHAS = (0.01, 0.1, 1.0, 10.0, 100.0)


def both(X: Any, y: Any, weights: Any = None, **parameters: Any) -> tuple[Any, Any]:
    mine, other = (c(ALPHAS, **parameters).fit(X, y, weights) for c in (RidgeCV, sklearn.linear_model.RidgeCV))
    np.testing.assert_allclose(mine.alpha_, other.alpha_)
    np.testing.assert_allclose(mine.best_score_, other.best_score_, rtol=1e-7)
    assert np.shape(mine.best_score_) == np.shape(other.best_score_)
    assert mine.coef_.shape == other.coef_.shape
    assert error(mine.coef_, other.coef_) < 1e-8
    np.testing.assert_allclose(mine.intercept_, other.intercept_, rtol=1e-8, atol=1e-8)
    assert np.shape(mine.intercept_) == np.shape(other.intercept_)
    return mine, other


@pytest.mark.fraction(2)
@pytest.mark.parametrize("n_targets", [0, 1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parameters", [{}, {"fit_intercept": False}, {"alpha_per_target": True}, {"scoring": "r2"}])
def test_leaving_one_out(n_targets: int, weighted: bool, parameters: dict[str, Any]) -> None:
    X, y, weights = table(200, 6, n_targets, offset=3.0)
    mine, other = both(X, y, weights if weighted else None, store_cv_results=True, **parameters)
    np.testing.assert_allclose(mine.cv_results_, other.cv_results_, rtol=1e-6, atol=1e-9)
    mine, _ = both(X, y, weights if weighted else None, **parameters)
    assert not hasattr(mine, "cv_results_")


@pytest.mark.parametrize("shape", [(20, 30), (30, 30), (31, 30)])
def test_wide_rows(shape: tuple[int, int]) -> None:
    X, y, _ = table(*shape, condition=3)
    mine, other = both(X, y, store_cv_results=True)
    np.testing.assert_allclose(mine.cv_results_, other.cv_results_, rtol=1e-6)


@pytest.mark.parametrize("offset", [0, 1e4])
def test_float32_rows_and_columns_far_from_zero(offset: float) -> None:
    X, y, _ = table(300, condition=1e2, offset=offset)
    both(X, y)
    X, y = X.astype(np.float32), y.astype(np.float32)
    expected = sklearn.linear_model.RidgeCV(ALPHAS, store_cv_results=True).fit(X, y)
    mine = RidgeCV(ALPHAS, store_cv_results=True).fit(X, y)
    assert mine.alpha_ == expected.alpha_
    assert error(mine.coef_, expected.coef_) < 1e-4
    np.testing.assert_allclose(mine.cv_results_.mean(axis=0), expected.cv_results_.mean(axis=0), rtol=1e-3)
    assert mine.coef_.dtype == np.float32 == mine.cv_results_.dtype


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    exponents=st.lists(st.integers(-8, 8), min_size=3, max_size=3),
    shift=st.sampled_from([0.0, 1e2, 1e4, 1e6]),
    alpha=st.sampled_from([1e-6, 1.0, 1e3]),
    centre=st.booleans(),
    mode=st.sampled_from([None, "auto", "svd", "eigen"]),
    dtype=st.sampled_from([np.float64, np.float32]),
)
def test_columns_of_any_size_and_shift_against_exact_arithmetic(
    exponents: list[int], shift: float, alpha: float, centre: bool, mode: Any, dtype: Any, cluster: xpulab.XPUCluster
) -> None:
    rng = np.random.default_rng(0)
    B = rng.normal(size=(20, 3))
    X, y = (
        ((B + shift) * 10.0 ** np.array(exponents)).astype(dtype),
        (B @ [1, 2, 3] + rng.normal(size=20)).astype(dtype),
    )
    expected, squared = leaving_one_out(X, y, alpha, centre)
    mine = RidgeCV([alpha], fit_intercept=centre, gcv_mode=mode).fit(X, y)
    # Without an intercept, float64 predictions of shifted rows lose as many digits as the shift has.
    lost = 1e-16 * max(shift, 1.0)
    np.testing.assert_allclose(mine.coef_, expected, 1e3 * lost + (0 if dtype == np.float64 else 1e-6))
    np.testing.assert_allclose(-mine.best_score_, squared, 1e-9 + 1e3 * lost)
    way = "QR factorization" if mode == "svd" or dtype == np.float32 else ""
    assert way in str(mine.report_)


def test_gcv_mode_names_the_method_in_the_report() -> None:
    X, y, _ = table(60)
    for mode in (None, "auto", "eigen"):
        assert "products of the scaled columns" in str(RidgeCV(gcv_mode=mode).fit(X, y).report_)
    assert "QR factorization of [X y]" in str(RidgeCV(gcv_mode="svd").fit(X, y).report_)
    with pytest.raises(ValueError, match="gcv_mode"):
        RidgeCV(gcv_mode="gram").fit(X, y)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("size", [1e8, 1e-8])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_folds_of_columns_of_any_size_and_shift(size: float, shift: float, centre: bool) -> None:
    rng = np.random.default_rng(0)
    B = rng.normal(size=(40, 3))
    X, y = (B + shift) * [1, 1, size], B @ [1, 2, 3] + rng.normal(size=40)
    mine = RidgeCV([1.0], fit_intercept=centre, cv=4).fit(X, y)
    expected, _ = leaving_one_out(X, y, 1.0, centre)
    np.testing.assert_allclose(mine.coef_, expected, 1e-8)
    each = []
    for train, test in KFold(4).split(X):
        coef, _ = leaving_one_out(X[train], y[train], 1.0, centre)
        middle = (X[train].mean(axis=0), y[train].mean()) if centre else (np.zeros(3), 0.0)
        each.append(r2_score(y[test], (X[test] - middle[0]) @ coef + middle[1]))
    np.testing.assert_allclose(mine.best_score_, np.mean(each), 1e-6)


@pytest.mark.parametrize("cv", [4, KFold(3, shuffle=True, random_state=0), ShuffleSplit(3, random_state=0)])
@pytest.mark.parametrize("n_targets", [0, 2])
def test_folds(cv: Any, n_targets: int) -> None:
    X, y, _ = table(150, 5, n_targets, offset=2.0)
    both(X, y, cv=cv)
    both(X, y, cv=cv, fit_intercept=False)


def test_folds_that_are_fitted_separately() -> None:
    X, y, weights = table(150, 5, 2, offset=2.0)
    both(X, y, weights, cv=2, scoring="neg_mean_absolute_error")


def test_handles_and_pickle(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(100)
    counts = [0] * (current.size - 1) + [100]
    sent, right = current.scatter(X, counts=counts), current.scatter(y, counts=counts)
    for parameters in ({}, {"cv": 3}, {"scoring": "r2"}):
        expected = sklearn.linear_model.RidgeCV(ALPHAS, **parameters).fit(X, y)
        mine = RidgeCV(ALPHAS, **parameters).fit(sent, right)
        assert mine.alpha_ == expected.alpha_
        np.testing.assert_allclose(mine.coef_, expected.coef_, rtol=1e-8)
        plain = pickle.loads(pickle.dumps(mine)).to_sklearn()
        assert type(plain) is sklearn.linear_model.RidgeCV
        np.testing.assert_allclose(plain.predict(X), mine.predict(sent), rtol=1e-8)
    with pytest.raises(TypeError, match="fitted one by one"):
        RidgeCV(cv=3, scoring="r2").fit(sent, right)


def test_what_is_refused() -> None:
    X, y, _ = table(50)
    with pytest.raises(ValueError, match="alphas"):
        RidgeCV([0.0, 1.0]).fit(X, y)
    with pytest.raises(ValueError, match="store_cv_results=True are incompatible"):
        RidgeCV(cv=3, store_cv_results=True).fit(X, y)
    with pytest.raises(ValueError, match="alpha_per_target=True are incompatible"):
        RidgeCV(cv=3, alpha_per_target=True).fit(X, y)
