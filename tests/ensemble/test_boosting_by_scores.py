"""Early stopping of boosting by scorers: scores and number of trees are those of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.ensemble
from numpy.testing import assert_allclose
from sklearn.metrics import make_scorer, mean_absolute_error

import xpulab
from xpulab.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 4)).astype(np.float32)
T = X[:, 0] ** 2 + X[:, 1] + RNG.normal(size=900)
LABELS = np.array(["a", "b", "c"])[np.digitize(T, [0.5, 2.0])]
WEIGHTS = RNG.random(900)
STOPS: dict[str, Any] = {"early_stopping": True, "max_iter": 12, "n_iter_no_change": 3, "random_state": 0}


def own(estimator: Any, rows: Any, y: Any) -> float:
    """A scorer of the user's."""
    return -float(np.abs(estimator.predict(rows) - y).max())


def refuses(estimator: Any, rows: Any, y: Any) -> float:
    raise ValueError("this scorer refuses")


@pytest.mark.parametrize("fraction", [0.2, None])
@pytest.mark.parametrize(
    ("kind", "scoring", "weights"),
    [
        ("Regressor", "r2", WEIGHTS),
        ("Regressor", None, None),
        ("Regressor", make_scorer(mean_absolute_error, greater_is_better=False), None),
        ("Regressor", own, None),
        ("Classifier", "accuracy", WEIGHTS),
        ("Classifier", "roc_auc_ovr", None),
        ("Binary", "roc_auc", None),
        ("Binary", "neg_log_loss", WEIGHTS),
    ],
)
def test_scores_are_those_of_scikit_learn(
    current: xpulab.XPUCluster, kind: str, scoring: Any, weights: Any, fraction: float | None
) -> None:
    y = {"Regressor": T, "Classifier": LABELS, "Binary": LABELS == "a"}[kind]
    ours = HistGradientBoostingRegressor if kind == "Regressor" else HistGradientBoostingClassifier
    theirs = getattr(sklearn.ensemble, ours.__name__)
    given = STOPS | {"scoring": scoring, "validation_fraction": fraction}
    found, expected = (each(**given).fit(X, y, sample_weight=weights) for each in (ours, theirs))
    assert found.n_iter_ == expected.n_iter_
    # The sums of a tree's values are the same to rounding, which decides the order of ties for the area under a curve.
    tolerance = 1e-3 if "roc" in str(scoring) else 1e-6
    assert_allclose(found.train_score_, expected.train_score_, rtol=tolerance)
    assert_allclose(found.validation_score_, expected.validation_score_, rtol=tolerance)


def test_of_many_rows_some_are_scored(on_pair: xpulab.XPUCluster) -> None:
    rows = RNG.normal(size=(13_000, 2))
    y, given = rows[:, 0] > 0, STOPS | {"scoring": "accuracy", "max_iter": 3}
    found, expected = (
        each(**given).fit(rows, y)
        for each in (HistGradientBoostingClassifier, sklearn.ensemble.HistGradientBoostingClassifier)
    )
    assert_allclose(found.train_score_, expected.train_score_, rtol=1e-12)
    assert_allclose(found.validation_score_, expected.validation_score_, rtol=1e-12)


def test_given_rows_and_a_fit_that_goes_on(on_pair: xpulab.XPUCluster) -> None:
    given = STOPS | {"scoring": "r2", "n_iter_no_change": 50}
    whole = HistGradientBoostingRegressor(**given).fit(X, T, X_val=X[:100], y_val=T[:100])
    part = HistGradientBoostingRegressor(**given | {"max_iter": 5, "warm_start": True})
    part.fit(X, T, X_val=X[:100], y_val=T[:100])
    part.set_params(max_iter=12).fit(X, T, X_val=X[:100], y_val=T[:100])
    assert_allclose(part.validation_score_, whole.validation_score_, rtol=1e-9)
    assert_allclose(whole.validation_score_[-1], whole.score(X[:100], T[:100]), rtol=1e-9)


def test_an_error_of_a_scorer_ends_the_fit(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises((ValueError, EngineError), match="this scorer refuses"):
        HistGradientBoostingRegressor(**STOPS, scoring=refuses).fit(X, T)
    assert HistGradientBoostingRegressor(max_iter=2).fit(X, T).n_iter_ == 2
