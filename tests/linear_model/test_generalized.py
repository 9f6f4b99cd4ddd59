"""`PoissonRegressor`, `GammaRegressor` and `TweedieRegressor` against scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as theirs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_tweedie_score

import xpulab
import xpulab.linear_model as ours

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("current"),
    pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"]),
]

#: Models with the power of their distribution. Targets of all are positive.
MODELS: list[tuple[str, dict[str, Any], float]] = [
    ("PoissonRegressor", {}, 1),
    ("GammaRegressor", {}, 2),
    ("TweedieRegressor", {}, 0),
    ("TweedieRegressor", {"power": 1.5}, 1.5),
    ("TweedieRegressor", {"power": 3}, 3),
    ("TweedieRegressor", {"power": 0, "link": "log"}, 0),
    ("TweedieRegressor", {"power": -1, "link": "log"}, -1),
    ("TweedieRegressor", {"power": 1.5, "link": "identity"}, 1.5),
]
of_each = pytest.mark.parametrize(("name", "parameters", "power"), MODELS)


def table(
    n: int = 400, d: int = 5, power: float = 1, dtype: Any = np.float64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, targets whose mean depends on them, some 0 if the distribution has zeros, and weights."""
    rng = np.random.default_rng(seed)
    X = (rng.uniform(0.1, 1, size=(n, d)) * np.geomspace(0.5, 2, d)).astype(dtype)
    mean = np.exp(X @ rng.normal(size=d) / np.sqrt(d) + 0.5)
    y = rng.poisson(mean) if power == 1 else mean * rng.gamma(3, 1 / 3, n)
    if 1 < power < 2:
        y[::7] = 0
    return X, y.astype(dtype), rng.uniform(0.1, 2, n)


def both(name: str, how: dict[str, Any], *arguments: Any) -> tuple[Any, Any]:
    """Fit both models, which warn of the same."""
    fitted, said = [], []
    for module in (ours, theirs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted.append(getattr(module, name)(**how).fit(*arguments))
        said.append([each.category for each in caught])
    assert said[0] == said[1]
    return fitted[0], fitted[1]


def assert_same(mine: Any, other: Any, tolerance: float) -> None:
    scale = max(float(np.abs(other.coef_).max()), abs(float(other.intercept_)))
    np.testing.assert_allclose(mine.coef_, other.coef_, rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(mine.intercept_, other.intercept_, rtol=0, atol=tolerance * scale)
    assert mine.coef_.shape == other.coef_.shape
    # scikit-learn's Newton solver that goes on with "lbfgs" has coefficients of float64 for rows of float32.
    assert mine.coef_.dtype == other.coef_.dtype or other.solver == "newton-cholesky"
    assert type(mine.intercept_) is type(other.intercept_) or mine.coef_.dtype != other.coef_.dtype
    assert type(mine.n_iter_) is type(other.n_iter_)


@of_each
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])
def test_coefficients_iterations_predictions_and_scores(
    name: str, parameters: dict[str, Any], power: float, solver: str
) -> None:
    X, y, weights = table(power=power)
    for more in ({"alpha": 0.1}, {"alpha": 0.01, "fit_intercept": False})[: 2 - (MODELS[-1][1] == parameters)]:
        how = {**parameters, "solver": solver, **more}
        mine, other = both(name, how, X, y, weights)
        bent = power <= 0 and parameters.get("link") == "log" and solver == "newton-cholesky"  # where "lbfgs" goes on
        assert_same(mine, other, 1e-4 if bent else 1e-7)
        assert mine.n_iter_ == other.n_iter_ == len(mine.report_.iterations) or bent
        first, last = (mine.report_.iterations[at].metrics for at in (0, -1))
        assert last["loss"] <= first["loss"] + 1e-12
        if mine.n_iter_ < mine.max_iter:  # means that have to be positive may keep the search from the minimum
            assert (mine.report_.status, mine.report_.converged) == ("finished", True)
            assert last["gradient"] <= mine.tol
        np.testing.assert_allclose(mine.predict(X), other.predict(X), rtol=1e-6)
        assert mine.score(X, y, weights) == pytest.approx(other.score(X, y, weights), abs=1e-8)
        assert mine.score(X, y) == pytest.approx(d2_tweedie_score(y, other.predict(X), power=power), abs=1e-7)
        plain = pickle.loads(pickle.dumps(mine)).to_sklearn()
        assert type(plain) is type(other)
        np.testing.assert_array_equal(plain.predict(X[:3]), mine.to_sklearn().predict(X[:3]))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # those of both are compared
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    n=st.integers(1, 200),
    d=st.integers(1, 20),
    model=st.sampled_from(MODELS[:-1]),  # coefficients of the last one may have no means
    solver=st.sampled_from(["lbfgs", "newton-cholesky"]),
    dtype=st.sampled_from([np.float32, np.float64]),
    weighted=st.booleans(),
    centre=st.booleans(),
    seed=st.integers(0, 100),
    cut=st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_any_rows_forms_and_cut(
    current: xpulab.XPUCluster,
    n: int,
    d: int,
    model: tuple[str, dict[str, Any], float],
    solver: str,
    dtype: Any,
    weighted: bool,
    centre: bool,
    seed: int,
    cut: list[float],
) -> None:
    name, parameters, power = model
    X, y, weights = table(n, d, power, dtype, seed)
    y = y + (y.sum() == 0)  # the logarithm of the mean is finite
    w = weights if weighted else None
    how = {**parameters, "alpha": 0.3, "solver": solver, "fit_intercept": centre, "max_iter": 1000}
    single = dtype == np.float32
    tolerance = 2e-2 if single else 2e-4  # both end when no component of the gradient is above 1e-4
    mine, other = both(name, how, X, y, w)
    assert_same(mine, other, tolerance)
    bounds = [0, *sorted(int(c * n) for c in cut)][: current.size]
    counts = np.diff([*bounds, n]).tolist()
    sent, right = current.scatter(X, counts=counts), current.scatter(y, counts=counts)
    for rows, targets in ((sent, y), (sent, right), (sparse.csr_matrix(X), y)):
        again = getattr(ours, name)(**how).fit(rows, targets, w)
        assert_same(again, mine, tolerance)
        found = again.predict(rows)
        found = found if isinstance(found, np.ndarray) else found.gather()
        np.testing.assert_allclose(found, again.to_sklearn().predict(X), rtol=1e-4 if single else 1e-10)
        if n > 1:
            expected = again.to_sklearn().score(X, y, w)
            assert again.score(rows, targets, w) == pytest.approx(expected, abs=1e-3 if single else 1e-9)


