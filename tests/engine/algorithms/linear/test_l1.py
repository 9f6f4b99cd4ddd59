"""The l1 norm on a rank alone; tests/linear_model/test_penalties.py compares the estimators with scikit-learn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from xpulab.engine.algorithms.linear import l1
from xpulab.engine.algorithms.linear.loss_problem import Problem, SparseProblem
from xpulab.engine.algorithms.linear.losses import Classes
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.sharing.linear_models import Minimisation

RNG = np.random.default_rng(0)
X = np.hstack([RNG.normal(size=(60, 5)), np.ones((60, 1))])
X = np.hstack([X, X[:, :1] + X[:, 1:2]])  # a column that is constant, and one that is the sum of others


def objective_of(
    task: Task, data: Data, n_classes: int, fit_intercept: bool, strength: float, norm: float
) -> Objective:
    assert data.targets is not None
    problem = Problem(task, data.rows, data.targets, Classes(n_classes), fit_intercept)
    return Objective(problem, strength, norm, None, lambda state: None)


def how(fit_intercept: bool, max_iter: int = 1000) -> Minimisation:
    return Minimisation("", None, fit_intercept, 0.0, 1e-6, max_iter, 0)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("norm", [1e-4, 0.02, 10.0])
def test_both_solvers_end_at_the_optimum(
    task: Task, given: Callable[..., Data], n_classes: int, fit_intercept: bool, norm: float
) -> None:
    y = np.argsort(np.argsort(X[:, 0] + RNG.normal(size=60))) * n_classes // 60
    found = []
    for solver in (l1.minimised, functools.partial(l1.bounded, enough=1e-6)):
        objective = objective_of(task, given(X, None, y.astype(float)), n_classes, fit_intercept, 0.01, norm)
        start = RNG.normal(size=objective.problem.n_columns * (7 + fit_intercept))
        solution = solver(objective, how(fit_intercept), start)
        point = solution["coef"]
        assert solution["converged"]
        assert not solution["warnings"]
        assert np.abs(objective.slopes(point, objective.gradient(point))).max() <= 1e-6
        found.append(objective.loss(point) + objective.norm(point))
        assert point[: len(point) - objective.n_intercepts].any() == (norm < 10.0)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("solver", [l1.minimised, functools.partial(l1.bounded, enough=1e-6)])
def test_a_solver_without_time_says_so(task: Task, given: Callable[..., Data], solver: Callable[..., Any]) -> None:
    objective = objective_of(task, given(X, None, (X[:, 0] > 0).astype(float)), 2, True, 0.0, 1e-3)
    solution = solver(objective, how(True, 1), np.zeros(8))
    assert (solution["n_iter"], solution["converged"]) == (1, False)
    assert "did not converge" in solution["warnings"][0][1]


def test_a_step_that_is_too_long_is_shortened(task: Task, given: Callable[..., Data]) -> None:
    """Far from the optimum, the model of the logistic loss is flat, and its minimum is far behind that of the loss."""
    y = (X[:, 0] + RNG.normal(size=60) > 0).astype(float)
    objective = objective_of(task, given(X, None, y), 2, True, 0.0, 1e-3)
    losses = []
    ask = objective.problem.ask

    def noted(what: str, *points: np.ndarray) -> np.ndarray:
        found = ask(what, *points)
        if what == "loss":
            losses.append(float(found[-1]) / 60 + objective.norm(points[0]))
        return found

    objective.problem.ask = noted  # type: ignore[method-assign]
    solution = l1.minimised(objective, how(True), np.array([8.0, -8, 8, -8, 8, 0, 0, 3]))
    assert solution["converged"]
    assert len(losses) > solution["n_iter"] + 1  # some steps were tried twice or more
    assert losses[-1] < losses[0]


def test_rows_that_are_no_numbers_end_the_solver(task: Task, given: Callable[..., Data]) -> None:
    rows = X.copy()
    rows[3, 2] = np.nan
    objective = objective_of(task, given(rows, None, (X[:, 0] > 0).astype(float)), 2, True, 0.0, 1e-3)
    solution = l1.minimised(objective, how(True), np.zeros(8))
    assert not solution["converged"]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_of_many_columns_some_are_looked_at(task: Task, given: Callable[..., Data], sparse: bool, begun: bool) -> None:
    """If too many coefficients of the start are not zero, L-BFGS-B goes on."""
    rows = np.random.default_rng(1).normal(size=(60, 1200))
    rows[np.abs(rows) < 0.5] = 0
    data = given(rows, None, np.arange(60.0) % 3)
    assert data.targets is not None
    loss = Classes(3)
    if sparse:
        stored = csr_matrix(rows)
        held = SparseRows.upload(task.device, stored.data, stored.indices, stored.indptr, 1200)
        problem: Problem = SparseProblem(task, held, data.targets, loss, True)
    else:
        problem = Problem(task, data.rows, data.targets, loss, True)
    asked = []
    ask = problem.ask

    def noted(what: str, *points: np.ndarray) -> np.ndarray:
        asked.append((what, [len(each) for each in points[1:]]))
        return ask(what, *points)

    problem.ask = noted  # type: ignore[method-assign]
    objective = Objective(problem, 0.0, 0.05, None, lambda state: None)
    start = np.full(3603, 1e-3) if begun else np.zeros(3603)
    solution = l1.minimised(objective, how(True, 5000), start)
    point = solution["coef"]
    assert solution["converged"]
    assert np.abs(objective.slopes(point, objective.gradient(point))).max() <= 1e-6
    assert (point[:3600] == 0).mean() > 0.9
    chosen = [columns[0] for what, columns in asked if what == "hessian"]
    assert chosen == [] if begun else 0 < max(chosen) <= 200


def test_a_norm_that_is_weak_beside_the_coefficients(task: Task, given: Callable[..., Data]) -> None:
    """Each step ends where its model is smallest, also where the norm hardly changes the coefficients."""
    rows = RNG.normal(size=(200, 6)) * [1, 1, 1, 1, 1, 0.01]
    y = (rows @ [2.0, -1, 0, 1, 0.5, 30] + RNG.logistic(size=200) > 0).astype(float)
    objective = objective_of(task, given(rows, None, y), 2, True, 0.0, 1e-5)
    solution = l1.newton(objective, how(True), np.zeros(7), 1e-12)
    assert solution["converged"]
    assert solution["n_iter"] < 15
    assert np.abs(objective.slopes(solution["coef"], objective.gradient(solution["coef"]))).max() <= 1e-12
