"""Gradient boosting equals scikit-learn's, and is the same for any number of engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
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
KINDS = np.array([None if np.isnan(value) else f"kind {value:.0f}" for value in HOLES[:, 3]], object)
TABLE = pd.DataFrame({"a": X[:, 0], "kind": pd.Categorical(KINDS), "b": X[:, 1], "c": X[:, 2]})
OTHERS = TABLE.assign(kind=pd.Categorical(np.where(np.arange(600) % 5, KINDS, "a new kind")))  # and none is the same


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
    "categories": ("r", HOLES, T, WEIGHTS, {"categorical_features": [3], "monotonic_cst": [1, 0, -1, 0, 0]}),
    "drawn columns": (
        "c",
        HOLES,
        LABELS,
        None,
        {"categorical_features": [False, False, False, True, False], "max_features": 0.5},
    ),
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
        "categories": HistGradientBoostingRegressor(categorical_features=[3], max_iter=5).fit(HOLES, T),
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
        found = HistGradientBoostingRegressor(categorical_features=[3], max_iter=5).fit(rows, T)
        assert_array_equal(found.predict(rows), reference["categories"].to_sklearn().predict(HOLES))
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
        ({"categorical_features": ["a"]}, "without feature names"),
        ({"categorical_features": [0], "monotonic_cst": [1, 0, 0, 0, 0]}, "cannot have monotonic constraints"),
        ({"scoring": "no such", "early_stopping": True}, "no such"),
    ],
)
def test_what_is_refused(on_pair: xpulab.XPUCluster, given: dict[str, Any], said: str) -> None:
    with nothing_sent(on_pair), pytest.raises(ValueError, match=said):
        HistGradientBoostingRegressor(**given).fit(X, T)


def test_infinite_numbers_are_those_of_scikit_learn(on_pair: xpulab.XPUCluster) -> None:
    rows = HOLES.copy()
    rows[::7, 3], rows[::11, 3] = np.inf, -np.inf
    assert_same(*both("r", rows, T), rows)


@pytest.fixture(scope="module")
def theirs_of_table() -> Any:
    """scikit-learn's model of a table with a column of categories."""
    return HistGradientBoostingClassifier(max_iter=8, random_state=0).unfitted_sklearn().fit(TABLE, LABELS)


@pytest.mark.parametrize("kind", ["frame", "handle", "scan"])
def test_categories_of_tables(on_pair: xpulab.XPUCluster, theirs_of_table: Any, kind: str) -> None:
    rows = {
        "frame": lambda: TABLE,
        "handle": lambda: on_pair.scatter(TABLE, allow_nan=True),
        "scan": lambda: xpulab.scan(TABLE),
    }[kind]()
    ours = HistGradientBoostingClassifier(max_iter=8, random_state=0).fit(rows, LABELS)
    assert ours.is_categorical_ is not None
    assert_array_equal(ours.is_categorical_, theirs_of_table.is_categorical_)
    for each in (TABLE, OTHERS, OTHERS[:3]):
        expected = theirs_of_table.predict_proba(each)
        assert_allclose(ours.predict_proba(each), expected, 1e-6)
        assert_array_equal(ours.to_sklearn().predict_proba(each), ours.predict_proba(each))
    assert_array_equal(ours.predict(rows), ours.predict(TABLE))


def test_a_fit_with_categories_goes_on_and_looks_at_others(on_pair: xpulab.XPUCluster) -> None:
    given: dict[str, Any] = {"categorical_features": ["kind"], "random_state": 0}
    ours = HistGradientBoostingClassifier(max_iter=40, early_stopping=True, n_iter_no_change=3, **given)
    theirs = ours.unfitted_sklearn()
    for each in (ours, theirs):
        each.fit(TABLE[:400], LABELS[:400], X_val=OTHERS[400:], y_val=LABELS[400:])
    assert_allclose(ours.validation_score_, theirs.validation_score_, 1e-6)
    whole = HistGradientBoostingClassifier(max_iter=6, **given).fit(TABLE, LABELS)
    parts = HistGradientBoostingClassifier(max_iter=3, warm_start=True, **given).fit(TABLE, LABELS)
    parts.set_params(max_iter=6).fit(on_pair.scatter(TABLE, allow_nan=True), LABELS)
    assert_array_equal(parts.predict_proba(TABLE), whole.predict_proba(TABLE))
    # The trees of the first fit have the numbers of its categories, although the column has others now.
    parts.set_params(max_iter=7).fit(OTHERS, LABELS)
    assert_array_equal(parts.predict_proba(TABLE)[:1], parts.to_sklearn().predict_proba(TABLE)[:1])
    assert "a new kind" not in parts._preprocessor.named_transformers_["encoder"].categories_[0]


