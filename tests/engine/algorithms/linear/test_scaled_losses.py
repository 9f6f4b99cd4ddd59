"""Huber's objective on a rank alone: its derivatives, and fits of hard rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model

from xpulab.engine.algorithms.linear import huber, missed
from xpulab.engine.algorithms.linear.loss_problem import Problem
from xpulab.engine.algorithms.linear.losses import Robust
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.linear_models import Minimisation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 4))
Y = X @ [1.0, -2, 0.5, 0] + RNG.standard_t(1.5, 80) + 3
WEIGHTS = RNG.uniform(0.5, 2, 80)


def how(fit_intercept: bool, penalty: float = 0.02, max_iter: int = 1000) -> Minimisation:
    start = np.zeros(X.shape[1] + fit_intercept + 1)
    return Minimisation("scaled", start, fit_intercept, penalty, 1e-8, max_iter, 0)


def value(point: np.ndarray, epsilon: float, strength: float, fit_intercept: bool) -> float:
    coef, intercept, scale = point[:4], point[4] if fit_intercept else 0.0, point[-1]
    z = np.abs(Y - X @ coef - intercept) / scale
    losses = 1 + np.where(z < epsilon, z**2, 2 * epsilon * z - epsilon**2)
    return float(scale * (WEIGHTS @ losses) / WEIGHTS.sum() + 0.5 * strength * coef @ coef)


def changes(function: Callable[[np.ndarray], Any], point: np.ndarray, by: float = 1e-6) -> np.ndarray:
    """Return central differences for each number of a point."""
    return np.array([(function(point + step) - function(point - step)) / (2 * by) for step in by * np.eye(len(point))])


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_derivatives_are_those_of_the_objective(
    task: Task, given: Callable[..., Data], fit_intercept: bool
) -> None:
    data = given(X, WEIGHTS, Y)
    assert data.targets is not None
    problem = Problem(task, data.rows, data.targets, Robust(1.35), fit_intercept)
    objective = huber.ScaledObjective(problem, 0.1, 0.0, None, lambda state: None)
    objective.together(0)
    point = np.array([0.9, -1.8, 0.4, 0.1, *[2.9] * fit_intercept, 0.7])
    loss, gradient = objective.loss_gradient(point)
    assert loss == pytest.approx(value(point, 1.35, 0.1, fit_intercept))
    np.testing.assert_allclose(
        gradient, changes(lambda at: value(at, 1.35, 0.1, fit_intercept), point), rtol=1e-6, atol=1e-8
    )
    expected = changes(lambda at: objective.gradient(at), point)
    hessian, outliers = objective.hessian(point)
    np.testing.assert_allclose(hessian, expected, rtol=0.05, atol=0.02)  # a hundredth is added along some ways
    missed = np.abs(Y - X @ point[:4] - (point[4] if fit_intercept else 0.0))
    assert outliers == pytest.approx(WEIGHTS[missed > 1.35 * 0.7].sum() / WEIGHTS.sum())


@pytest.mark.parametrize("epsilon", [1.0, 1.05, 1.35, 3.0])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_fit_ends_below_that_of_scikit_learn(ask: Callable[..., Any], epsilon: float, fit_intercept: bool) -> None:
    theirs = sklearn.linear_model.HuberRegressor(
        epsilon=epsilon, alpha=0.01, fit_intercept=fit_intercept, tol=1e-9, max_iter=10_000
    )
    theirs.fit(X, Y, WEIGHTS)
    with Checkpoint.create(1 << 20) as kept:
        found, outliers = ask(
            "HuberRegressor.fit", X, shape=(80,), dtype=np.bool_, weights=WEIGHTS, targets=Y, epsilon=epsilon,
            solving=how(fit_intercept), checkpoint=kept.path,
        )  # fmt: skip
    assert missed.__name__.endswith("linear.missed")  # which has registered the task
    assert (found["rows"], found["converged"]) == (80, True)
    strength = 0.02 / WEIGHTS.sum()
    expected = np.array([*theirs.coef_, *[theirs.intercept_] * fit_intercept, theirs.scale_])
    least = value(expected, epsilon, strength, fit_intercept)
    assert value(found["coef"], epsilon, strength, fit_intercept) <= least * (1 + 1e-9)
    assert [number for _, number, *_ in found["history"]] == list(range(1, found["n_iter"] + 1))
    if epsilon > 1.1:
        np.testing.assert_allclose(found["coef"], expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(outliers, theirs.outliers_)


@pytest.mark.parametrize("max_iter", [1, 3, 5])
def test_a_fit_ends_with_the_last_iteration(ask: Callable[..., Any], max_iter: int) -> None:
    with Checkpoint.create(1 << 20) as kept:
        found, _ = ask(
            "HuberRegressor.fit", X, shape=(80,), dtype=np.bool_, targets=Y, epsilon=1.35,
            solving=how(True, max_iter=max_iter), checkpoint=kept.path,
        )  # fmt: skip
    assert (found["n_iter"], found["converged"], len(found["coef"])) == (max_iter, False, 6)
    assert len(found["history"]) == max_iter
