"""Losses with kinks, and their squares, on one rank: the tasks find the least objective, however small `tol` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.svm

from xpulab.engine.algorithms.linear import kinks, missed
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.linear_models import Coding, DistanceLoss, MarginLoss, Minimisation

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
CODES = (X @ [1.0, -1, 0.5] + RNG.logistic(size=200) > 0).astype(np.float64)
WEIGHTS = RNG.uniform(0.5, 2, 200)
TWO = Coding(None, None, 2)


def how(loss: Any, tol: float = 1e-4, max_iter: int = 1000) -> Minimisation:
    return Minimisation("squares" if loss.squared else "kinks", np.zeros(4), True, 1.0, tol, max_iter, 0)


def objective(found: Any, X: np.ndarray, missed: Callable[[np.ndarray], np.ndarray], weights: np.ndarray) -> float:
    coef = found["coef"]
    return float(0.5 * coef @ coef + weights @ np.maximum(missed(X @ coef[:-1] + coef[-1]), 0))


def test_the_module_has_registered_its_tasks(ask: Callable[..., Any]) -> None:
    assert len({kinks.__name__, missed.__name__}) == 2
    exact: dict[str, Any] = {"tol": 1e-10, "max_iter": 1_000_000}
    machine = sklearn.svm.LinearSVC(loss="hinge", **exact).fit(X, CODES, WEIGHTS)
    loss = MarginLoss(False, TWO, 1.0)
    sent = {"weights": WEIGHTS, "targets": CODES, "loss": loss}
    with Checkpoint.create(1 << 20) as kept:
        found = ask("LinearSVC.fit", X, **sent, solving=how(loss), checkpoint=kept.path)
    assert (found["rows"], found["converged"]) == (200, True)
    np.testing.assert_allclose(found["coef"], [*machine.coef_[0], machine.intercept_[0]], atol=1e-5)
    squares = sklearn.svm.LinearSVR(loss="squared_epsilon_insensitive", epsilon=0.1, **exact).fit(X, CODES, WEIGHTS)
    distance = DistanceLoss(True, 1.0, 0.1)
    with Checkpoint.create(1 << 20) as kept:
        found = ask(
            "LinearSVR.fit", X, weights=WEIGHTS, targets=CODES, loss=distance, solving=how(distance, 1e-10),
            checkpoint=kept.path,
        )  # fmt: skip
    np.testing.assert_allclose(found["coef"], [*squares.coef_, squares.intercept_[0]], rtol=1e-8)


@pytest.mark.parametrize("tol", [1e-4, 1e-8, 1e-12, 0.0])
def test_rows_on_the_margin_have_the_same_end(ask: Callable[..., Any], tol: float) -> None:
    """Of few rows, each several times, three are on the margin, and decide."""
    few, weights = np.repeat([[1.0, 3], [2, 1], [3, 3], [4, 1]], 4, axis=0), np.ones(16)
    codes, loss = np.repeat([0.0, 1, 0, 1], 4), MarginLoss(False, TWO, 1.0)
    solving = Minimisation("kinks", np.zeros(3), True, 1.0, tol, 1000, 0)
    with Checkpoint.create(1 << 20) as kept:
        found = ask(
            "LinearSVC.fit", few, weights=weights, targets=codes, loss=loss, solving=solving,
            checkpoint=kept.path,
        )  # fmt: skip
    np.testing.assert_allclose(found["coef"], np.array([10, -19, 13]) / 14, rtol=1e-9)
    assert found["converged"]
    assert found["n_iter"] < 100
    assert [number for _, number, *_ in found["history"]] == list(range(1, found["n_iter"] + 1))


@pytest.mark.parametrize("max_iter", [1, 3, 7])
def test_a_fit_ends_with_the_last_iteration(ask: Callable[..., Any], max_iter: int) -> None:
    loss = DistanceLoss(False, 1.0, 0.0)
    with Checkpoint.create(1 << 20) as kept:
        found = ask(
            "LinearSVR.fit", X, targets=CODES, loss=loss, solving=how(loss, max_iter=max_iter), checkpoint=kept.path
        )
    assert (found["n_iter"], found["converged"]) == (max_iter, False)
    assert len(found["history"]) == max_iter
    start, end = (
        objective({"coef": c}, X, lambda raw: np.abs(CODES - raw), np.ones(200)) for c in (np.zeros(4), found["coef"])
    )
    assert end < start or max_iter == 1  # of the first limit, the loss is far from what is missed


@pytest.mark.parametrize("norm", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize("quantile", [0.1, 0.5])
def test_a_quantile_has_the_objective_of_the_linear_program(
    ask: Callable[..., Any], quantile: float, norm: float
) -> None:
    """The targets are far from zero, so that no row is within a small limit at the start."""
    targets = X @ [1.0, -1, 0.5] + RNG.standard_t(2, 200) + 100
    theirs = sklearn.linear_model.QuantileRegressor(quantile=quantile, alpha=norm).fit(X, targets, WEIGHTS)
    solving = Minimisation("kinks", np.zeros(4), True, 0.0, 1e-9, 1000, 0, norm)
    with Checkpoint.create(1 << 20) as kept:
        found = ask(
            "QuantileRegressor.fit", X, weights=WEIGHTS, targets=targets, solving=solving, checkpoint=kept.path,
            loss=DistanceLoss(False, 0.0, 0.0, quantile, 1 - quantile),
        )  # fmt: skip
    assert found["converged"]
    np.testing.assert_allclose(found["coef"], [*theirs.coef_, theirs.intercept_], rtol=1e-6, atol=1e-8)
