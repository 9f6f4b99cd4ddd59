"""Forests are the same for any number of engines, and their scores are as good as scikit-learn's."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.ensemble
from sent import nothing_sent
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_classification, make_friedman1
from sklearn.model_selection import train_test_split
from strikes import die_on_rank_1, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from xpulab.exceptions import EngineLostError, HandleError

pytestmark = pytest.mark.cluster


def table(n: int = 600, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, X[:, 0] * X[:, 1] + X[:, 2] + 0.3 * rng.normal(size=n)


def nodes_of(forest: Any) -> list[np.ndarray]:
    return [tree.tree_.__getstate__()["nodes"] for tree in forest.estimators_]


def assert_same_trees(one: Any, other: Any) -> None:
    for a, b in zip(nodes_of(one), nodes_of(other), strict=True):
        for name in a.dtype.names:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.fixture(scope="module")
def reference(pair: xpulab.XPUCluster) -> dict[str, Any]:
    """The forests that two engines grow."""
    pair.activate()
    X, t = table()
    return {
        "votes": RandomForestClassifier(30, random_state=3, oob_score=True).fit(X, t > 0),
        "numbers": RandomForestRegressor(5, random_state=3, max_features=0.5).fit(X, t),
        "drawn votes": ExtraTreesClassifier(30, random_state=3, bootstrap=True, oob_score=True).fit(X, t > 0),
        "drawn numbers": ExtraTreesRegressor(5, random_state=3, max_features=0.5).fit(X, t),
    }


@pytest.mark.parametrize("splits", ["", "drawn "])
def test_the_same_forest_on_any_number_of_engines(
    current: xpulab.XPUCluster, reference: dict[str, Any], splits: str
) -> None:
    X, t = table()
    counts = [600 - 5 * (current.size - 1)] + [5] * (current.size - 1)
    empty = [0] * (current.size - 1) + [600]
    for some in (X, X.astype(np.float64), current.scatter(X, counts=counts), current.scatter(X, counts=empty)):
        expected = reference[f"{splits}votes"]
        votes = clone(expected).fit(some, t > 0)
        assert_same_trees(votes, expected)
        np.testing.assert_allclose(votes.oob_decision_function_, expected.oob_decision_function_)
        assert votes.oob_score_ == expected.oob_score_
    expected = reference[f"{splits}numbers"]
    assert_same_trees(clone(expected).fit(current.scatter(X), current.scatter(t)), expected)


DATA = {
    "breast cancer": load_breast_cancer(return_X_y=True),
    "wine": load_wine(return_X_y=True),
    "made": make_classification(700, 12, n_informative=6, n_classes=4, random_state=0),
    "friedman": make_friedman1(700, noise=1.0, random_state=0),
    "diabetes": load_diabetes(return_X_y=True),
}


@pytest.mark.parametrize("forest", ["RandomForest", "ExtraTrees"])
@pytest.mark.parametrize("name", DATA)
def test_the_scores_are_as_good_as_scikit_learn_s(on_pair: xpulab.XPUCluster, name: str, forest: str) -> None:
    """The mean difference of the scores for the same seeds is at least minus three standard errors, or minus 0.01."""
    X, y = DATA[name]
    kind = f"{forest}Regressor" if name in ("friedman", "diabetes") else f"{forest}Classifier"
    differences = []
    for seed in range(5):
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=seed)
        ours = getattr(xpulab.ensemble, kind)(30, random_state=seed).fit(X_train, y_train)
        theirs = getattr(sklearn.ensemble, kind)(30, random_state=seed).fit(X_train, y_train)
        differences.append(ours.score(X_test, y_test) - theirs.score(X_test, y_test))
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    assert np.mean(differences) > -max(0.01, 3 * error), differences


@pytest.mark.parametrize("criterion", ["gini", "entropy", "squared_error", "absolute_error", "poisson"])
@pytest.mark.parametrize(("outputs", "constraints"), [(1, None), (2, None), (1, [1, 0, -1, 0, 0]), (1, [-1] * 5)])
def test_columns_of_few_values_give_scikit_learn_s_tree(
    on_pair: xpulab.XPUCluster, criterion: str, outputs: int, constraints: list[int] | None
) -> None:
    """All columns and rows are used, and no two columns split a node equally well, so only one tree is possible."""
    rng = np.random.default_rng(1)
    X = rng.permuted(np.tile(np.arange(200.0), (5, 1)), axis=1).T
    # Before scikit-learn 1.7, its forests do not predict both, and it has no medians beside missing values.
    if constraints is None and criterion != "absolute_error":
        X[rng.random(X.shape) < 0.05] = np.nan
    t = np.abs(np.nan_to_num(X[:, :outputs]) / 50 + np.nan_to_num(X[:, 2:3]) / 90 + rng.normal(size=(200, outputs)))
    votes = criterion in ("gini", "entropy")
    y = (t * 2).astype(int) % (2 if constraints else 3) if votes else t
    y = y[:, 0] if outputs == 1 else y
    weights = rng.random(200) + 0.5
    kind = "RandomForestClassifier" if votes else "RandomForestRegressor"
    arguments = {
        "n_estimators": 2,
        "criterion": criterion,
        "bootstrap": False,
        "max_features": None,
        "min_samples_leaf": 25,
        "monotonic_cst": constraints,
    }
    ours = getattr(xpulab.ensemble, kind)(**arguments, random_state=0).fit(X, y, weights)
    theirs = getattr(sklearn.ensemble, kind)(**arguments, random_state=0).fit(X, y, weights)
    np.testing.assert_allclose(np.squeeze(ours.predict(X)), np.squeeze(theirs.predict(X)), rtol=1e-6)
    np.testing.assert_allclose(ours.feature_importances_, theirs.feature_importances_, atol=1e-6)
    a, b = ours.estimators_[0].tree_, theirs.estimators_[0].tree_
    assert (a.node_count, a.max_depth, a.n_leaves) == (b.node_count, b.max_depth, b.n_leaves)
    np.testing.assert_allclose(np.sort(a.impurity), np.sort(b.impurity), atol=1e-6)
    np.testing.assert_allclose(np.sort(a.weighted_n_node_samples), np.sort(b.weighted_n_node_samples))


@pytest.mark.parametrize(
    ("criterion", "missing"),
    [("gini", False), ("gini", True), ("squared_error", False), ("squared_error", True), ("absolute_error", False)],
)
def test_drawn_splits_are_as_probable_as_in_scikit_learn(
    on_pair: xpulab.XPUCluster, criterion: str, missing: bool
) -> None:
    """Of columns of few values, that are not evenly spaced: the columns of the root, and how many rows are left."""
    rng = np.random.default_rng(1)
    X = rng.choice([0.0, 1.0, 2.0, 10.0, 11.0, 30.0], (300, 3)) * [1, -2, 0.5]
    if missing:
        X[rng.random(X.shape) < 0.2] = np.nan
    y = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) + rng.normal(size=300)
    kind, y = ("ExtraTreesClassifier", y > -9) if criterion == "gini" else ("ExtraTreesRegressor", y)
    shares, thresholds = [], []
    for library, first in ((xpulab.ensemble, 0), (sklearn.ensemble, 10_000)):
        forest = getattr(library, kind)(1000, criterion=criterion, max_depth=1, max_features=2, random_state=first)
        forest.fit(X, y)
        trees = [tree.tree_ for tree in forest.estimators_]
        cuts = [(tree.feature[0], tree.n_node_samples[1]) for tree in trees]
        shares.append({cut: cuts.count(cut) / 1000 for cut in cuts})
        thresholds.append([tree.threshold[0] for tree in trees if tree.feature[0] == 0])
    ours, theirs = shares
    for cut in ours.keys() | theirs.keys():
        p, q = ours.get(cut, 0.0), theirs.get(cut, 0.0)
        assert abs(p - q) <= 5 * np.sqrt((p + q) / 1000), cut
    assert len(ours) >= 10
    # Thresholds are those that were drawn, and not edges between values.
    assert len(np.unique(thresholds[0])) > 0.9 * len(thresholds[0]) > 90
    assert scipy.stats.ks_2samp(*thresholds).pvalue > 1e-6


@pytest.mark.parametrize("n_values", [200, 20_000], ids=["a value in each bin", "several values in each bin"])
def test_drawn_thresholds_part_the_rows_as_their_bins(on_pair: xpulab.XPUCluster, n_values: int) -> None:
    """scikit-learn's trees send the rows to the leaves that have counted them."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, n_values, (3000, 4)).astype(np.float32)
    X[rng.random(X.shape) < 0.05] = np.nan
    y = np.nan_to_num(X) @ [1.0, -1, 2, 0] / n_values
    forest = ExtraTreesRegressor(5, random_state=0, bootstrap=False).fit(X, y)
    for tree in forest.estimators_:
        leaves = tree.tree_.children_left < 0
        counts = np.bincount(tree.apply(X), minlength=len(leaves))
        np.testing.assert_array_equal(counts[leaves], tree.tree_.n_node_samples[leaves])
    assert forest.score(X, y) > 0.999


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_depth": 3}, {"min_samples_leaf": 20}, {"min_samples_leaf": 0.1}, {"min_samples_split": 100},
        {"min_samples_split": 0.3}, {"min_weight_fraction_leaf": 0.1}, {"min_impurity_decrease": 0.01},
        {"max_leaf_nodes": 9}, {"ccp_alpha": 0.01}, {"max_samples": 50}, {"max_samples": 0.2},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_for_the_size_of_trees_work_as_in_scikit_learn(
    on_pair: xpulab.XPUCluster, parameters: dict[str, Any]
) -> None:
    X, t = table()
    ours = RandomForestClassifier(3, random_state=0, max_features=None, **parameters).fit(X, t > 0)
    theirs = sklearn.ensemble.RandomForestClassifier(3, random_state=0, max_features=None, **parameters).fit(X, t > 0)
    for one, other in zip(ours.estimators_, theirs.estimators_, strict=True):
        # The splits separate the same rows. Only the thresholds between values, and therefore pruning, can differ.
        assert (
            "ccp_alpha" in parameters
            or abs(one.tree_.n_leaves - other.tree_.n_leaves) <= 0.1 * other.tree_.n_leaves + 1
        )
        leaves = one.tree_.children_left < 0
        assert one.tree_.n_node_samples[0] == other.tree_.n_node_samples[0]
        assert one.tree_.max_depth <= parameters.get("max_depth", 99)
        assert one.tree_.n_leaves <= parameters.get("max_leaf_nodes", 999)
        assert "ccp_alpha" not in parameters or one.tree_.n_leaves < 30
        least = parameters.get("min_samples_leaf", 1)
        assert one.tree_.n_node_samples[leaves].min() >= (least if isinstance(least, int) else least * 600)
        share = one.tree_.weighted_n_node_samples[leaves].min() / one.tree_.weighted_n_node_samples[0]
        assert share >= parameters.get("min_weight_fraction_leaf", 0)


