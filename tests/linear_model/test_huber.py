"""`HuberRegressor` against the objective of scikit-learn's, and its results."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sent import nothing_sent
from sklearn.exceptions import ConvergenceWarning
from strikes import pressed_when, strike, wait_for_stop

import xpulab
from xpulab.linear_model import HuberRegressor

pytestmark = pytest.mark.cluster

on_several = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
EXACT: dict[str, Any] = {"max_iter": 10_000, "tol": 1e-9}


def table(n: int = 200, d: int = 5, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows, targets of which some are far, and weights."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.3, 3, d)).astype(dtype)
    y = X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) + 10 * (seed % 2)
    return X, np.where(rng.random(n) < 0.1, y + 30, y).astype(dtype), rng.uniform(0.1, 2, n)


def objective(model: Any, X: Any, y: np.ndarray, weights: np.ndarray | None) -> float:
    """Return what the fit minimises."""
    z = np.abs(y.astype(np.float64) - X.astype(np.float64) @ model.coef_ - model.intercept_) / model.scale_
    losses = 1 + np.where(z < model.epsilon, z**2, 2 * model.epsilon * z - model.epsilon**2)
    w = np.ones(len(y)) if weights is None else weights
    return float(model.scale_ * (w @ losses) + model.alpha * model.coef_ @ model.coef_)


def theirs_of(how: dict[str, Any], X: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return sklearn.linear_model.HuberRegressor(**how, **EXACT).fit(X.astype(np.float64), y.astype(np.float64), w)


@on_several
@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(30, 200),
    d=st.integers(1, 12),
    dtype=st.sampled_from([np.float32, np.float64]),
    epsilon=st.sampled_from([1.1, 1.35, 3.0]),
    alpha=st.sampled_from([0.0, 1e-4, 10.0]),
    fit_intercept=st.booleans(),
    weighted=st.booleans(),
    form=st.sampled_from(["array", "handle", "csr"]),
    seed=st.integers(0, 100),
)
def test_any_rows_have_the_least_objective(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    dtype: Any,
    epsilon: float,
    alpha: float,
    fit_intercept: bool,
    weighted: bool,
    form: str,
    seed: int,
) -> None:
    X, y, weights = table(n, d, dtype, seed)
    w, how = weights if weighted else None, {"epsilon": epsilon, "alpha": alpha, "fit_intercept": fit_intercept}
    rows = {"array": X, "handle": current.scatter(X), "csr": scipy.sparse.csr_matrix(X)}[form]
    ours, theirs = HuberRegressor(**how).fit(rows, y, w), theirs_of(how, X, y, w)
    rounding = 1e-3 if dtype == np.float32 else 1e-7
    assert objective(ours, X, y, w) <= objective(theirs, X, y, w) * (1 + rounding)
    assert ours.scale_ == pytest.approx(theirs.scale_, rel=0.1)
    assert (ours.coef_.shape, ours.coef_.dtype) == (theirs.coef_.shape, theirs.coef_.dtype)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    assert (ours.outliers_.shape, ours.outliers_.dtype) == ((n,), bool)
    assert (ours.outliers_ == theirs.outliers_).mean() >= 0.95
    assert type(ours.n_iter_) is int


@on_several
def test_scales_that_become_as_small_as_possible(current: xpulab.XPUCluster) -> None:
    """With an epsilon of 1, all residuals may be outliers, and the absolute ones are added up."""
    X, y, _ = table(300)
    absolute = sklearn.linear_model.QuantileRegressor(alpha=0.0).fit(X, y)
    line = HuberRegressor(epsilon=1.0, alpha=0.0, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(line.coef_, absolute.coef_, atol=1e-6)
    assert line.scale_ < 1e-14
    exact = X @ np.arange(1.0, 6) + 7  # all rows are on the line
    line = HuberRegressor(alpha=0.0).fit(X, exact)
    np.testing.assert_allclose(line.coef_, np.arange(1.0, 6), atol=1e-10)
    assert line.scale_ < 1e-12
    assert line.report_.status == "finished"
    nothing = HuberRegressor().fit(X, np.zeros(300))
    np.testing.assert_array_equal(nothing.coef_, np.zeros(5))


@on_several
def test_targets_on_engines_files_copies_and_the_outliers(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, weights = table(400)
    theirs = theirs_of({}, X, y, weights)
    np.save(tmp_path / "X.npy", X)
    for rows in (current.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = HuberRegressor().fit(rows, current.scatter(y), weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
        np.testing.assert_array_equal(ours.outliers_, theirs.outliers_)
        assert ours.scale_ == pytest.approx(theirs.scale_, rel=1e-4)
    assert ours.score(rows, y, weights) == pytest.approx(theirs.score(X, y, weights), rel=1e-6)
    assert ours.report_.status == "finished"
    assert ours.report_.iterations[-1].number == ours.n_iter_
    plain = pickle.loads(pickle.dumps(ours)).to_sklearn()
    assert type(plain) is sklearn.linear_model.HuberRegressor
    np.testing.assert_allclose(plain.predict(X), ours.predict(X), rtol=1e-12, atol=1e-12)
    again = HuberRegressor(warm_start=True).fit(X, y, weights)
    first, coef = again.n_iter_, again.coef_
    assert again.fit(X, y, weights).n_iter_ < first
    np.testing.assert_allclose(again.coef_, coef, rtol=1e-6)


@on_several
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_columns_than_second_derivatives(cluster: xpulab.XPUCluster, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1600)).astype(dtype)
    y = (X[:, :3].sum(axis=1) + rng.normal(size=300)).astype(dtype)
    how = {"alpha": 100.0}
    ours, theirs = HuberRegressor(**how, max_iter=1000).fit(X, y), theirs_of(how, X, y, None)
    assert objective(ours, X, y, None) <= objective(theirs, X, y, None) * (1 + 1e-3)


@on_several
def test_refusals_come_before_anything_is_sent(current: xpulab.XPUCluster) -> None:
    X, y, weights = table()
    warm = HuberRegressor(warm_start=True).fit(X, y)
    refused: list[tuple[Any, tuple[Any, ...], str]] = [
        (HuberRegressor(epsilon=0.9), (X, y), "epsilon"),
        (HuberRegressor(), (X, y, weights[:-1]), "sample_weight"),
        (HuberRegressor(), (X, y, -weights), "Negative values"),
        (HuberRegressor(), (X, np.stack([y, y], axis=1)), "1d array"),
        (warm, (X[:, :3], y), "the 5 coefficients of the previous fit do not go with the 3 columns of X"),
    ]
    for model, arguments, message in refused:
        with nothing_sent(current), pytest.raises(ValueError, match=message):
            model.fit(*arguments)
    with pytest.warns(ConvergenceWarning, match=r"in 2 iterations; for more, type: model.set_params\(max_iter=20\)"):
        cut = HuberRegressor(max_iter=2).fit(X, y)
    assert (cut.n_iter_, cut.report_.status) == (2, "not converged")


def test_a_stopped_fit_goes_on_as_if_it_had_not_been(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, _ = table(3000)
    expected, stopped = HuberRegressor().fit(X, y), HuberRegressor().fit(X, y)
    losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=3)
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt, match=r"iteration \d+ of 100; to go on"):
        stopped.fit(X, y)
    assert 0 < stopped.n_iter_ < expected.n_iter_
    assert not hasattr(stopped, "outliers_")
    assert stopped.predict(X).shape == (3000,)
    losable.run(strike)
    np.testing.assert_array_equal(stopped.resume().coef_, expected.coef_)
    np.testing.assert_array_equal(stopped.outliers_, expected.outliers_)
    assert (stopped.n_iter_, stopped.scale_) == (expected.n_iter_, expected.scale_)
