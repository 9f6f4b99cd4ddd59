"""The tasks of logistic regression and of generalised linear models on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model

from xpulab.engine.algorithms.linear import generalized, logistic, logistic_paths
from xpulab.engine.algorithms.linear.losses import probabilities
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.linear_models import Coding, Distribution, Minimisation, Paths

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
WEIGHTS = RNG.uniform(0.5, 2, 200)
COUNTS = RNG.poisson(np.exp(X @ [0.3, -0.2, 0.1])).astype(np.float64)
POISSON = Distribution(1.0, "log", "HalfPoissonLoss")
HOW = Minimisation("newton-cholesky", None, True, 0.1, 1e-8, 100, 0)


def test_the_modules_have_registered_their_tasks(ask: Callable[..., Any]) -> None:
    assert len({generalized.__name__, logistic.__name__, logistic_paths.__name__}) == 3
    model = sklearn.linear_model.PoissonRegressor(alpha=0.1, tol=1e-8, solver="newton-cholesky")
    model.fit(X, COUNTS, WEIGHTS)
    sent = {"weights": WEIGHTS, "targets": COUNTS, "distribution": POISSON}
    with Checkpoint.create(1 << 20) as kept:
        found = ask("GeneralizedLinear.fit", X, **sent, solving=HOW, checkpoint=kept.path)
    assert (found["rows"], found["converged"], found["n_iter"]) == (200, True, model.n_iter_)
    np.testing.assert_allclose(found["coef"], [*model.coef_, model.intercept_], rtol=1e-9)
    line = {"coef": model.coef_[:, None], "intercept": np.array([model.intercept_])}
    sums = ask("GeneralizedLinear.score", X, **sent, **line)
    assert 1 - sums["own"] / sums["null"] == pytest.approx(model.score(X, COUNTS, WEIGHTS))
    _, means = ask("GeneralizedLinear.predict", X, shape=(200,), distribution=POISSON, **line)
    np.testing.assert_allclose(means, model.predict(X))


@pytest.mark.parametrize("lowest", [-1.0, 0.0])
def test_targets_are_looked_at_where_they_are(ask: Callable[..., Any], lowest: float) -> None:
    targets = np.where(np.arange(200) == 100, lowest, COUNTS + 1)
    with pytest.raises(ValueError, match=rf"valid range of the loss 'HalfGammaLoss': the lowest is {lowest:g}\."):
        ask(
            "GeneralizedLinear.fit", X, targets=targets, distribution=Distribution(2.0, "log", "HalfGammaLoss"),
            solving=HOW, checkpoint="",
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["decision", "label", "proba", "log_proba"])
def test_predictions_of_classes(ask: Callable[..., Any], kind: str) -> None:
    coef, intercept = RNG.normal(size=(4, 3)), RNG.normal(size=4)
    decision = X @ coef.T + intercept
    shares = probabilities(decision)
    expected = {
        "decision": decision, "label": decision.argmax(axis=1), "proba": shares, "log_proba": np.log(shares),
    }[kind]  # fmt: skip
    asked = {"coef": coef, "intercept": intercept, "kind": kind}
    answer, found = ask("LogisticRegression.predict", X, shape=expected.shape, dtype=expected.dtype, **asked)
    assert answer == {"rows": 200}
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("refit", [None, True, (0, 0)])
def test_fits_of_folds_and_a_state_from_which_they_go_on(ask: Callable[..., Any], refit: Any) -> None:
    codes, folds = (COUNTS > 1).astype(np.float64), np.arange(200, dtype=np.int32) % 2
    fits = [[replace(HOW, start=np.zeros(4), penalty=penalty) for penalty in (10.0, 0.5)]]
    sent = {"weights": WEIGHTS, "targets": codes, "coding": Coding(None, None, 2)}
    sent["paths"] = Paths([(folds, 2)], [(0, -1, 0), (0, -1, 1)], fits, refit)
    with Checkpoint.create(1 << 20) as kept:
        whole = ask("LogisticRegression.paths", X, **sent, checkpoint=kept.path)
        state = whole["state"]
        half = state | {"coefs": state["coefs"][:3], "scores": state["scores"][:3], "told": state["told"][:3]}
        rest = ask("LogisticRegression.paths", X, **sent, checkpoint=kept.path, resume=half)
    assert [each[:2] for each in whole["history"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [each[:2] for each in rest["history"]] == [(2, 2)]
    np.testing.assert_array_equal(rest["state"]["coefs"], state["coefs"])
    right = []
    for number, (train, test) in enumerate([(folds == 1, folds == 0), (folds == 0, folds == 1)]):
        model = sklearn.linear_model.LogisticRegression(C=0.1, tol=1e-8).fit(X[train], codes[train], WEIGHTS[train])
        np.testing.assert_allclose(state["coefs"][2 * number], [*model.coef_[0], *model.intercept_], atol=1e-6)
        right.append(model.score(X[test], codes[test], WEIGHTS[test]))
    np.testing.assert_allclose(state["scores"][::2, 0] / state["scores"][::2, 1], right)
    if refit is None:
        assert "converged" not in whole
        return
    assert whole["converged"]
    assert whole["chosen"] == (
        refit if refit is not True else Paths.best_of(np.divide(*state["scores"].T).reshape(2, 1, 2))
    )
    best = 1 / fits[0][whole["chosen"][1]].penalty
    model = sklearn.linear_model.LogisticRegression(C=best, tol=1e-8).fit(X, codes, WEIGHTS)
    np.testing.assert_allclose(whole["refitted"]["coef"], [*model.coef_[0], *model.intercept_], atol=1e-6)
    np.testing.assert_array_equal(rest["refitted"]["coef"], whole["refitted"]["coef"])