def test_float32_is_as_good_as_scikit_learn() -> None:
    for name, parameters, power in (MODELS[0], MODELS[1], MODELS[3]):
        X, y, weights = table(5000, 8, power, np.float32)
        exact = getattr(theirs, name)(**parameters, alpha=0.01, tol=1e-9, solver="newton-cholesky")
        exact.fit(X.astype(np.float64), y.astype(np.float64), weights)
        mine, other = both(name, {**parameters, "alpha": 0.01, "tol": 1e-6, "max_iter": 1000}, X, y, weights)
        errors = [np.abs(model.coef_ - exact.coef_).max() for model in (mine, other)]
        assert errors[0] < max(2 * errors[1], 1e-3), (name, errors)


def test_counts_that_are_nearly_all_zero() -> None:
    """Means far below 1, as of claims of insurance; a gradient of float32 that rounds them to zero ends too early."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 3)).astype(np.float32)
    y = rng.poisson(np.exp(X @ [0.5, -0.5, 0.2] - 6)).astype(np.float32)
    mine, other = both("PoissonRegressor", {"alpha": 0.0, "tol": 1e-7, "max_iter": 1000}, X, y)
    assert y.mean() < 0.01
    assert_same(mine, other, 1e-3)


@pytest.mark.parametrize("name", ["PoissonRegressor", "GammaRegressor", "TweedieRegressor"])
def test_few_rows_of_many_columns(name: str) -> None:
    """Newton's method has an equation for each row, beyond the number of columns for which it has one for each."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2000)) / 30, rng.uniform(0.5, 3, 30)
    mine, other = both(name, {"alpha": 0.1, "solver": "newton-cholesky"}, X, y)
    assert_same(mine, other, 1e-7)
    assert mine.n_iter_ == other.n_iter_
    with pytest.raises(ValueError, match=r"2000 features and 1 columns .* use solver='lbfgs'"):
        getattr(ours, name)(alpha=0, solver="newton-cholesky").fit(X, y)


def test_targets_that_the_distribution_does_not_have(current: xpulab.XPUCluster) -> None:
    X, y, _ = table(60)
    for name, parameters, wrong in (
        ("PoissonRegressor", {}, -1.0),
        ("GammaRegressor", {}, 0.0),
        ("TweedieRegressor", {"power": 1.5}, -0.5),
        ("TweedieRegressor", {"power": 2.5, "link": "identity"}, 0.0),
    ):
        targets = np.where(np.arange(60) == 59, wrong, y + 1)
        model = getattr(ours, name)(**parameters)
        with pytest.raises(ValueError, match="out of the valid range") as expected:
            getattr(theirs, name)(**parameters).fit(X, targets)
        said = str(expected.value).rstrip(".")
        for rows, given_ in ((X, targets), (current.scatter(X), current.scatter(targets))):
            with pytest.raises(ValueError, match=f"the lowest is {wrong:g}") as caught:
                model.fit(rows, given_)
            assert str(caught.value).startswith(said)
        model.fit(X, y + 1)
        for given_ in (targets, current.scatter(targets)):
            with pytest.raises(ValueError, match=f"the lowest is {wrong:g}"):
                model.score(X if isinstance(given_, np.ndarray) else current.scatter(X), given_)


def test_a_warm_start_goes_on_from_the_coefficients() -> None:
    X, y, _ = table()
    model = ours.PoissonRegressor(alpha=0.1, warm_start=True).fit(X, y)
    assert model.n_iter_ > 2
    first = model.coef_
    assert model.fit(X, y).n_iter_ <= 1
    np.testing.assert_allclose(model.coef_, first, rtol=1e-4)
    with pytest.raises(ValueError, match=r"X has 2 features, and warm_start=True goes on from 5 coefficients"):
        model.fit(X[:, :2], y)


def test_what_the_solvers_say_is_said() -> None:
    X, y, _ = table()
    for module in (ours, theirs):
        with pytest.warns(ConvergenceWarning, match="failed to converge"):
            module.PoissonRegressor(max_iter=1, tol=1e-9).fit(X, y)
        with pytest.warns(ConvergenceWarning, match="Newton solver did not converge"):
            module.PoissonRegressor(max_iter=1, tol=1e-9, solver="newton-cholesky").fit(X, y)


def test_weights_that_add_up_to_zero_and_targets_that_are_all_equal() -> None:
    X, y, _ = table(20)
    model, plain = both("PoissonRegressor", {}, X, y)
    for found in (model, plain):
        for call in (found.score, found.fit):
            with pytest.raises((ZeroDivisionError, ValueError), match=r"[Ww]eights"):  # the second since 1.8
                call(X, y, np.zeros(20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = [found.score(X, np.full(20, 2.0)) for found in (model, plain)]
    assert abs(scores[0]) > 1e9 or np.isnan(scores[0])  # a share of nothing
    assert abs(scores[1]) > 1e9 or np.isnan(scores[1])
