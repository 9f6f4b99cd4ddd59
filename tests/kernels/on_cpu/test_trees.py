"""The tree and its passes against a comparison of all pairs in NumPy."""

import numpy as np
import pytest

from xpulab.kernels.on_cpu.trees import (
    BEYOND,
    Near,
    Tree,
    count_near,
    joined,
    least_listed,
    least_near,
    link_near,
    roots_of,
)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (48, 2), (49, 2), (1000, 3), (1000, 20)])
def test_every_row_is_in_one_leaf_inside_its_boxes(n, d):
    X = np.random.default_rng(0).integers(0, 9, (n, d)).astype(float)
    tree = Tree.of(X.copy())
    there = np.isfinite(tree.leaves[:, 0])
    np.testing.assert_array_equal(tree.leaves.swapaxes(1, 2)[there], X[tree.order])
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
    other = tree if same else Tree.of(Y.copy(), tree.middle)
    A, B = X[tree.order], (X if same else Y)[other.order]
    limit = d * (0.3 if d < 20 else 1.0)
    near, looks = Near("euclidean", 2.0, limit), []
    pairs = ((A[:, None] - B) ** 2).sum(axis=2) <= limit
    weights, totals = rng.integers(-2, 4, len(B)).astype(float), np.zeros(400)
    count_near(tree, other, near, weights, np.inf, totals, looks.append)
    np.testing.assert_array_equal(totals, pairs @ weights)
    assert looks
    labels, best = rng.integers(0, 50, len(B)), np.full(400, BEYOND)
    least_near(tree, other, near, labels, np.full(400, -1), best, lambda done: None)
    np.testing.assert_array_equal(best, np.where(pairs, labels, BEYOND).min(axis=1))
    cores = rng.random(400 if same else 700) < 0.7
    parents = np.where(cores, np.arange(len(cores)), -1)
    link_near(tree, other, near, parents, lambda: None)
    found, offset = roots_of(parents), 0 if same else 400
    edges = [(i, offset + j) for i, j in np.argwhere(pairs) if cores[i] and cores[offset + j]]
    np.testing.assert_array_equal(
        found, np.where(cores, joined(np.array(edges, np.int64).reshape(-1, 2), len(cores)), -1)
    )


def wide_rows(kind, n, d, rng):
    """Rows with many features, of which float32 can say little or much, and the limit of near ones."""
    if kind == "ties":
        return rng.integers(0, 3, (n, d)).astype(float), float(d)
    if kind == "steps of float64":  # which float32 does not have
        return rng.integers(0, 2, (n, d)) * (1 + 1e-12 * rng.integers(0, 3, (n, d))), d / 2
    if kind == "far away":
        return 1e7 + rng.normal(size=(n, d)), 2.0 * d
    if kind == "far apart":  # float32 says nothing
        return np.concatenate([rng.normal(size=(n // 2, d)), 1e5 + rng.normal(size=(n - n // 2, d))]), 2.0 * d
    if kind == "tiny":
        return 1e-30 * rng.normal(size=(n, d)), 2e-60 * d
    return 1e200 * rng.normal(size=(n, d)), np.inf


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("d", [9, 23, 100])
@pytest.mark.parametrize(
    ("kind", "singles"),
    [
        ("ties", True), ("steps of float64", True), ("far away", True), ("far apart", False), ("tiny", False),
        ("huge", False),
    ],
)  # fmt: skip
def test_rows_with_many_features_are_compared_exactly(kind, singles, d, same):
    rng = np.random.default_rng(d)
    rows, limit = wide_rows(kind, 700, d, rng)
    rng.shuffle(rows)
    X, Y = rows[:400], rows[400:]
    tree = Tree.of(X.copy())
    other = tree if same else Tree.of(Y.copy(), tree.middle)
    A, B = X[tree.order], (X if same else Y)[other.order]
    with np.errstate(over="ignore"):
        distances = np.zeros((400, len(B)))
        for f in range(d):  # in the order of scikit-learn's trees
            distances += (A[:, None, f] - B[:, f]) ** 2
    pairs = distances <= limit
    near, totals, lists = Near("euclidean", 2.0, limit), np.zeros(400), np.full((400, 9), -1, np.int32)
    assert count_near(tree, other, near, None, np.inf, totals, lambda done: None, lists, 1000) == singles
    np.testing.assert_array_equal(totals, pairs.sum(axis=1))
    if singles:
        for total, listed, there in zip(totals.astype(int), lists, pairs, strict=True):
            known = listed[: min(total, 9)] - 1000
            assert (listed[total:] == -1).all()
            assert there[known].all()
            assert len(set(known)) == len(known)
        labels = rng.integers(0, 50, 1000 + len(B))
        few = np.flatnonzero(totals <= 9)
        best = np.full(400, BEYOND)
        least_near(tree, other, near, labels[1000:], np.full(400, -1), best, lambda done: None)
        np.testing.assert_array_equal(least_listed(lists[few], totals[few].astype(int), labels), best[few])
    else:
        assert (lists == -1).all()


def test_lists_of_two_passes_go_on():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(200, 20)), rng.normal(size=(150, 20))
    tree = Tree.of(X.copy())
    other, totals, lists = Tree.of(Y.copy(), tree.middle), np.zeros(200), np.full((200, 400), -1, np.int32)
    near = Near("euclidean", 2.0, 20.0)
    for one, offset in ((tree, 0), (other, 200)):
        assert count_near(tree, one, near, None, np.inf, totals, lambda done: None, lists, offset)
    both = np.concatenate([X[tree.order], Y[other.order]])
    pairs = ((X[tree.order][:, None] - both) ** 2).sum(axis=2) <= 20
    for listed, total, there in zip(lists, totals.astype(int), pairs, strict=True):
        np.testing.assert_array_equal(np.sort(listed[:total]), np.flatnonzero(there))


def test_an_exception_of_the_check_ends_a_pass():
    tree = Tree.of(np.random.default_rng(0).normal(size=(100, 2)))

    def look(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count_near(tree, tree, Near("euclidean", 2.0, 1.0), None, 5.0, np.zeros(100), look)
