"""Gradient boosting equals scikit-learn's, and is the same for any number of engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sent import nothing_sent

import xpulab
from xpulab.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 5))
X[:, 3] = np.rint(X[:, 3])
T = X[:, 0] * X[:, 1] + X[:, 2] + 0.3 * RNG.normal(size=600)
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
WEIGHTS = RNG.integers(0, 4, 600).astype(float)
LABELS = np.digitize(T, [-0.5, 0.5])


def both(kind: str, X: np.ndarray, y: Any, weights: Any = None, **parameters: Any) -> tuple[Any, Any]:
    """Return ours and scikit-learn's, fitted with the same arguments."""
    given: dict[str, Any] = {"max_iter": 12, "random_state": 3} | parameters
    ours = {"c": HistGradientBoostingClassifier, "r": HistGradientBoostingRegressor}[kind](**given)
    return ours.fit(X, y, weights), ours.unfitted_sklearn().fit(X, y, weights)


def assert_same(ours: Any, theirs: Any, rows: np.ndarray) -> None:
    """Check that all trees give the same predictions."""
    assert ours.n_iter_ == theirs.n_iter_
    staged = "staged_decision_function" if hasattr(ours, "classes_") else "staged_predict"
    found, expected = (np.array(list(getattr(each, staged)(rows))) for each in (ours, theirs))
    assert_allclose(found, expected, 1e-5, 1e-6)


CASES: dict[str, tuple[str, np.ndarray, Any, Any, dict[str, Any]]] = {
    "squared": ("r", X, T, None, {}),
    "missing": ("r", HOLES, T, WEIGHTS, {"max_leaf_nodes": 9, "l2_regularization": 0.5}),
    "absolute": ("r", X, T, None, {"loss": "absolute_error"}),
    "quantile": ("r", X, T, WEIGHTS, {"loss": "quantile", "quantile": 0.7, "max_depth": 3}),
    "poisson": ("r", X, np.exp(T), None, {"loss": "poisson", "max_features": 0.5}),
    "gamma": ("r", X, np.exp(T / 3), WEIGHTS, {"loss": "gamma", "max_bins": 31, "min_samples_leaf": 5}),
    "binary": ("c", HOLES, T > 0, None, {"early_stopping": True, "n_iter_no_change": 3}),
    "classes": ("c", X, LABELS, WEIGHTS, {"class_weight": "balanced"}),
    "constraints": ("r", HOLES, T, None, {"monotonic_cst": [1, 0, 1, -1, 0], "interaction_cst": [[0, 1], [1, 2, 3]]}),
    "no split": ("c", X, T > 0, None, {"early_stopping": True, "validation_fraction": None, "max_leaf_nodes": None}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_trees_are_those_of_scikit_learn(on_pair: xpulab.XPUCluster, name: str) -> None:
    kind, rows, y, weights, parameters = CASES[name]
    ours, theirs = both(kind, rows, y, weights, **parameters)
    assert_same(ours, theirs, rows)
    assert_allclose(ours.train_score_, theirs.train_score_, 1e-6)
    assert_allclose(ours.validation_score_, theirs.validation_score_, 1e-6)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(theirs, method):
            assert_allclose(getattr(ours, method)(HOLES), getattr(theirs, method)(HOLES), 1e-5, 1e-7)
            assert_array_equal(getattr(ours, method)(HOLES), getattr(ours.to_sklearn(), method)(HOLES))
    assert len(ours.report_.iterations) == ours.n_iter_
    assert ours.do_early_stopping_ or ours.report_.status == "finished"  # all trees were asked for


@pytest.fixture(scope="module")
def reference(pair: xpulab.XPUCluster) -> dict[str, Any]:
    """What two engines fit."""
    pair.activate()
    return {
        "classes": HistGradientBoostingClassifier(max_iter=5, early_stopping=True, random_state=1).fit(HOLES, LABELS),
        "median": HistGradientBoostingRegressor("absolute_error", max_iter=3).fit(X, T, WEIGHTS),
    }


def test_the_same_for_any_number_of_engines(current: xpulab.XPUCluster, reference: dict[str, Any]) -> None:
    counts = [600 - 5 * (current.size - 1)] + [5] * (current.size - 1)
    empty = [0] * (current.size - 1) + [600]
    rows: Any
    for rows in (HOLES, *(current.scatter(HOLES, counts=each, allow_nan=True) for each in (counts, empty))):
        expected = reference["classes"]
        found = HistGradientBoostingClassifier(max_iter=5, early_stopping=True, random_state=1).fit(rows, LABELS)
        assert_array_equal(found.validation_score_, expected.validation_score_)
        assert_array_equal(found.decision_function(rows), expected.to_sklearn().decision_function(HOLES))
    found = HistGradientBoostingRegressor("absolute_error", max_iter=3).fit(
        current.scatter(X), current.scatter(T), WEIGHTS
    )
    assert_array_equal(found.predict(X), reference["median"].to_sklearn().predict(X))


def test_a_warm_start_goes_on(on_pair: xpulab.XPUCluster) -> None:
    given: dict[str, Any] = {"early_stopping": True, "max_features": 0.6, "random_state": 0}
    whole = HistGradientBoostingRegressor(max_iter=9, **given).fit(X, T)
    parts = HistGradientBoostingRegressor(max_iter=4, warm_start=True, **given).fit(X, T)
    parts.set_params(max_iter=9).fit(X, T)
    assert_same(parts, whole, X)
    assert_array_equal(parts.train_score_, whole.train_score_)


def test_rows_for_validation(on_pair: xpulab.XPUCluster) -> None:
    parameters: dict[str, Any] = {"max_iter": 40, "n_iter_no_change": 2, "early_stopping": True}
    ours = HistGradientBoostingClassifier(**parameters)
    theirs = ours.unfitted_sklearn()
    for each in (ours, theirs):
        each.fit(X[:400], LABELS[:400], X_val=X[400:], y_val=LABELS[400:], sample_weight_val=WEIGHTS[400:])
    assert ours.n_iter_ < 40
    assert_same(ours, theirs, X)
    assert_allclose(ours.validation_score_, theirs.validation_score_, 1e-6)


def test_bins_of_more_rows_are_those_that_scikit_learn_draws(on_pair: xpulab.XPUCluster) -> None:
    some = np.random.default_rng(0).normal(size=(200_001, 2)).astype(np.float32)
    ours, theirs = both("r", some, some.sum(axis=1), max_iter=1, max_leaf_nodes=4, early_stopping=False)
    assert_same(ours, theirs, some[:1000])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"categorical_features": [0]}, "categorical_features was given"),
        ({"scoring": "r2", "early_stopping": True}, "scoring='r2' was given"),
    ],
)
def test_what_is_refused(on_pair: xpulab.XPUCluster, given: dict[str, Any], said: str) -> None:
    with nothing_sent(on_pair), pytest.raises(ValueError, match=said):
        HistGradientBoostingRegressor(**given).fit(X, T)


def test_infinite_numbers_are_those_of_scikit_learn(on_pair: xpulab.XPUCluster) -> None:
    rows = HOLES.copy()
    rows[::7, 3], rows[::11, 3] = np.inf, -np.inf
    assert_same(*both("r", rows, T), rows)
