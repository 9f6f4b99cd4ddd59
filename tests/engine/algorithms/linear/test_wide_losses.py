"""Newton's method of few rows on a rank alone; tests/linear_model/test_wide_models.py compares it with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.engine.algorithms.linear.losses import Classes
from xpulab.engine.algorithms.linear.objective import Objective
from xpulab.engine.algorithms.linear.wide_losses import WideProblem, wide_problem
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task

RNG = np.random.default_rng(0)
X, WEIGHTS = RNG.normal(size=(12, 30)), RNG.uniform(0.5, 2, 12)
X[5] = X[4]


def problem_of(task: Task, data: Data, n_classes: int, fit_intercept: bool) -> Problem:
    assert data.targets is not None
    return Problem(task, data.rows, data.targets, Classes(n_classes), fit_intercept)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_the_step_solves_the_equations_of_all_columns(
    task: Task, given: Callable[..., Data], n_classes: int, fit_intercept: bool, beside: bool
) -> None:
    data = given(X, WEIGHTS, np.arange(12.0) % n_classes)
    plain = problem_of(task, data, n_classes, fit_intercept)
    wide = wide_problem(plain)
    assert isinstance(wide, WideProblem)
    columns = plain.n_columns
    table = RNG.normal(size=(columns, 30 if beside else 12)) / 10
    table = table if beside else table @ X  # the coefficients are sums of rows
    point = np.column_stack([table, np.ones(columns)][: 1 + fit_intercept]).ravel(order="F")
    steps = []
    for problem in (plain, wide):
        objective = Objective(problem, 0.1, 0.0, None, lambda state: None)
        gradient = objective.gradient(point)
        if isinstance(problem, WideProblem):
            reduced = problem.reduced(objective, point, gradient)
            assert len(reduced.hessian) == columns * (11 + fit_intercept)  # of two equal rows, one counts
            assert bool(reduced.beside) == beside
            found = np.linalg.pinv(reduced.hessian, rcond=1e-12, hermitian=True) @ -reduced.gradient
            steps.append(problem.expanded(objective, reduced, found, gradient))
        else:
            hessian = np.empty((len(point), len(point)))
            objective.gradient_hessian(point, gradient_out=gradient, hessian_out=hessian)
            steps.append(np.linalg.pinv(hessian, rcond=1e-12, hermitian=True) @ -gradient)
    np.testing.assert_allclose(steps[1], steps[0], rtol=1e-8, atol=1e-10)


def test_as_many_rows_as_columns_have_an_equation_for_each_column(task: Task, given: Callable[..., Data]) -> None:
    assert wide_problem(problem_of(task, given(X[:, :12], None, np.arange(12.0) % 2), 2, True)) is None
    assert wide_problem(problem_of(task, given(X * 1e170, None, np.arange(12.0) % 2), 2, True)) is None
