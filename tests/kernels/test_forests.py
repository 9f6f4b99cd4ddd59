"""Edges, places and sums over trees, against NumPy and scikit-learn."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

from xpulab.kernels.forests import Edges, add_values


@pytest.mark.parametrize("values", [1, 2, 3, 254, 255, 256, 1000])
def test_each_value_is_between_its_edges(values):
    rng = np.random.default_rng(values)
    column = rng.permutation(np.repeat(np.arange(values), 3)).astype(np.float32)
    column[rng.random(len(column)) < 0.1] = np.nan
    edges = Edges.of_column(column.copy())
    present = np.unique(column[~np.isnan(column)])
    if len(present) <= 255:
        np.testing.assert_array_equal(edges, (present[1:] + present[:-1]) / 2)
    assert len(edges) <= 254
    two = Edges.between([edges, np.empty(0)])
    places = two.places(np.stack([column, column], axis=1))
    missing = np.isnan(column)
    np.testing.assert_array_equal(places[~missing, 0], np.searchsorted(edges, column[~missing]))
    assert (places[missing] == 255).all()
    assert (places[~missing, 1] == 0).all()


def test_more_values_than_places_have_about_as_many_rows_each():
    column = np.random.default_rng(0).exponential(size=100_000).astype(np.float32)
    edges = Edges.of_column(column.copy())
    counts = np.bincount(np.searchsorted(edges, column))
    assert len(counts) == 255
    assert counts.max() < 2 * counts.mean()


def test_infinity_is_beyond_all_edges():
    column = np.array([-np.inf, -1, 1, np.inf], np.float32)
    edges = Edges.of_column(column.copy())
    np.testing.assert_array_equal(np.searchsorted(edges, column), [0, 1, 2, 3])


def test_values_of_trees_are_added_in_their_order():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    X[::9, 1] = np.nan
    trees = [DecisionTreeRegressor(max_depth=5, random_state=k).fit(X, rng.normal(size=300)).tree_ for k in range(3)]
    roots = np.cumsum([0] + [tree.node_count for tree in trees[:-1]]).astype(np.int64)
    nodes = np.zeros((sum(tree.node_count for tree in trees), 6), np.int32)
    for tree, root in zip(trees, roots, strict=True):
        part, inner = nodes[root : root + tree.node_count], tree.children_left >= 0
        part[:, 0] = np.where(inner, tree.children_left + root, -1)
        part[:, 1] = np.where(inner, tree.children_right + root, -1)
        part[:, 2] = np.where(inner, 2 * tree.feature + tree.missing_go_to_left, 0)
        part[:, 4:] = np.ascontiguousarray(tree.threshold).view(np.int32).reshape(-1, 2)
    values = np.concatenate([tree.value[:, :, 0] for tree in trees])
    sums = np.zeros((300, 1))
    add_values(X, nodes, roots, values, sums)
    np.testing.assert_array_equal(sums[:, 0], sum(tree.predict(X).reshape(-1) for tree in trees))
