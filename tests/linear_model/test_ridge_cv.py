"""`RidgeCV` against scikit-learn."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from sklearn.model_selection import KFold, ShuffleSplit
from tables import error, table

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
