"""Clusters by density, and the state that a rank keeps for an explorer, against scikit-learn and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.csgraph
import scipy.spatial
import sklearn.cluster
from sklearn.datasets import make_blobs

from xpulab.engine.algorithms.clustering import explore
from xpulab.engine.algorithms.clustering.density import clustered
from xpulab.engine.algorithms.clustering.hierarchy import joined_rows
from xpulab.engine.engine import Task
from xpulab.kernels.on_cpu.trees import Near
from xpulab.sharing.sources import HandleRows

X, _ = make_blobs(500, 2, centers=5, cluster_std=0.6, random_state=4)


@pytest.mark.parametrize(
    ("metric", "p", "eps"), [("euclidean", 2.0, 0.4), ("manhattan", 1.0, 0.5), ("minkowski", 3.0, 0.4)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_clusters_by_density(task: Task, metric: str, p: float, eps: float, weighted: bool) -> None:
    weights = np.random.default_rng(0).integers(0, 3, 500).astype(np.float64) if weighted else None
    near = Near(metric, p, eps**p)
    index, labels, core = clustered(task, X, 0, weights, near, 6)
    theirs = sklearn.cluster.DBSCAN(eps=eps, min_samples=6, metric=metric, p=p).fit(X, sample_weight=weights)
    assert sorted(index.tolist()) == list(range(500))
    assert set(index[core.astype(bool)].tolist()) == set(theirs.core_sample_indices_.tolist())
    found = np.empty(500, int)
    found[index] = labels
    np.testing.assert_array_equal(found, theirs.labels_)


@pytest.mark.parametrize(("k", "scale"), [(1, 1.0), (6, 1.0), (6, 0.5)])
def test_the_tree_of_rows_is_the_shortest(task: Task, k: int, scale: float) -> None:
    apart = scipy.spatial.distance.cdist(X, X, "sqeuclidean")
    cores = np.sort(apart, axis=1)[:, k - 1]
    reach = np.maximum(scale * apart, np.maximum(cores[:, None], cores))
    np.fill_diagonal(reach, 0)
    first, second, lengths = joined_rows(task, X, "euclidean", scale, k)
    expected = scipy.sparse.csgraph.minimum_spanning_tree(reach).data
    np.testing.assert_allclose(lengths, np.sort(expected), rtol=1e-12)
    tree = scipy.sparse.coo_matrix((np.ones(len(first)), (first, second)), (len(X), len(X)))
    order, before = scipy.sparse.csgraph.breadth_first_order(tree, 0, directed=False)
    assert len(order) == len(X)
    np.testing.assert_array_equal(before[second], first)  # the row from which the tree goes to this one


@pytest.mark.parametrize("kind", ["normal", "integers", "far groups"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_tree_of_wide_rows_has_the_bits_of_that_of_few_columns(task: Task, kind: str, metric: str) -> None:
    """Rows with more than eight columns have lists of their nearest rows; columns of zeros change no distance."""
    rng = np.random.default_rng(0)
    few = rng.integers(1, 4, (600, 8)).astype(float) if kind == "integers" else rng.normal(size=(600, 8))
    if kind == "far groups":
        few += 100.0 * rng.integers(0, 8, (600, 1))
    wide = np.column_stack([few, np.zeros((600, 4))])
    for k, scale in ((1, 1.0), (5, 1.0), (40, 0.7), (600, 1.0)):
        for found, expected in zip(
            joined_rows(task, wide, metric, scale, k), joined_rows(task, few, metric, scale, k), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_rows_of_a_picture_are_spread_and_those_of_more_contain_those_of_fewer() -> None:
    few, more = (explore.chosen_rows(0, 1000, points, 1000) for points in (100, 400))
    assert (len(few), len(more)) == (100, 400)
    assert set(few.tolist()) <= set(more.tolist())
    assert (abs(np.histogram(more, bins=10, range=(0, 1000))[0] - 40) <= 10).all()
    parts = [explore.chosen_rows(first, last, 100, 1000) + first for first, last in ((0, 317), (317, 1000))]
    np.testing.assert_array_equal(np.concatenate(parts), few)


def test_facts_of_columns(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> None:
    found = explore.facts(task, sent(X))
    for name, expected in (
        ("low", X.min(axis=0)),
        ("high", X.max(axis=0)),
        ("mean", X.mean(axis=0)),
        ("deviation", X.std(axis=0)),
    ):
        np.testing.assert_allclose(found[name], expected, rtol=1e-12)


def test_steps_of_an_explorer_are_iterations_and_its_picture_counts_rows(
    task: Task, sent: Callable[[np.ndarray], HandleRows]
) -> None:
    source = sent(X)
    held = explore.held_for(task, "explorer", source, 500)
    assert explore.held_for(task, "explorer", source, 500) is held
    first = explore.restart(held, X[:5], 5, 0)
    nearest = np.square(X[:, None] - X[:5]).sum(axis=2)
    assert first == pytest.approx(nearest.min(axis=1).sum())
    inertia, converged = explore.step(held, 1e-4)
    assert not converged
    means = np.array([X[nearest.argmin(axis=1) == j].mean(axis=0) for j in range(5)])
    now = np.square(X[:, None] - means).sum(axis=2)
    assert inertia == pytest.approx(now.min(axis=1).sum())
    np.testing.assert_allclose(held.centers + held.problem.shift, means, rtol=1e-12)
    facts: dict[str, Any] = explore.facts(task, source)
    view: Any = {"features": (0, 1), "low": facts["low"] - 1, "high": facts["high"] + 1, "shape": (20, 30)}
    counts = explore.picture(held, view)
    assert counts.shape == (5, 20, 30)
    np.testing.assert_array_equal(counts.sum(axis=(1, 2)), np.bincount(now.argmin(axis=1), minlength=5))
    columns = np.histogram(X[:, 0], bins=np.linspace(view["low"][0], view["high"][0], 31))[0]
    np.testing.assert_array_equal(counts.sum(axis=(0, 1)), columns)


def test_a_choice_of_rows_and_a_whole_fit(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> None:
    held = explore.held_for(task, "explorer", sent(X), 100)
    assert held.problem.n_samples == 100
    assert held.nbytes > 0
    some = X[explore.chosen_rows(0, 500, 100, 500)]
    best = sklearn.cluster.KMeans(5, n_init=10, random_state=0).fit(some).inertia_
    explore.restart(held, some[:5], 5, 0)
    before = held.centers.copy()
    assert best * 0.999 <= explore.whole_fit(held, 5, 100, 1e-4, 0) < 2 * best
    np.testing.assert_array_equal(held.centers, before)
