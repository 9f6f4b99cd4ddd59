"""`QuantileRegressor` against the objective of scikit-learn's, whose linear program has the least one."""

from __future__ import annotations

import pickle
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
from xpulab.linear_model import QuantileRegressor

pytestmark = pytest.mark.cluster

on_several = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])


def table(n: int = 200, d: int = 5, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows, targets of which some are far, and weights."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.3, 3, d)).astype(dtype)
    return X, (X @ rng.normal(size=d) + rng.standard_t(2, n) + 10 * (seed % 2)).astype(dtype), rng.uniform(0.1, 2, n)


def objective(model: Any, X: Any, y: np.ndarray, weights: np.ndarray | None) -> float:
    """Return what the fit minimises."""
    missed = y.astype(np.float64) - X.astype(np.float64) @ model.coef_ - model.intercept_
    pinball = np.where(missed > 0, model.quantile * missed, (model.quantile - 1) * missed)
    return float(np.average(pinball, weights=weights) + model.alpha * np.abs(model.coef_).sum())


@on_several
@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(3, 150),
    d=st.integers(1, 12),
    dtype=st.sampled_from([np.float32, np.float64]),
    quantile=st.sampled_from([0.03, 0.5, 0.8]),
    alpha=st.sampled_from([0.0, 0.01, 0.3]),
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
    quantile: float,
    alpha: float,
    fit_intercept: bool,
    weighted: bool,
    form: str,
    seed: int,
) -> None:
    X, y, weights = table(n, d, dtype, seed)
    w, how = weights if weighted else None, {"quantile": quantile, "alpha": alpha, "fit_intercept": fit_intercept}
    rows = {"array": X, "handle": current.scatter(X), "csr": scipy.sparse.csr_matrix(X)}[form]
    ours = QuantileRegressor(**how).fit(rows, y, w)
    theirs = sklearn.linear_model.QuantileRegressor(**how).fit(X.astype(np.float64), y.astype(np.float64), w)
    size, rounding = np.abs(y).mean(), 1e-3 if dtype == np.float32 else 1e-9
    assert objective(ours, X, y, w) <= objective(theirs, X, y, w) + rounding * size
    assert (ours.coef_.shape, ours.coef_.dtype) == (theirs.coef_.shape, theirs.coef_.dtype)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    assert ours.predict(rows).shape == (n,)
    assert type(ours.n_iter_) is int


@on_several
def test_rows_with_the_same_residuals_are_several_quantiles_at_once(current: xpulab.XPUCluster) -> None:
    """Of whole numbers, many rows are on the line, and many lines are as good as each other."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 3, (90, 2)).astype(float), rng.integers(0, 4, 90).astype(float)
    for quantile in (0.1, 0.5, 0.9):
        ours = QuantileRegressor(quantile=quantile, alpha=0.0).fit(X, y)
        theirs = sklearn.linear_model.QuantileRegressor(quantile=quantile, alpha=0.0).fit(X, y)
        assert objective(ours, X, y, None) <= objective(theirs, X, y, None) * (1 + 1e-9)
        assert (y < ours.predict(X) - 1e-6).mean() <= quantile <= (y <= ours.predict(X) + 1e-6).mean()


@on_several
def test_targets_on_engines_files_and_copies(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, weights = table(400)
    theirs = sklearn.linear_model.QuantileRegressor(alpha=0.01).fit(X, y, weights)
    np.save(tmp_path / "X.npy", X)
    for rows in (current.scatter(X), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = QuantileRegressor(alpha=0.01).fit(rows, current.scatter(y), weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)
        assert ours.intercept_ == pytest.approx(theirs.intercept_)
    assert ours.score(rows, y, weights) == pytest.approx(theirs.score(X, y, weights))
    assert ours.report_.status == "finished"
    assert ours.report_.iterations[-1].number == ours.n_iter_
    plain = pickle.loads(pickle.dumps(ours)).to_sklearn()
    assert type(plain) is sklearn.linear_model.QuantileRegressor
    np.testing.assert_allclose(plain.predict(X), ours.predict(X), rtol=1e-12, atol=1e-12)


@on_several
def test_more_columns_than_second_derivatives(cluster: xpulab.XPUCluster) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1600))
    y = X[:, :3].sum(axis=1) + rng.normal(size=60)
    ours, theirs = QuantileRegressor(alpha=0.05), sklearn.linear_model.QuantileRegressor(alpha=0.05)
    least, found = (objective(each.fit(X, y), X, y, None) for each in (theirs, ours))
    assert found <= least * (1 + 1e-3)


@on_several
def test_refusals_come_before_anything_is_sent(current: xpulab.XPUCluster) -> None:
    X, y, weights = table()
    refused: list[tuple[Any, tuple[Any, ...], str]] = [
        (QuantileRegressor(solver="interior-point"), (X, y), "solver='interior-point' was given"),
        (QuantileRegressor(solver_options={"presolve": False}), (X, y), "the engines take only 'maxiter'"),
        (QuantileRegressor(solver_options={"maxiter": 0.5}), (X, y), "maxiter"),
        (QuantileRegressor(quantile=1.0), (X, y), "quantile"),
        (QuantileRegressor(), (X, y, weights[:-1]), "sample_weight"),
        (QuantileRegressor(), (X, y, -weights), "Negative values"),
        (QuantileRegressor(), (X, np.stack([y, y], axis=1)), "1d array"),
    ]
    for model, arguments, message in refused:
        with nothing_sent(current), pytest.raises(ValueError, match=message):
            model.fit(*arguments)
    with pytest.warns(ConvergenceWarning, match=r"in 2 iterations; for more, type: .*\{'maxiter': 20\}"):
        cut = QuantileRegressor(alpha=0.0, solver_options={"maxiter": 2}).fit(X, y)
    assert (cut.n_iter_, cut.report_.status) == (2, "not converged")


def test_a_stopped_fit_goes_on_as_if_it_had_not_been(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, y, _ = table(3000)
    expected, stopped = QuantileRegressor(alpha=0.01).fit(X, y), QuantileRegressor(alpha=0.01)
    losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=6)
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt, match=r"iteration \d+ of 10000; to go on"):
        stopped.fit(X, y)
    assert 0 < stopped.n_iter_ < expected.n_iter_
    assert stopped.predict(X).shape == (3000,)
    losable.run(strike)
    np.testing.assert_array_equal(stopped.resume().coef_, expected.coef_)
    assert stopped.n_iter_ == expected.n_iter_
