"""`Lasso`, `ElasticNet`, `LassoCV` and `ElasticNetCV` against scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as theirs
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, KFold, RepeatedKFold, ShuffleSplit
from tables import error, table

import xpulab
from xpulab import linear_model as ours

#: Twenty penalties to try; before scikit-learn 1.7, `alphas` is no number.
N_ALPHAS: dict[str, Any] = {"alphas": 20} if theirs.LassoCV().alphas is not None else {"n_alphas": 20}

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]


def both(name: str, X: Any, y: Any, weights: Any = None, **parameters: Any) -> tuple[Any, Any]:
    mine, other = (getattr(module, name)(**parameters).fit(X, y, weights) for module in (ours, theirs))
    return mine, other


@pytest.mark.fraction(2)
@pytest.mark.parametrize("offset", [0, 1e4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parameters", [{}, {"positive": True}, {"fit_intercept": False}, {"selection": "random"}])
def test_coefficients_gaps_and_iterations(offset: float, weighted: bool, parameters: dict[str, Any]) -> None:
    X, y, weights = table(offset=offset, condition=20)
    for name, more in (("Lasso", {"alpha": 0.01}), ("ElasticNet", {"alpha": 0.02, "l1_ratio": 0.7})):
        if offset and not parameters.get("fit_intercept", True):
            continue  # a condition of 1e6, at which neither converges
        how = {"tol": 1e-12, "max_iter": 100_000, "random_state": 0, **more, **parameters}
        mine, other = both(name, X, y, weights if weighted else None, **how)
        assert error(mine.coef_, other.coef_) < 1e-8
        np.testing.assert_allclose(mine.intercept_, other.intercept_, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(mine.predict(X), other.predict(X), atol=1e-6)
        assert mine.sparse_coef_.nnz == other.sparse_coef_.nnz
        loose, other = both(name, X, y, weights if weighted else None, **{**how, "tol": 1e-4})
        assert loose.n_iter_ == other.n_iter_
        assert error(loose.coef_, other.coef_) < 1e-8
        np.testing.assert_allclose(loose.dual_gap_, other.dual_gap_, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("condition", [3, 100])
def test_float32_is_as_good_as_scikit_learn_or_better(condition: float) -> None:
    X, y, _ = table(dtype=np.float32, offset=100, condition=condition)
    expected = theirs.Lasso(0.001, tol=1e-13, max_iter=1_000_000).fit(X.astype(np.float64), y.astype(np.float64))
    mine = ours.Lasso(0.001, tol=1e-13, max_iter=1_000_000).fit(X, y)
    assert error(mine.coef_, expected.coef_) < 1e-4
    assert mine.coef_.dtype == np.float32


@pytest.mark.parametrize("name", ["Lasso", "ElasticNet", "LassoCV", "ElasticNetCV"])
def test_the_report_says_not_converged_where_scikit_learn_warns(name: str) -> None:
    X, y, _ = table(condition=20)
    how = {"alphas": [0.001]} if name.endswith("CV") else {"alpha": 0.001}
    enough = getattr(ours, name)(**how).fit(X, y).n_iter_
    assert enough > 2
    for most in (1, 2, enough, 100_000):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            mine = getattr(ours, name)(max_iter=most, **how).fit(X, y)
        warned = any(issubclass(each.category, ConvergenceWarning) for each in said)
        assert warned == (most < 3)
        assert mine.report_.status == ("not converged" if warned else "finished")
        assert ("raise max_iter, or tol" in str(mine.report_)) == warned


def test_targets_warm_start_pickle_and_handles(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(t=3)
    mine, other = both("Lasso", X, y, alpha=0.01)
    np.testing.assert_allclose(mine.coef_, other.coef_, atol=1e-10)
    assert mine.n_iter_ == other.n_iter_
    np.testing.assert_allclose(mine.dual_gap_, other.dual_gap_, rtol=1e-3, atol=1e-9)
    again = mine.set_params(warm_start=True).fit(X, y)
    assert max(again.n_iter_) <= 1
    counts = [0] * (current.size - 1) + [700]
    sent = ours.Lasso(0.01).fit(current.scatter(X, counts=counts), current.scatter(y, counts=counts))
    np.testing.assert_allclose(sent.coef_, other.coef_, atol=1e-10)
    plain = pickle.loads(pickle.dumps(sent)).to_sklearn()
    assert type(plain) is theirs.Lasso
    np.testing.assert_allclose(plain.predict(X), sent.predict(X), atol=1e-10)
    assert not hasattr(clone(sent), "coef_")


def test_wide_rows() -> None:
    X, y, _ = table(30, 60, condition=2)
    mine, other = both("ElasticNet", X, y, alpha=0.1, tol=1e-10)
    np.testing.assert_allclose(mine.coef_, other.coef_, atol=1e-9)
    mine, other = both("Lasso", X.astype(np.float32), y.astype(np.float32), alpha=0.1)
    np.testing.assert_allclose(mine.coef_, other.coef_, atol=1e-4)


def test_a_gram_matrix_of_other_rows_is_refused() -> None:
    X, y, _ = table()
    X -= X.mean(axis=0)
    good = ours.Lasso(0.01, precompute=X.T @ X).fit(X, y)
    np.testing.assert_allclose(good.coef_, theirs.Lasso(0.01).fit(X, y).coef_, atol=1e-10)
    with pytest.raises(ValueError, match="did not pass validation"):
        ours.Lasso(precompute=X.T @ X + 1).fit(X, y)
    with pytest.warns(UserWarning, match="recomputing Gram matrix"):
        ours.Lasso(precompute=X.T @ X).fit(X + 1, y)


SPLITTERS = [
    None,
    3,
    KFold(4, shuffle=True, random_state=0),
    ShuffleSplit(3, random_state=0),
    RepeatedKFold(n_splits=2, n_repeats=2, random_state=0),
]


@pytest.mark.fraction(2)
@pytest.mark.parametrize("cv", SPLITTERS, ids=lambda cv: "default" if cv is None else str(cv).partition("(")[0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_cross_validation(cv: Any, weighted: bool, fit_intercept: bool) -> None:
    X, y, weights = table(301, condition=5, offset=1.0)
    for name, more in (("LassoCV", {}), ("ElasticNetCV", {"l1_ratio": [0.3, 0.9]})):
        how = {"cv": cv, **N_ALPHAS, "fit_intercept": fit_intercept, "tol": 1e-8, **more}
        mine, other = both(name, X, y, weights if weighted else None, **how)
        np.testing.assert_allclose(mine.mse_path_, other.mse_path_, rtol=1e-7)
        np.testing.assert_allclose(mine.alphas_, other.alphas_, rtol=1e-9)
        assert mine.alpha_ == pytest.approx(other.alpha_, rel=1e-9)
        assert mine.n_iter_ == other.n_iter_
        assert error(mine.coef_, other.coef_) < 1e-8
        np.testing.assert_allclose(mine.intercept_, other.intercept_, atol=1e-8)
        if more:
            assert mine.l1_ratio_ == other.l1_ratio_


@pytest.mark.parametrize("condition", [3, 300])
def test_cross_validation_of_float32_rows_far_from_zero(condition: float) -> None:
    X, y, _ = table(600, dtype=np.float32, offset=1e4, condition=condition)
    other = theirs.LassoCV(**N_ALPHAS, max_iter=100_000).fit(X.astype(np.float64), y.astype(np.float64))
    mine = ours.LassoCV(**N_ALPHAS, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(mine.mse_path_, other.mse_path_, rtol=1e-2)
    assert mine.alpha_ == pytest.approx(other.alpha_, rel=1e-4)
    assert error(mine.coef_, other.coef_) < 1e-4


def test_given_alphas_groups_and_handles(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(200)
    splits = list(GroupKFold(4).split(X, y, np.arange(200) % 8))
    mine, other = both("LassoCV", X, y, cv=splits, alphas=[0.1, 0.001, 0.01])
    np.testing.assert_allclose(mine.mse_path_, other.mse_path_, rtol=1e-7)
    np.testing.assert_array_equal(mine.alphas_, other.alphas_)
    sent = ours.LassoCV(cv=splits, alphas=[0.1, 0.001, 0.01]).fit(current.scatter(X), current.scatter(y))
    np.testing.assert_allclose(sent.mse_path_, other.mse_path_, rtol=1e-7)
    assert type(sent.to_sklearn()) is theirs.LassoCV
    with pytest.raises(ValueError, match="MultiTaskLassoCV"):
        ours.LassoCV().fit(X, np.stack([y, y], 1))
    with pytest.raises(ValueError, match="l1_ratio=0"):
        ours.ElasticNetCV(l1_ratio=0).fit(X, y)
