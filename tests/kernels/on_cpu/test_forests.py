"""Edges, bins and sums over trees, against NumPy and scikit-learn."""

from math import comb

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from xpulab.ensemble import RandomForestRegressor
from xpulab.kernels.on_cpu.forests import Edges, Rules, Workspace, add_values, grow_tree


@pytest.mark.parametrize("values", [1, 2, 3, 254, 255, 256, 1000])
def test_each_value_is_between_its_edges(values):
    rng = np.random.default_rng(values)
    column = rng.permutation(np.repeat(np.arange(values), 3)).astype(np.float32)
    column[rng.random(len(column)) < 0.1] = np.nan
    limits = Edges.of_column(column.copy())
    edges = Edges.between([limits]).values
    present = np.unique(column[~np.isnan(column)])
    if len(present) <= 255:
        np.testing.assert_array_equal(edges, (present[1:] + present[:-1]) / 2)
        np.testing.assert_array_equal(limits, np.stack([present, present], axis=1))
    bin_of = np.searchsorted(edges, present)
    for number, (least, largest) in enumerate(limits):
        assert (least, largest) == (present[bin_of == number].min(), present[bin_of == number].max())
    assert len(edges) <= 254
    two = Edges.between([limits, np.zeros((1, 2))])
    bins = two.bins(np.stack([column, column], axis=1))
    missing = np.isnan(column)
    np.testing.assert_array_equal(bins[~missing, 0], np.searchsorted(edges, column[~missing]))
    assert (bins[missing] == 255).all()
    assert (bins[~missing, 1] == 0).all()


def test_more_values_than_bins_have_about_as_many_rows_each():
    column = np.random.default_rng(0).exponential(size=100_000).astype(np.float32)
    edges = Edges.between([Edges.of_column(column.copy())]).values
    counts = np.bincount(np.searchsorted(edges, column))
    assert len(counts) == 255
    assert counts.max() < 2 * counts.mean()


def test_infinity_is_beyond_all_edges():
    column = np.array([-np.inf, -1, 1, np.inf], np.float32)
    edges = Edges.between([Edges.of_column(column.copy())]).values
    np.testing.assert_array_equal(np.searchsorted(edges, column), [0, 1, 2, 3])


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 300])
def test_values_of_trees_are_added_in_their_order(n):
    """With missing values on both sides, thresholds that float32 does not hold, leaves at once, and pruned trees."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    X[::9, 1] = np.nan
    X[:, 3] = np.nextafter(np.float32(1), np.float32(2)) if n % 2 else 1
    X[::2, 3] = 1 if n % 2 else np.nextafter(np.float32(1), np.float32(0))
    forest = RandomForestRegressor()
    forest.estimators_ = [
        DecisionTreeRegressor(max_depth=depth, random_state=k, ccp_alpha=0.01 * (k == 2)).fit(X, rng.normal(size=300))
        for k, depth in enumerate([None, 1, 9, 5])
    ]
    forest.estimators_.append(DecisionTreeRegressor().fit(X, np.ones(300)))
    nodes, roots, values = forest._packed()
    sums = np.zeros((n, 1))
    add_values(X[:n], nodes, roots, values, sums)
    expected = np.zeros(n)
    for tree in forest.estimators_:
        expected += tree.predict(X)[:n]
    np.testing.assert_array_equal(sums[:, 0], expected)


def grown(X, y, weights, seed=0, classes=2, **rules):
    edges = Edges.between([Edges.of_column(column.copy()) for column in X.T])
    bins = edges.bins(X)
    given = {
        "criterion": "gini", "splitter": "best", "max_features": X.shape[1], "min_samples_split": 2,
        "min_samples_leaf": 1, "min_weight_fraction_leaf": 0.0, "max_depth": 99, "min_impurity_decrease": 0.0,
        "max_leaf_nodes": -1,
    }  # fmt: skip
    workspace = Workspace(*X.shape, (classes,), {"criterion": "gini", **rules}["criterion"])
    y = np.asarray(y, np.float64).reshape(-1, 1)
    return grow_tree(bins, weights, edges, y, Rules(**{**given, **rules}), seed, workspace), bins


def median(y, w):
    """The weighted median, as scikit-learn's trees take it."""
    order = np.argsort(y)
    y, below = y[order], np.cumsum(w[order])
    at = np.searchsorted(below, below[-1] / 2)
    return (y[at] + y[min(at + 1, len(y) - 1)]) / 2 if below[at] == below[-1] / 2 else y[at]


