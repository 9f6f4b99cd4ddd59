"""Linear models on one rank: least squares, folds, rows that are left out, and logistic losses, against references."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from scipy import sparse

from xpulab.engine.algorithms.linear import solving
from xpulab.engine.algorithms.linear.folds import fold_sums, sharp_products
from xpulab.engine.algorithms.linear.least_squares import least_squares
from xpulab.engine.algorithms.linear.leave_one_out import leave_one_out
from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.engine.algorithms.linear.losses import Classes
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.engine.algorithms.linear.sparse_least_squares import sparse_score
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.sharing.linear_models import Minimisation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 5)) + 3
Y = X @ RNG.normal(size=(5, 2)) + RNG.normal(size=(300, 2))
WEIGHTS = RNG.integers(0, 4, 300).astype(np.float64)


@pytest.mark.parametrize("exact", [False, True], ids=["products", "triangle"])
@pytest.mark.parametrize("weighted", [False, True])
def test_coefficients_of_least_squares(task: Task, given: Callable[..., Data], weighted: bool, exact: bool) -> None:
    weights = WEIGHTS if weighted else None
    found = least_squares(task, given(X, weights, Y), True, np.zeros(2), 1e-10, True, exact)
    theirs = sklearn.linear_model.LinearRegression().fit(X, Y, weights)
    coef = found.coef if found.coef is not None else np.linalg.solve(found.triangle, found.rotated)
    assert (found.coef is None) is exact
    np.testing.assert_allclose(coef.T, theirs.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.target_mean - found.mean @ coef, theirs.intercept_, rtol=1e-8)
    np.testing.assert_allclose(found.triangle.T @ found.triangle, _gram(X, weights), rtol=1e-8, atol=1e-8)


def _gram(X: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    w = np.ones(len(X)) if weights is None else weights
    away = X - np.average(X, axis=0, weights=w)
    return (away.T * w) @ away


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_penalties_of_each_target(task: Task, given: Callable[..., Data], dtype: Any) -> None:
    rows, targets = X.astype(dtype), Y.astype(dtype)
    penalties = np.array([0.5, 20.0])
    found = least_squares(task, given(rows, None, targets), True, penalties, 0.0, True, False)
    assert found.coef is not None
    theirs = sklearn.linear_model.Ridge(penalties).fit(rows.astype(np.float64), targets.astype(np.float64))
    np.testing.assert_allclose(found.coef.T, theirs.coef_, rtol=1e-4 if dtype == np.float32 else 1e-10)


def test_columns_that_depend_on_each_other_have_a_triangle(task: Task, given: Callable[..., Data]) -> None:
    rows = np.column_stack([X, X[:, 0] + X[:, 1]])
    found = least_squares(task, given(rows, None, Y), True, np.zeros(2), 1e-10, True, False)
    assert found.coef is None
    assert np.linalg.matrix_rank(found.triangle) == 5


@pytest.mark.parametrize("sharp", [False, True])
def test_sums_over_the_rows_of_folds(task: Task, given: Callable[..., Data], sharp: bool) -> None:
    folds, shift = RNG.integers(-1, 3, 300), np.concatenate([X.mean(axis=0), Y.mean(axis=0)])
    found = fold_sums(task, given(X, WEIGHTS, Y), folds, 3, shift, sharp)
    away = np.hstack([X, Y]) - shift
    for fold in range(3):
        some, w = away[folds == fold], WEIGHTS[folds == fold]
        assert (found["count"][fold], found["weight"][fold]) == (len(some), w.sum())
        np.testing.assert_allclose(found["total"][fold], w @ some, atol=1e-10)
        np.testing.assert_allclose(found["products"][fold], (some.T * w) @ some, atol=1e-9)


def test_ill_conditioned_float32_products_come_from_a_triangle(task: Task, given: Callable[..., Data]) -> None:
    rows = X.astype(np.float32)
    assert sharp_products(task, given(rows, None, Y.astype(np.float32)), True)[1] is False
    rows[:, 4] = rows[:, 0] * np.float32(1 + 1e-4) + np.float32(1e-4) * rows[:, 1]
    found, sharp = sharp_products(task, given(rows, None, Y.astype(np.float32)), True)
    assert sharp
    np.testing.assert_allclose(found.gram, _gram(rows.astype(np.float64), None), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exact", [False, True], ids=["products", "triangle"])
@pytest.mark.parametrize("predictions", [False, True])
def test_rows_that_are_left_out(task: Task, given: Callable[..., Data], predictions: bool, exact: bool) -> None:
    penalties = np.array([0.1, 7.0])
    facts, parts = leave_one_out(task, given(X, None, Y), True, penalties, predictions, exact)
    found = np.concatenate(list(parts)).reshape(300, 2, 2)  # targets, penalties
    for p, penalty in enumerate(penalties):
        whole = sklearn.linear_model.Ridge(penalty).fit(X, Y)
        np.testing.assert_allclose(facts["coef"][p], whole.coef_.T, rtol=1e-9)
        for row in (0, 123, 299):
            others = np.arange(300) != row
            predicted = sklearn.linear_model.Ridge(penalty).fit(X[others], Y[others]).predict(X[row : row + 1])[0]
            expected = predicted if predictions else (Y[row] - predicted) ** 2
            np.testing.assert_allclose(found[row, :, p], expected, rtol=1e-8)
    if not predictions:
        np.testing.assert_allclose(facts["squared"], found.sum(axis=0), rtol=1e-10)
    assert facts["exact"] is exact


def classes(k: int) -> np.ndarray:
    return np.digitize(Y[:, 0], np.quantile(Y[:, 0], np.arange(1, k) / k)).astype(np.float64)


@pytest.fixture
def objective(task: Task, given: Callable[..., Data]) -> Callable[..., Objective]:
    def make(k: int, strength: float) -> Objective:
        data = given(X, WEIGHTS, classes(k))
        assert data.targets is not None
        problem = Problem(task, data.rows, data.targets, Classes(k), True)
        return Objective(problem, strength, 0.0, None, lambda state: None)

    return make


def test_no_rank_is_asked_about_coefficients_that_are_nan(objective: Callable[..., Objective]) -> None:
    """After rows with NaN, scikit-learn's Newton solver goes on with them for ten thousands of evaluations."""
    found: Any = objective(2, 0.3)
    found.problem = SimpleNamespace()  # which answers nothing
    coef = np.full(6, np.nan)
    loss, gradient = found.loss_gradient(coef)
    again, product = found.gradient_hessian_product(coef)
    assert np.isnan([loss, *gradient, *again, *product(coef)]).all()