@pytest.mark.parametrize(("first", "then"), [(None, [3]), ([3], None), ([3], [0, 3])])
def test_a_fit_goes_on_with_the_same_columns_of_categories(on_pair: xpulab.XPUCluster, first: Any, then: Any) -> None:
    rows = np.abs(np.rint(HOLES))
    ours = HistGradientBoostingRegressor(max_iter=2, warm_start=True, categorical_features=first).fit(rows, T)
    expected = ours.predict(rows)
    ours.set_params(max_iter=3, categorical_features=then)
    with nothing_sent(on_pair), pytest.raises(ValueError, match="or set warm_start=False to begin anew"):
        ours.fit(rows, T)
    assert_array_equal(ours.predict(rows), expected)


def test_a_column_of_missing_strings_has_no_category(on_pair: xpulab.XPUCluster) -> None:
    table = TABLE.assign(kind=pd.Categorical([None] * 600, ["a kind"]))
    given: dict[str, Any] = {"max_iter": 3, "early_stopping": True, "categorical_features": ["kind"]}
    ours = HistGradientBoostingRegressor(**given)
    ours.fit(table[:400], T[:400], X_val=TABLE[400:], y_val=T[400:])
    assert_array_equal(ours.predict(TABLE), ours.to_sklearn().predict(TABLE))


@pytest.mark.parametrize("sign", [1, -1])
def test_one_category_beside_missing_values(on_pair: xpulab.XPUCluster, sign: int) -> None:
    """A set of one category is found again, although scikit-learn's own estimator sends it to the other side."""
    rows = np.where(np.isnan(HOLES[:, :1]), np.nan, 1)
    y = sign * np.isnan(rows[:, 0])
    ours = HistGradientBoostingRegressor(categorical_features=[0], max_iter=100).fit(rows, y)
    assert_allclose(ours.predict(rows), y, 0, 0.01)
    assert_array_equal(ours.to_sklearn().predict(rows), ours.predict(rows))


def test_groups_of_columns_are_those_of_the_rows(on_pair: xpulab.XPUCluster) -> None:
    """The trees have columns of categories first, and groups that may interact stay those that were named."""
    given: dict[str, Any] = {"interaction_cst": [[0, 1], [3]], "categorical_features": [3]}
    ours = HistGradientBoostingRegressor(max_iter=20, **given).fit(X, X[:, 0] * X[:, 1])
    groups: list[set[int]] = [{1, 2}, {0}, {3, 4}]  # column 3 of the rows is column 0 of the trees
    for (tree,) in ours._predictors:
        used = set(tree.nodes["feature_idx"][tree.nodes["is_leaf"] == 0].tolist())
        assert any(used <= group for group in groups), used
    assert ours.score(X, X[:, 0] * X[:, 1]) > 0.6


@pytest.mark.parametrize(
    ("rows", "chosen", "said"),
    [
        (
            TABLE.assign(a=[f"{row}" for row in range(600)]),
            ["kind"],
            "column 'a' has strings, and categorical_features",
        ),
        (TABLE.to_numpy(), [1], "could not convert string to float"),
        (X, [3, 0], "at index 0 is expected to have a cardinality <= 255 but actually has a cardinality of 600"),
        (TABLE.assign(kind=TABLE.a), ["kind"], "Categorical feature 'kind' is expected to have a cardinality"),
    ],
)
def test_categories_that_are_refused(on_pair: xpulab.XPUCluster, rows: Any, chosen: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HistGradientBoostingRegressor(categorical_features=chosen).fit(rows, T)
    words = on_pair.scatter(TABLE.assign(kind=TABLE.kind.astype(str)), allow_nan=True)
    for strings in (words, xpulab.scan(TABLE.assign(kind=TABLE.kind.astype(str)))):
        with pytest.raises(ValueError, match=r"type: categorical_features=\['kind'\]"):
            HistGradientBoostingRegressor().fit(strings, T)
    ours = HistGradientBoostingRegressor(categorical_features=["kind"], max_iter=1).fit(TABLE, T)
    with pytest.raises(ValueError, match="X has numbers, and the categories of the fit are strings"):
        ours.predict(X[:, :4])
