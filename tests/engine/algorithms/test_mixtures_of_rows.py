"""The EM algorithm on one rank, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from xpulab.engine.algorithms.mixture import SHARES, Given, Outcome, Problem, fit
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task

RNG = np.random.default_rng(0)
X = np.vstack([RNG.normal(size=(200, 2)) @ RNG.normal(size=(2, 2)) + middle for middle in ([0, 0], [6, 1], [2, 7])])
KINDS = ["full", "tied", "diag", "spherical"]


def begun(kind: str) -> tuple[Any, Given]:
    """Return a mixture of scikit-learn's after one step, and the parameters from which the next step goes on."""
    model = GaussianMixture(3, covariance_type=kind, means_init=X[[5, 205, 405]], max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    return model, Given(model.weights_, model.means_, model.covariances_, model.precisions_cholesky_)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_scikit_learn(task: Task, given: Callable[..., Data], kind: str) -> None:
    model, first = begun(kind)
    problem = Problem(task, given(X), kind, 1e-6)
    parameters = first.whole()
    assert parameters is not None
    found, lower_bound, cancelled = problem.step(parameters)
    assert lower_bound == pytest.approx(model.score(X))
    assert not cancelled
    shares = model.predict_proba(X)
    np.testing.assert_allclose(found.weights, shares.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(found.means, (shares.T @ X) / shares.sum(axis=0)[:, None], rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_from_given_parameters_is_that_of_scikit_learn(task: Task, given: Callable[..., Data], kind: str) -> None:
    model, first = begun(kind)
    found = fit(
        Problem(task, given(X), kind, 1e-6), "kmeans", 3, 1, 100, 1e-6, first, -np.inf, np.random.RandomState(0)
    )
    model.set_params(warm_start=True, max_iter=100, tol=1e-6).fit(X)
    np.testing.assert_allclose(found.parameters.means, model.means_, rtol=1e-5)
    np.testing.assert_allclose(found.parameters.covariances, model.covariances_, rtol=1e-3)
    assert found.converged
    assert (np.diff(found.lower_bounds) > -1e-12).all()
    assert found.lower_bound == found.lower_bounds[-1] == pytest.approx(model.score(X), abs=1e-5)


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random", "random_from_data"])
def test_every_start_finds_a_fit(task: Task, given: Callable[..., Data], init_params: str) -> None:
    problem = Problem(task, given(X), "diag", 1e-6)
    random = np.random.RandomState(0)
    found = fit(problem, init_params, 3, 1, 200, 1e-4, Given(), -np.inf, random)
    assert found.converged
    assert found.parameters.weights.sum() == pytest.approx(1)
    if init_params != "random":  # from which all components begin in the middle
        means = found.parameters.means[np.argsort(found.parameters.means[:, 0])]
        np.testing.assert_allclose(means, [[0, 0], [2, 7], [6, 1]], atol=0.4)


def test_shares_are_summed_in_parts(task: Task, given: Callable[..., Data]) -> None:
    shares, centers = RNG.dirichlet(np.ones(3), 600), X[[5, 205, 405]]
    assert len(X) < SHARES
    found = Problem(task, given(X), "full", 0.0).of_shares(iter([shares]), centers)
    away = X[None] - centers[:, None]
    np.testing.assert_allclose(found.weight, shares.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.first, np.einsum("nk,kni->ki", shares, away), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.second, np.einsum("nk,kni,knj->kij", shares, away, away), rtol=1e-9, atol=1e-9)


def test_a_stopped_fit_goes_on_from_its_state(task: Task, given: Callable[..., Data]) -> None:
    _, first = begun("full")

    def fitted(resume: Any = None) -> Outcome:
        problem, random = Problem(task, given(X), "full", 1e-6), np.random.RandomState(0)
        return fit(problem, "kmeans", 3, 1, 20, 0.0, first, -np.inf, random, resume)

    whole = fitted()
    task.engine.board.cancel(task.number)
    with pytest.raises(Interrupted) as stopped:
        fitted()
    task.engine.board.forget(task.number)
    state: Any = stopped.value.result["state"]
    assert state["iteration"] == 1
    found = fitted(state)
    assert found.lower_bounds == whole.lower_bounds
    again = Outcome.unpacked(found.packed())
    np.testing.assert_array_equal(again.parameters.covariances, found.parameters.covariances)
    assert (again.lower_bounds, again.converged) == (found.lower_bounds, found.converged)