@pytest.mark.parametrize("k", [2, 4])
def test_losses_and_their_derivatives(objective: Callable[..., Objective], k: int) -> None:
    found, columns, codes = objective(k, 0.3), 1 if k == 2 else k, classes(k).astype(int)
    point = RNG.normal(size=columns * 6) / 10

    def mean_loss(point: np.ndarray) -> float:
        table = point.reshape(columns, 6, order="F")
        raw = X @ table[:, :5].T + table[:, 5]
        raw = np.hstack([np.zeros((300, 1)), raw]) if k == 2 else raw
        losses = np.log(np.exp(raw).sum(axis=1)) - raw[np.arange(300), codes]
        return float(WEIGHTS @ losses / WEIGHTS.sum() + 0.15 * np.square(table[:, :5]).sum())

    loss, gradient = found.loss_gradient(point)
    assert loss == pytest.approx(mean_loss(point))
    steps = 1e-6 * np.eye(len(point))
    slopes = [(mean_loss(point + step) - mean_loss(point - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, slopes, atol=1e-8)
    whole, empty = np.zeros((len(point), len(point))), np.zeros(len(point))
    _, hessian, flat = found.gradient_hessian(point, gradient_out=empty, hessian_out=whole)
    assert not flat
    bends = [(found.gradient(point + step) - found.gradient(point - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(hessian, bends, atol=1e-7)
    _, product = found.gradient_hessian_product(point)
    np.testing.assert_allclose(product(point), hessian @ point, atol=1e-10)


@pytest.mark.parametrize(("k", "solver"), [(2, "lbfgs"), (4, "lbfgs"), (4, "newton-cg"), (2, "newton-cholesky")])
def test_solvers_find_the_coefficients_of_scikit_learn(
    objective: Callable[..., Objective], k: int, solver: str
) -> None:
    strength = 1 / WEIGHTS.sum()  # C=1
    made = objective(k, strength)
    columns = made.problem.n_columns
    how = Minimisation(solver, None, True, 1.0, 1e-8, 1000, 0)
    found = solving.solve(made, how, np.zeros(columns * 6))
    theirs = sklearn.linear_model.LogisticRegression(tol=1e-8, max_iter=1000).fit(X, classes(k), WEIGHTS)
    table = found["coef"].reshape(columns, 6, order="F")
    np.testing.assert_allclose(table[:, :5], theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(table[:, 5], theirs.intercept_, atol=1e-3)
    assert found["converged"]
    assert [iteration for _, iteration, *_ in made.history] == list(range(1, found["n_iter"] + 1))


def test_sparse_rows_have_the_score_of_dense_ones(task: Task) -> None:
    stored = sparse.random(300, 5, density=0.3, format="csr", random_state=0)
    rows = SparseRows.upload(task.device, stored.data, stored.indices, stored.indptr, 5, WEIGHTS)
    coef, intercept = RNG.normal(size=(5, 2)), np.array([1.0, -2.0])
    found = sparse_score(task, rows, Rows.upload(task.device, Y), coef, intercept)
    residual = np.square(Y - stored @ coef - intercept)
    np.testing.assert_allclose(found["residual"], WEIGHTS @ residual, rtol=1e-12)
    away = np.square(Y - np.average(Y, axis=0, weights=WEIGHTS))
    np.testing.assert_allclose(found["squares"], WEIGHTS @ away, rtol=1e-12)
