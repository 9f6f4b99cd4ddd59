"""The tree and its passes against a comparison of all pairs in NumPy."""

import numpy as np
import pytest

from xpulab.kernels.trees import BEYOND, Near, Tree, count_near, joined, least_near, link_near, roots_of


@pytest.mark.parametrize(("n", "d"), [(1, 1), (48, 2), (49, 2), (1000, 3), (1000, 20)])
def test_every_row_is_in_one_leaf_inside_its_boxes(n, d):
    X = np.random.default_rng(0).integers(0, 9, (n, d)).astype(float)
    tree = Tree.of(X.copy())
    there = np.isfinite(tree.tiles[:, 0])
    np.testing.assert_array_equal(tree.tiles.swapaxes(1, 2)[there], X[tree.order])
    np.testing.assert_array_equal(np.sort(tree.order), np.arange(n))
    np.testing.assert_array_equal(tree.boxes[1], [X.min(axis=0), X.max(axis=0)])
    np.testing.assert_array_equal(tree.boxes[1:].swapaxes(0, 1)[0].min(axis=0), X.min(axis=0))
    np.testing.assert_array_equal(tree.by_node(tree.order, np.minimum)[1], 0)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("d", [1, 3, 20])
def test_passes(d, same):
    rng = np.random.default_rng(d)
    X, Y = rng.normal(size=(400, d)), rng.normal(size=(300, d))
    tree = Tree.of(X.copy())
    other = tree if same else Tree.of(Y.copy())
    A, B = X[tree.order], (X if same else Y)[other.order]
    limit = d * (0.3 if d < 20 else 1.0)
    near, looks = Near("euclidean", 2.0, limit), []
    pairs = ((A[:, None] - B) ** 2).sum(axis=2) <= limit
    weights, totals = rng.integers(-2, 4, len(B)).astype(float), np.zeros(400)
    count_near(tree, other, near, weights, np.inf, totals, lambda: looks.append(1))
    np.testing.assert_array_equal(totals, pairs @ weights)
    assert looks
    labels, best = rng.integers(0, 50, len(B)), np.full(400, BEYOND)
    least_near(tree, other, near, labels, np.full(400, -1), best, lambda: None)
    np.testing.assert_array_equal(best, np.where(pairs, labels, BEYOND).min(axis=1))
    cores = rng.random(400 if same else 700) < 0.7
    parents = np.where(cores, np.arange(len(cores)), -1)
    link_near(tree, other, near, parents, lambda: None)
    found, offset = roots_of(parents), 0 if same else 400
    edges = [(i, offset + j) for i, j in np.argwhere(pairs) if cores[i] and cores[offset + j]]
    np.testing.assert_array_equal(
        found, np.where(cores, joined(np.array(edges, np.int64).reshape(-1, 2), len(cores)), -1)
    )


def test_an_exception_of_the_check_ends_a_pass():
    tree = Tree.of(np.random.default_rng(0).normal(size=(100, 2)))

    def look():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_near(tree, tree, Near("euclidean", 2.0, 1.0), None, 5.0, np.zeros(100), look)