def purity(y, w, criterion):
    """What splits make larger, summed over the sides."""
    if len(y) == 0:
        return 0.0
    if criterion == "absolute_error":
        return -(w * np.abs(y - median(y, w))).sum()
    if criterion == "squared_error":
        return (w * y).sum() ** 2 / w.sum()
    sums = np.bincount(y.astype(int), w)
    if criterion == "gini":
        return (sums**2).sum() / sums.sum()
    return (sums * np.log2(np.maximum(sums, 1e-300) / sums.sum())).sum()


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["gini", "entropy", "squared_error", "absolute_error"])
@pytest.mark.parametrize("d", [3, 6])
def test_each_split_is_the_best_of_all(criterion, d):
    """Nodes of many rows and of few, columns four at a time and one at a time, missing values, and weights."""
    rng = np.random.default_rng(d)
    X = rng.normal(size=(300, d)).astype(np.float32).round(1)
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, 1] = 2
    weights = rng.integers(0, 4, 300).astype(np.float64)
    y = rng.normal(size=300) + np.nan_to_num(X[:, 0])
    numbers = criterion not in ("gini", "entropy")
    y = y if numbers else (y * 1.5).round() % 3
    tree, bins = grown(X, y, weights, classes=0 if numbers else 3, criterion=criterion)
    there = {0: np.flatnonzero(weights)}
    sizes = []
    for number, node in enumerate(tree.nodes):
        rows = there[number]
        assert node["n_node_samples"] == len(rows)
        assert node["weighted_n_node_samples"] == weights[rows].sum()
        some, w = y[rows], weights[rows]
        if criterion == "squared_error":
            np.testing.assert_allclose(tree.values[number], np.average(some, weights=w), atol=1e-12)
        elif criterion == "absolute_error":
            assert tree.values[number] == median(some, w)
            np.testing.assert_allclose(node["impurity"], -purity(some, w, criterion) / w.sum(), atol=1e-12)
        else:
            np.testing.assert_allclose(tree.values[number, 0], np.bincount(some.astype(int), w, 3) / w.sum())
        if node["left_child"] < 0:
            assert len(np.unique(some)) == 1 or (np.ptp(bins[rows].astype(int), axis=0) == 0).all()
            continue
        feature = int(node["feature"])
        assert np.isclose(node["threshold"], 2) or feature != 1
        worth = {}
        for f in range(d):
            b = bins[rows, f]
            for last in np.unique(b):
                for to_left in (False, True):
                    left = (b <= last) & (b < 255) | (to_left & (b == 255))
                    if 0 < left.sum() < len(left):
                        worth[left.tobytes()] = purity(some[left], w[left], criterion) + purity(
                            some[~left], w[~left], criterion
                        )
        x = X[rows, feature]
        left = np.where(np.isnan(x), node["missing_go_to_left"] == 1, x <= node["threshold"])
        np.testing.assert_allclose(worth[left.tobytes()], max(worth.values()), rtol=1e-9)
        there[int(node["left_child"])], there[int(node["right_child"])] = rows[left], rows[~left]
        sizes.append(len(rows))
    assert min(sizes) < 10
    assert max(sizes) > 200
    assert len(sizes) > 40


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("criterion", ["gini", "entropy", "squared_error", "absolute_error"])
def test_drawn_splits_part_the_rows_and_the_sums(criterion, outputs):
    """Of few and of many values, missing ones, weights, and a constant column, which is never split."""
    rng = np.random.default_rng(outputs)
    X = rng.normal(size=(400, 4)).astype(np.float32)
    X[:, 0] = X[:, 0].round(1)
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, 1] = 2
    weights = rng.integers(0, 4, 400).astype(np.float64)
    y = np.nan_to_num(X[:, [0, 2][:outputs]]) + rng.normal(size=(400, outputs))
    numbers = criterion not in ("gini", "entropy")
    y = y if numbers else (y * 1.5).round() % 3
    limits_of = [Edges.of_column(column.copy()) for column in X.T]
    edges = Edges.between(limits_of)
    bins, classes = edges.bins(X), (0 if numbers else 3,) * outputs
    rules = Rules(criterion, "random", 2, 2, 1, 0.0, 99, 0.0, -1)
    tree = grow_tree(bins, weights, edges, y, rules, 123_456_789, Workspace(*X.shape, classes, rules.criterion))
    there = {0: np.flatnonzero(weights)}
    features = set()
    for number, node in enumerate(tree.nodes):
        rows = there[number]
        assert node["n_node_samples"] == len(rows) >= 1
        w = weights[rows]
        assert node["weighted_n_node_samples"] == w.sum()
        for o in range(outputs):
            some = y[rows, o]
            expected = np.bincount(some.astype(int), w, 3) / w.sum() if classes[0] else np.average(some, weights=w)
            expected = median(some, w) if criterion == "absolute_error" else expected
            np.testing.assert_allclose(tree.values[number, o], expected, atol=1e-12)
        if node["left_child"] < 0:
            continue
        feature = int(node["feature"])
        features.add(feature)
        x = X[rows, feature]
        own = limits_of[feature][bins[rows, feature][~np.isnan(x)]]
        assert own.min() <= node["threshold"] <= own.max()
        left = np.where(np.isnan(x), node["missing_go_to_left"] == 1, x <= node["threshold"])
        there[int(node["left_child"])], there[int(node["right_child"])] = rows[left], rows[~left]
    assert features == {0, 2, 3}
    assert len(tree.nodes) > 40


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7])
def test_a_node_looks_at_some_of_the_columns(columns):
    """The worst of eight columns decide where the better ones were not drawn; each is drawn as often as the others."""
    X = np.tile(np.arange(128, dtype=np.float32)[:, None], (1, 8))
    for f in range(8):
        X[: f + 1, f] = X[: f + 1, f][::-1] + 100  # the later a column, the more rows are on the wrong side
    y = (np.arange(128) >= 64).astype(float)
    used = np.bincount(
        [
            grown(X, y, np.ones(128), seed, max_features=columns, max_depth=1)[0].nodes["feature"][0]
            for seed in range(1, 401)
        ],
        minlength=8,
    )
    # Column f is the best if it was drawn, and none before it.
    expected = [comb(7 - f, columns - 1) / comb(8, columns) * 400 for f in range(8)]
    assert abs(used - np.array(expected)).max() < 5 * np.sqrt(100)
    assert (used[8 - columns + 1 :] == 0).all()
