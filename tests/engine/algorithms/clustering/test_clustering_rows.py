"""k-means in all its forms, on one rank, against scikit-learn: starts, iterations, whole fits, batches, and trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from sklearn.datasets import make_blobs

from xpulab.engine.algorithms.clustering import batches, bisecting, kmeans, minibatch, starts
from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task

X, _ = make_blobs(700, 3, centers=6, cluster_std=1.5, random_state=2)
WEIGHTS = np.random.default_rng(0).integers(0, 4, 700).astype(np.float64)


@pytest.fixture
def problem(task: Task, given: Callable[..., Data]) -> Callable[..., Problem]:
    """A function that makes the problem of rows."""
    return lambda X, weights=None: Problem(task, given(X, weights).rows, [0, len(X)], weights)


def test_a_problem_knows_its_mean_and_squares(problem: Callable[..., Problem]) -> None:
    found = problem(X)
    np.testing.assert_allclose(found.mean, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.squares, 700 * X.var(axis=0), rtol=1e-12)
    assert found.total_squares == pytest.approx(700 * X.var(axis=0).sum())
    assert found.tolerance(1e-4) == pytest.approx(1e-4 * X.var(axis=0).mean())
    np.testing.assert_allclose(found.take(np.array([699, 3])) + found.shift, X[[699, 3]], rtol=1e-13)
    assert problem(X, WEIGHTS).total_squares == pytest.approx(WEIGHTS @ np.square(X - X.mean(axis=0)).sum(axis=1))
    part = found.subset(np.array([1, 5, 8]))
    assert (part.n_samples, part.bounds) == (3, [0, 3])
    np.testing.assert_allclose(part.mean, X[[1, 5, 8]].mean(axis=0), rtol=1e-13)


def test_large_numbers_are_divided_by_a_power_of_two(problem: Callable[..., Problem]) -> None:
    found = problem((X * 1e30).astype(np.float32))
    assert np.log2(found.unit) == round(np.log2(found.unit)) > 50
    np.testing.assert_allclose(found.outward(found.mean), (X * 1e30).mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_first_centres_are_those_that_scikit_learn_draws(problem: Callable[..., Problem], weighted: bool) -> None:
    weights = WEIGHTS if weighted else None
    rows = problem(X, weights)
    found = starts.start(rows, "random", 5, np.random.RandomState(3)) + rows.shift
    chances = np.ones(700) / 700 if weights is None else weights / weights.sum()
    chosen = np.random.RandomState(3).choice(700, 5, replace=False, p=chances)
    np.testing.assert_allclose(found, X[chosen], rtol=1e-12)
    found = starts.start(rows, "k-means++", 5, np.random.RandomState(3)) + rows.shift
    centers, _ = sklearn.cluster.kmeans_plusplus(X, 5, sample_weight=weights, random_state=np.random.RandomState(3))
    np.testing.assert_allclose(found, centers, rtol=1e-12)


def test_an_iteration_moves_centres_to_the_means_of_their_rows(problem: Callable[..., Problem]) -> None:
    rows, centers = problem(X), X[:4] - X.mean(axis=0)
    labels = rows.kernels.new_labels(rows.task.device, 700)
    found = kmeans.iterate(rows, centers, labels)
    nearest = np.square(X[:, None] - X[:4]).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(np.concatenate(list(kmeans.parts(rows.rows, labels))), nearest)
    means = np.array([X[nearest == j].mean(axis=0) for j in range(4)])
    np.testing.assert_allclose(found.centers + rows.shift, means, rtol=1e-12)
    assert found.inertia == pytest.approx(np.square(X - X[:4][nearest]).sum())
    assert found.center_shift == pytest.approx(np.square(means - X[:4]).sum())
    assert found.changed
    assert not found.emptied
    assert kmeans.inertia(rows, found.centers, labels) == pytest.approx(np.square(X - means[nearest]).sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_is_that_of_scikit_learn(problem: Callable[..., Problem], weighted: bool) -> None:
    weights = WEIGHTS if weighted else None
    begin = [X[:6], X[100:106]]
    rows = problem(X, weights)
    found = kmeans.fit(rows, begin, 6, 2, 50, 1e-4, np.random.RandomState(0))
    every = [sklearn.cluster.KMeans(6, init=one, n_init=1, max_iter=50).fit(X, sample_weight=weights) for one in begin]
    theirs = min(every, key=lambda each: each.inertia_)
    np.testing.assert_allclose(found.centers + rows.shift, theirs.cluster_centers_, rtol=1e-10)
    assert (found.inertia, found.n_iter) == (pytest.approx(theirs.inertia_), theirs.n_iter_)
    assert found.ending.startswith("Converged at iteration")
    assert [run for run, *_ in rows.history] == [1] * every[0].n_iter_ + [2] * every[1].n_iter_


def test_a_stopped_fit_goes_on_from_its_state(problem: Callable[..., Problem], task: Task) -> None:
    whole = kmeans.fit(problem(X), [X[:6]], 6, 1, 50, 0.0, np.random.RandomState(0))
    rows = problem(X)
    task.engine.board.cancel(task.number)
    with pytest.raises(Interrupted) as stopped:
        kmeans.fit(rows, [X[:6]], 6, 1, 50, 0.0, np.random.RandomState(0))
    task.engine.board.forget(task.number)
    assert stopped.value.result["n_iter"] == 1
    state: Any = stopped.value.result["state"]
    found = kmeans.fit(problem(X), [X[:6]], 6, 1, 50, 0.0, np.random.RandomState(0), resume=state)
    np.testing.assert_allclose(found.centers, whole.centers, rtol=1e-12)
    assert found.n_iter == whole.n_iter


@pytest.mark.parametrize("weighted", [False, True])
def test_batches_are_drawn_as_by_numpy(problem: Callable[..., Problem], weighted: bool) -> None:
    weights = WEIGHTS if weighted else None
    draws = batches.Draws(problem(X, weights), None if weighted else 700.0)
    mine, places = draws.places(np.random.RandomState(5).random_sample(200))
    chances = None if weights is None else weights / weights.sum()
    expected = np.random.RandomState(5).choice(700, 200, p=np.full(700, 1 / 700) if chances is None else chances)
    np.testing.assert_array_equal(mine, np.arange(200))
    np.testing.assert_array_equal(places, expected)


def test_a_batch_moves_centres_by_the_share_of_its_rows(problem: Callable[..., Problem]) -> None:
    rows = problem(X)
    state = minibatch.State(X[:2].copy(), np.array([10.0, 4.0]), None)
    sums = np.array([X[20:25].sum(axis=0) - 5 * rows.shift, np.zeros(3)])
    found = minibatch.update(rows, state, minibatch.Total(sums, np.array([5.0, 0.0]), 1.0, False))
    np.testing.assert_allclose(found[0], (10 * X[0] + X[20:25].sum(axis=0)) / 15)
    np.testing.assert_array_equal(found[1], X[1])
    np.testing.assert_array_equal(state.counts, [15, 4])
    counts = np.array([1.0, 50.0, 2.0, 60.0])
    assert minibatch.low_counts(counts, 0.1, 100).tolist() == [True, False, True, False]
    assert minibatch.low_counts(counts, 0.1, 2).tolist() == [True, False, False, False]  # half of two rows


def test_a_fit_on_batches_takes_one_step_for_each(problem: Callable[..., Problem]) -> None:
    rows = problem(X)
    state = minibatch.State(X[:6].copy(), np.zeros(6), np.random.RandomState(0).get_state())
    options = minibatch.Options(20, 100, 0.0, None, 0.0, 0)
    assert minibatch.fit(rows, state, options, batches.Draws(rows, 700.0)) == []
    assert state.iteration == 20
    assert state.counts.sum() == 2000
    random, centers, counts = np.random.RandomState(0), X[:6].copy(), np.zeros(6)
    for _ in range(20):
        batch = X[random.choice(700, 100, p=np.full(700, 1 / 700))]
        nearest = np.square(batch[:, None] - centers).sum(axis=2).argmin(axis=1)
        for j in set(nearest.tolist()):
            of_centre = batch[nearest == j]
            centers[j] = (centers[j] * counts[j] + of_centre.sum(axis=0)) / (counts[j] + len(of_centre))
            counts[j] += len(of_centre)
    np.testing.assert_allclose(state.centers, centers, rtol=1e-10)
    np.testing.assert_array_equal(state.counts, counts)
    again = minibatch.State.inward(state.outward(rows), rows)
    np.testing.assert_array_equal(again.centers, state.centers)


@pytest.mark.parametrize("strategy", ["biggest_inertia", "largest_cluster"])
def test_a_tree_of_splits_is_that_of_scikit_learn(problem: Callable[..., Problem], strategy: str) -> None:
    rows = problem(X)
    options = bisecting.Options(5, "k-means++", 1, 100, 1e-4, strategy)
    leaves, splits = bisecting.bisect(rows, options, np.random.RandomState(1))
    parameters: dict[str, Any] = {"init": "k-means++", "max_iter": 100, "tol": 1e-4, "bisecting_strategy": strategy}
    theirs = sklearn.cluster.BisectingKMeans(5, random_state=np.random.RandomState(1), **parameters).fit(X)
    labels = np.empty(700, int)
    for number, leaf in enumerate(leaves):
        labels[leaf.places] = number
    assert len(set(zip(labels.tolist(), theirs.labels_.tolist(), strict=True))) == 5  # the same clusters
    assert sum(leaf.inertia for leaf in leaves) == pytest.approx(theirs.inertia_)
    tree = [(chosen, centers + rows.shift) for chosen, centers, _ in splits]
    np.testing.assert_array_equal(bisecting.descend(rows.rows, tree), labels)


def test_a_cluster_of_one_row_is_not_split(problem: Callable[..., Problem]) -> None:
    options = bisecting.Options(3, "random", 1, 10, 1e-4, "biggest_inertia")
    with pytest.raises(ValueError, match="the next cluster to split has 1 rows of positive weight"):
        bisecting.bisect(problem(X[:2]), options, np.random.RandomState(0))
