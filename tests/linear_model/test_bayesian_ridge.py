"""`BayesianRidge` against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import xpulab
from xpulab.linear_model import BayesianRidge

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

Reference = sklearn.linear_model.BayesianRidge


def table(n: int, d: int, dtype: Any = np.float64, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(n, d)) * np.geomspace(0.5, 3, d) + rng.normal(size=d)).astype(dtype)
    y = X @ rng.normal(size=d) + rng.normal(size=n) + 5
    return X, y.astype(dtype), rng.uniform(0.1, 2, n)


def assert_same(ours: Any, theirs: Any, X: np.ndarray, tolerance: float) -> None:
    scale = np.abs(theirs.coef_).max()
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=tolerance * scale)
    for name in ("intercept_", "alpha_", "lambda_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=30 * tolerance, err_msg=name)
    np.testing.assert_allclose(ours.sigma_, theirs.sigma_, rtol=0, atol=30 * tolerance * np.abs(theirs.sigma_).max())
    np.testing.assert_allclose(ours.X_offset_, theirs.X_offset_, rtol=tolerance, atol=tolerance)
    assert (ours.coef_.dtype, ours.sigma_.dtype) == (theirs.coef_.dtype, theirs.sigma_.dtype)
    for mine, other in zip(ours.predict(X, return_std=True), theirs.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(mine, other, rtol=10 * tolerance, atol=10 * tolerance)
        assert mine.dtype == other.dtype


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(3, 200),
    d=st.integers(1, 12),
    dtype=st.sampled_from([np.float32, np.float64]),
    weighted=st.booleans(),
    centre=st.booleans(),
    seed=st.integers(0, 100),
    cut=st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_any_rows_and_cut(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    dtype: Any,
    weighted: bool,
    centre: bool,
    seed: int,
    cut: list[float],
) -> None:
    X, y, weights = table(n, d, dtype, seed)
    w = weights if weighted else None
    how: dict[str, Any] = {"fit_intercept": centre, "max_iter": 4, "tol": 1e-300}  # as many iterations in both
    exact = Reference(**how).fit(X.astype(np.float64), y.astype(np.float64), w)
    bounds = [0, *sorted(int(c * n) for c in cut)][: current.size]
    counts = np.diff([*bounds, n]).tolist()
    sent, right = current.scatter(X, counts=counts), current.scatter(y, counts=counts)
    determined = n > d + 2  # otherwise nothing is left of y, and the noise is that of rounding
    for rows, targets in ((X, y), (sent, y), (sent, right)):
        ours = BayesianRidge(**how).fit(rows, targets, w)
        assert ours.n_iter_ == exact.n_iter_
        if determined and dtype == np.float64:
            assert_same(ours, Reference(**how).fit(X, y, w), X, 1e-7)
        elif determined:
            np.testing.assert_allclose(ours.coef_, exact.coef_, rtol=0, atol=1e-3 * np.abs(exact.coef_).max())
        np.testing.assert_allclose(ours.predict(rows), ours.to_sklearn().predict(X), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [200, 8])
def test_scores_and_stops_where_scikit_learn_does(n: int, capsys: pytest.CaptureFixture[str]) -> None:
    X, y, weights = table(n, 12)
    how: dict[str, Any] = {
        "compute_score": True,
        "verbose": True,
        "alpha_init": 1.0,
        "lambda_init": 1e-2,
        "max_iter": 9,
    }
    ours, theirs = (kind(**how).fit(X, y, weights) for kind in (BayesianRidge, Reference))
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_allclose(ours.scores_, theirs.scores_, rtol=1e-6)
    said = capsys.readouterr().out.splitlines()
    assert said[: len(said) // 2] == said[len(said) // 2 :]
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), rel=1e-6)


def test_results_of_a_handle_stay_in_the_dtype_of_the_rows(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(300, 4, np.float32)
    ours = BayesianRidge().fit(current.scatter(X), current.scatter(y))
    means, spread = ours.predict(current.scatter(X), return_std=True)
    assert (means.dtype, spread.dtype, spread.shape) == (np.float32, np.float32, (300,))
    assert (spread > 0).all()