def test_predictions_are_those_of_scikit_learn_s_trees(on_pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X, t = table(3000)
    X[::7, 1] = np.nan
    y = np.stack([np.where(t > 0, "up", "down"), np.where(X[:, 3] > 1, "far", "near")], axis=1)
    votes = RandomForestClassifier(20, random_state=0).fit(X, y)
    numbers = ExtraTreesRegressor(20, random_state=0).fit(X, np.stack([t, -t], axis=1))
    np.save(tmp_path / "X.npy", X)
    handle = on_pair.scatter(np.nan_to_num(X))
    for Q in (X, np.load(tmp_path / "X.npy", mmap_mode="r"), handle):
        there = Q.gather() if Q is handle else np.asarray(Q)
        plain = votes.to_sklearn()
        assert type(plain) is sklearn.ensemble.RandomForestClassifier
        for ours, theirs in zip(votes.predict_proba(Q), plain.predict_proba(there), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
        np.testing.assert_array_equal(votes.predict(Q), plain.predict(there))
        np.testing.assert_allclose(numbers.predict(Q), numbers.to_sklearn().predict(there), rtol=1e-12)
    np.testing.assert_array_equal(votes.apply(handle), plain.apply(handle.gather()))
    again = pickle.loads(pickle.dumps(votes))
    np.testing.assert_array_equal(again.predict(X), votes.predict(X))
    assert vars(plain).keys() <= vars(clone(plain).fit(X, y)).keys()


def held(cluster: xpulab.XPUCluster) -> set[str]:
    """Return the handles that every engine has."""
    return set.intersection(*cluster.run(lambda task: set(task.engine.handles)))


def test_the_engines_get_the_trees_once(on_pair: xpulab.XPUCluster) -> None:
    X, t = table(3000)
    forest, others = RandomForestClassifier(20, random_state=0).fit(X, t > 0), held(on_pair)
    forest.predict(X[:9])
    assert not held(on_pair) - others  # a few rows are followed in this process
    forest.predict(X)
    (first,) = held(on_pair) - others
    forest.predict_proba(X)
    assert held(on_pair) - others == {first}
    before = forest.predict(X)
    forest.set_params(random_state=1).fit(X, t < 0)
    assert (forest.predict(X) != before).mean() > 0.9
    assert held(on_pair) - others - {first}


def test_warm_start_adds_the_trees_of_a_longer_fit(on_pair: xpulab.XPUCluster) -> None:
    X, t = table()
    whole = RandomForestClassifier(30, random_state=5, oob_score=True).fit(X, t > 0)
    grown = RandomForestClassifier(28, random_state=5, warm_start=True, oob_score=True).fit(X, t > 0)
    grown.set_params(n_estimators=30).fit(X, t > 0)
    assert_same_trees(whole, grown)
    np.testing.assert_allclose(whole.oob_decision_function_, grown.oob_decision_function_)
    with pytest.warns(UserWarning, match="Warm-start fitting without increasing"):
        grown.fit(X, t > 0)
    with pytest.raises(ValueError, match="must be larger or equal to"):
        grown.set_params(n_estimators=2).fit(X, t > 0)


def test_out_of_bag_predictions_are_scikit_learn_s_of_the_same_trees(on_pair: xpulab.XPUCluster) -> None:
    X, t = table()
    X[::5, 2] = np.nan
    for forest, y in ((RandomForestClassifier(30), t > 0), (RandomForestRegressor(30), np.stack([t, 1 + t], axis=1))):
        forest.set_params(oob_score=True, random_state=0).fit(X, y)
        plain = forest.to_sklearn()
        plain.n_classes_ = [2]
        plain._set_oob_score_and_attributes(X, np.asarray(y, np.float64).reshape(len(y), -1))
        name = "oob_decision_function_" if y.ndim == 1 else "oob_prediction_"
        np.testing.assert_allclose(getattr(forest, name), getattr(plain, name))
        assert forest.oob_score_ == pytest.approx(plain.oob_score_)
    with pytest.warns(UserWarning, match="do not have OOB scores"):
        RandomForestClassifier(1, oob_score=True, random_state=0).fit(X, t > 0)


@pytest.mark.parametrize("class_weight", ["balanced", "balanced_subsample", {0: 1, 1: 5}])
def test_class_weights_work_as_in_scikit_learn(on_pair: xpulab.XPUCluster, class_weight: Any) -> None:
    X, t = table()
    y = (t > 1.2).astype(int)
    arguments = {"n_estimators": 30, "max_depth": 3, "random_state": 0, "class_weight": class_weight}
    ours = RandomForestClassifier(**arguments).fit(X, y)
    theirs = sklearn.ensemble.RandomForestClassifier(**arguments).fit(X, y)
    assert abs(ours.predict_proba(X).mean(axis=0) - theirs.predict_proba(X).mean(axis=0)).max() < 0.03
    for one, other in zip(ours.estimators_, theirs.estimators_, strict=True):
        np.testing.assert_allclose(one.tree_.value[0], other.tree_.value[0])


def test_rows_of_weight_zero_do_not_count(on_pair: xpulab.XPUCluster) -> None:
    X, t = table()
    weights = (np.arange(600) % 2).astype(float)
    kept = RandomForestRegressor(2, bootstrap=False, random_state=0).fit(X[1::2], t[1::2])
    weighted = RandomForestRegressor(2, bootstrap=False, random_state=0).fit(X, t, weights)
    for one, other in zip(nodes_of(kept), nodes_of(weighted), strict=True):
        assert one["n_node_samples"][0] == other["n_node_samples"][0] == 300
    assert weighted.score(X[1::2], t[1::2]) > 0.99


def test_bad_input_is_refused_before_anything_is_sent(on_pair: xpulab.XPUCluster) -> None:
    X, t = table(50)
    fitted = RandomForestClassifier(2).fit(X, t > 0)
    infinite = X.copy()
    infinite[3, 1] = np.inf
    cases: list[tuple[Any, Any, tuple[Any, ...], str]] = [
        (RandomForestClassifier(monotonic_cst=[1, 0, 0]), t > 0, (), "monotonic_cst has shape 3 but .* 6 features"),
        (ExtraTreesRegressor(monotonic_cst=[[1] * 6]), t, (), r"monotonic_cst has shape \(1, 6\)"),
        (RandomForestRegressor(monotonic_cst=[2, 0, 0, 0, 0, 0]), t, (), "array-like of -1, 0 or 1, but got"),
        (RandomForestRegressor(monotonic_cst=[1] * 6), X[:, :2], (), "not supported with multiple outputs"),
        (ExtraTreesClassifier(monotonic_cst=[1] * 6), np.arange(50) % 3, (), "not supported with multiclass"),
        (RandomForestClassifier(), t[:-1] > 0, (), "inconsistent numbers of samples"),
        (RandomForestClassifier(), None, (), "requires y to be passed"),
        (RandomForestClassifier(), t, (), "Unknown label type"),
        (RandomForestClassifier(), t > 0, (np.ones(49),), "sample_weight.shape"),
        (RandomForestClassifier(), t > 0, (-np.ones(50),), "Negative values"),
        (RandomForestClassifier(max_samples=9, bootstrap=False), t > 0, (), "cannot be set if `bootstrap=False`"),
        (RandomForestClassifier(oob_score=True, bootstrap=False), t > 0, (), "only available if bootstrap=True"),
        (RandomForestClassifier(criterion="squared_error"), t > 0, (), "criterion"),
        (RandomForestRegressor(criterion="poisson"), t - 9, (), "negative"),
    ]
    with nothing_sent(on_pair):
        for estimator, y, more, message in cases:
            with pytest.raises(ValueError, match=message):
                estimator.fit(X, y, *more)
        with pytest.raises(ValueError, match="infinity"):
            RandomForestClassifier().fit(infinite, t > 0)
        with pytest.raises(ValueError, match="X has 3 features, but RandomForestClassifier is expecting 6"):
            fitted.predict(np.zeros((20_000, 3)))


def test_numbers_too_large_for_float32_are_refused(on_pair: xpulab.XPUCluster) -> None:
    X, t = table(50)
    large = X.astype(np.float64)
    large[49, 5] = 1e300
    with pytest.raises(ValueError, match=r"too large for dtype\('float32'\)"):
        RandomForestClassifier(2).fit(on_pair.scatter(large), t > 0)
    with pytest.warns(RuntimeWarning, match="overflow"), pytest.raises(ValueError, match="infinity"):
        RandomForestClassifier(2).fit(large, t > 0)


def test_forests_of_one_class_of_constant_columns_and_of_one_row(on_pair: xpulab.XPUCluster) -> None:
    X = np.ones((30, 3))
    assert (RandomForestClassifier(2, random_state=0).fit(X, ["a"] * 30).predict(X) == "a").all()
    assert RandomForestRegressor(2, random_state=0).fit(X, np.arange(30)).estimators_[0].tree_.node_count == 1
    assert RandomForestRegressor(2, random_state=0).fit(X[:1], [4.0]).predict(X) == pytest.approx(4)
    missing = np.full((30, 3), np.nan)
    missing[::2, 1] = 1
    y = np.arange(30) % 2
    assert (RandomForestClassifier(3, bootstrap=False, max_features=None).fit(missing, y).predict(missing) == y).all()


@pytest.mark.parametrize("n", [40, 3000])  # few rows are predicted in this process, and many by the engines
@pytest.mark.parametrize("low", [0.0, 0.1, -1e9])
def test_predictions_of_numbers_stay_within_the_range_of_the_targets(
    n: int, low: float, on_pair: xpulab.XPUCluster
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = low + np.column_stack([X[:, 0] > 0, np.zeros(n)])
    forest = RandomForestRegressor(random_state=0, oob_score=True, warm_start=True)
    for n_estimators in (20, 30):
        forest.set_params(n_estimators=n_estimators).fit(X, y)
        for found in (forest.predict(X), forest.oob_prediction_, *(tree.predict(X) for tree in forest.estimators_)):
            assert (found >= y.min(axis=0)).all()
            assert (found <= y.max(axis=0)).all()
    plain = forest.to_sklearn()
    assert vars(plain).keys() <= vars(clone(plain).fit(X, y)).keys()


@pytest.mark.parametrize(
    "kind", [RandomForestClassifier, RandomForestRegressor, ExtraTreesClassifier, ExtraTreesRegressor]
)
@pytest.mark.parametrize("exponent", [-1000, 900])
def test_weights_of_any_size_grow_the_same_trees(kind: Any, exponent: int, on_pair: xpulab.XPUCluster) -> None:
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(200, 3)), rng.integers(1, 4, 200).astype(float)
    y = (X[:, 0] > 0).astype(float)
    found, expected = (
        kind(5, random_state=0, bootstrap=False).fit(X, y, w).predict(X) for w in (weights * 2.0**exponent, weights)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("meeting", [2, 8], ids=["targets", "growing"])
def test_stop_and_a_lost_engine_end_a_fit_of_handles(losable: xpulab.XPUCluster, meeting: int, tmp_path: Path) -> None:
    X, t = table(3000)
    expected = RandomForestRegressor(20, random_state=0).fit(X, t)
    forest, rows, targets = clone(expected), losable.scatter(X), losable.scatter(t)
    losable.run(strike, meeting, wait_for_stop, str(tmp_path / "waits"))
    with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt, match=r"RandomForestRegressor\.fit was"):
        forest.fit(rows, targets)
    assert not hasattr(forest, "estimators_")
    assert_same_trees(forest.fit(rows, targets), expected)
    if meeting == 2:  # new engines start after the loss in the other
        return
    losable.run(strike, meeting, die_on_rank_1)
    with pytest.raises(EngineLostError):
        forest.fit(rows, targets)
    losable.restart()
    with pytest.raises(HandleError, match="scatter"):
        forest.fit(rows, targets)
