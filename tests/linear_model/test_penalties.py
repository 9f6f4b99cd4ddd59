"""`LogisticRegression` with the l1 norm in its penalty, against scikit-learn's "saga", and the optimum itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import xpulab
from xpulab.linear_model import LogisticRegression

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
    pytest.mark.filterwarnings("ignore:'penalty' was deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:l1_ratio parameter is only used:UserWarning"),
]

Reference = sklearn.linear_model.LogisticRegression
EXACT: dict[str, Any] = {"solver": "saga", "tol": 1e-10, "max_iter": 20_000, "random_state": 0}


def table(n: int = 300, d: int = 8, k: int = 2, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows, classes that a few columns decide, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = (X[:, : (d + 1) // 2] @ rng.normal(size=((d + 1) // 2, k)) + rng.gumbel(size=(n, k))).argmax(axis=1)
    y[:k] = np.arange(k)
    return X, y, rng.uniform(0.1, 2, n)


def objective(model: Any, X: np.ndarray, y: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Return what scikit-learn minimises."""
    coef, logs = model.coef_.astype(float), model.predict_log_proba(X.astype(float))
    loss = -(weights * logs[np.arange(len(y)), np.searchsorted(model.classes_, y)]).sum()
    return float(model.C * loss + share * np.abs(coef).sum() + (1 - share) / 2 * np.square(coef).sum())


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize(("penalty", "share"), [("l1", 1.0), ("elasticnet", 0.4)])
def test_the_optimum_is_scikit_learn_s(k: int, penalty: str, share: float) -> None:
    X, y, weights = table(k=k)
    for C, fit_intercept in ((0.05, True), (1.0, True), (1.0, False)):
        how = {"penalty": penalty, "l1_ratio": share, "C": C, "fit_intercept": fit_intercept}
        theirs = Reference(**how, **EXACT).fit(X, y, weights)
        ours = LogisticRegression(**how, solver="saga", tol=1e-8).fit(X, y, weights)
        best = objective(theirs, X, y, weights, share)
        assert objective(ours.to_sklearn(), X, y, weights, share) <= best * (1 + 1e-9)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
        usual = LogisticRegression(**how, solver="saga").fit(X, y, weights)
        assert objective(usual.to_sklearn(), X, y, weights, share) <= best * (1 + 1e-6)
        report = ours.report_
        assert (report.converged, len(report.iterations)) == (True, ours.n_iter_[0])
        last = report.iterations[-1].metrics
        assert last["gradient"] <= 5e-8  # of which rounding is left
        assert last["loss"] == pytest.approx(best / C / weights.sum(), rel=1e-8)


@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(20, 200),
    d=st.integers(1, 30),
    k=st.integers(2, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    C=st.sampled_from([0.01, 1.0, 10.0]),
    share=st.sampled_from([0.3, 1.0]),
    class_weight=st.sampled_from([None, "balanced"]),
    sparse=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 100),
)
def test_no_slope_is_left(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    k: int,
    dtype: Any,
    C: float,
    share: float,
    class_weight: str | None,
    sparse: bool,
    wide: bool,
    seed: int,
) -> None:
    """The smallest subgradient of the objective, computed here from the fitted attributes, is as small as `tol`."""
    X, y, _ = table(n, d + (1500 if wide else 0), k, dtype, seed)
    X[:, 0] = X[:, -1]  # two equal columns, or one
    given: Any = scipy.sparse.csr_matrix(X * (np.abs(X) > 0.5)) if sparse else X
    X = given.toarray() if sparse else X
    how = {"penalty": "elasticnet", "l1_ratio": share, "C": C, "class_weight": class_weight, "solver": "saga"}
    model = LogisticRegression(**how, max_iter=5000, tol=1e-4).fit(given, y)
    weights = np.ones(n) if class_weight is None else (n / k / np.bincount(y))[y]
    chances = model.to_sklearn().predict_proba(X.astype(np.float64))
    away = (chances - np.eye(k)[y]) * weights[:, None] / weights.sum()
    away = away[:, 1:] if k == 2 else away
    coef, scale = model.coef_.astype(float), 1 / (C * weights.sum())
    slope = away.T @ X + (1 - share) * scale * coef
    least = np.where(coef == 0, np.maximum(np.abs(slope) - share * scale, 0), slope + share * scale * np.sign(coef))
    assert np.abs(least).max() <= 1.1e-4
    assert np.abs(away.sum(axis=0)).max() <= 1.1e-4


def test_the_number_of_engines_changes_nothing(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(400, 12, 3)
    how: dict[str, Any] = {"penalty": "l1", "l1_ratio": 1.0, "solver": "saga", "C": 0.1, "tol": 1e-9}
    model = LogisticRegression(**how).fit(X, y)
    for rows, labels in ((current.scatter(X), y), (current.scatter(X), current.scatter(y.astype(float)))):
        again = LogisticRegression(**how).fit(rows, labels)
        np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-9)
    single = LogisticRegression(**how | {"tol": 1e-5}).fit(X.astype(np.float32), y)
    assert single.coef_.dtype == np.float32
    np.testing.assert_allclose(single.coef_, model.coef_, atol=1e-4)
    np.testing.assert_array_equal(single.coef_ == 0, model.coef_ == 0)


@pytest.mark.parametrize("solver", ["sag", "saga"])
@pytest.mark.parametrize("C", [0.3, np.inf])
def test_without_the_l1_norm_the_solver_is_lbfgs(solver: str, C: float) -> None:
    X, y, weights = table(k=3)
    model, same = (LogisticRegression(solver=s, C=C).fit(X, y, weights) for s in (solver, "lbfgs"))
    np.testing.assert_array_equal(model.coef_, same.coef_)
    exact = Reference(**EXACT | {"solver": solver}, C=C).fit(X, y, weights)
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=5e-3)


def test_warm_start_and_a_small_limit() -> None:
    X, y, _ = table(k=3)
    model = LogisticRegression(penalty="l1", l1_ratio=1.0, solver="saga", warm_start=True, max_iter=1)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        model.fit(X, y)
    assert (model.n_iter_[0], model.report_.converged) == (1, False)
    assert model.set_params(max_iter=100).fit(X, y).n_iter_ > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        assert model.fit(X, y).n_iter_ == 0
    X, y, _ = table(60, 1600)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        model.set_params(warm_start=False, max_iter=2).fit(X, y)
    assert model.n_iter_ == 2
    assert model.set_params(warm_start=True, max_iter=5000).fit(X, y).fit(X, y).n_iter_ == 0


def test_columns_that_say_nothing_have_no_coefficient() -> None:
    X, y, _ = table(200, 6)
    X[:, 1], X[:, 4] = 0, 7
    how: dict[str, Any] = {"penalty": "l1", "l1_ratio": 1.0, "solver": "saga"}
    model = LogisticRegression(**how).fit(X, y)
    assert model.coef_[0, 1] == model.coef_[0, 4] == 0
    strong = LogisticRegression(**how, C=1e-6).fit(X, y)
    assert not strong.coef_.any()
    np.testing.assert_allclose(strong.predict_proba(X[:1])[0, 1], y.mean(), rtol=1e-3)


def test_classes_that_a_plane_separates() -> None:
    X, _, _ = table(100, 3)
    y = (X[:, 0] > 0).astype(int)
    model = LogisticRegression(penalty="l1", l1_ratio=1.0, solver="saga", C=1e4).fit(X, y)
    assert model.score(X, y) == 1.0
    assert np.isfinite(model.coef_).all()
