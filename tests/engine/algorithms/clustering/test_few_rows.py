"""k-means of few rows: whole runs in machine code, clusters that lose their rows, and the rank that computes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.cluster

from xpulab.engine.algorithms.clustering import emptied, gathered, kmeans
from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans import few
from xpulab.kernels.rows import Rows

X = np.random.default_rng(3).normal(size=(300, 3))
WEIGHTS = np.random.default_rng(4).integers(0, 3, 300).astype(np.float64)


@pytest.fixture
def problem(task: Task, given: Callable[..., Data]) -> Callable[..., Problem]:
    return lambda X, weights=None: Problem(task, given(X, weights).rows, [0, len(X)], weights)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_iterations_at_once_are_those_one_by_one(
    problem: Callable[..., Problem], weights: np.ndarray | None, dtype: Any
) -> None:
    rows = problem(X.astype(dtype), weights)
    whole = rows.few(5)
    assert whole is not None
    one = centers = X[:5].astype(dtype) - rows.shift
    labels, at_once = (rows.kernels.new_labels(rows.task.device, 300) for _ in range(2))
    course = []
    for _ in range(7):
        found = kmeans.iterate(rows, one, labels)
        one = found.centers
        course += found.course
    moved, totals, taken, changed = few.iterations(whole, rows.shift, centers, at_once, rows.total_squares, 7, 0.0)
    np.testing.assert_array_equal(moved, one)
    np.testing.assert_array_equal(taken, course)
    assert changed > 0
    assert totals[:, -1].sum() == (300 if weights is None else weights.sum())
    for each in (labels, at_once):
        np.testing.assert_array_equal(np.concatenate(list(kmeans.parts(whole, each))), labels.current.host[:300])
    *_, taken, changed = few.iterations(whole, rows.shift, centers, at_once, rows.total_squares, 300, 0.0)
    assert len(taken) < 100
    assert changed == 0


@pytest.mark.parametrize("k", [1, 2, 9])
def test_seeds_are_those_that_scikit_learn_draws(problem: Callable[..., Problem], k: int) -> None:
    rows = problem(X, WEIGHTS)
    random = np.random.RandomState(7)
    first = X[random.choice(300, p=WEIGHTS / WEIGHTS.sum())] - rows.shift
    uniforms = random.uniform(size=(k - 1, 2 + int(np.log(k))))
    assert isinstance(rows.rows, Rows)
    found = few.seed(rows.rows, rows.shift, first, uniforms) + rows.shift
    theirs, _ = sklearn.cluster.kmeans_plusplus(X, k, sample_weight=WEIGHTS, random_state=7)
    np.testing.assert_allclose(found, theirs, rtol=1e-12)


def test_an_empty_cluster_gets_the_farthest_row(problem: Callable[..., Problem]) -> None:
    far = X.copy()
    far[17] += 50
    rows = problem(far)
    centers = np.stack([far[17] * 100, np.zeros(3), np.ones(3)]) - rows.shift
    whole, labels = rows.few(3), rows.kernels.new_labels(rows.task.device, 300)
    assert whole is not None
    found, totals, course, _ = few.iterations(whole, rows.shift, centers, labels, rows.total_squares, 10, 0.0)
    assert course[-1, 1] == -1
    np.testing.assert_array_equal(found, centers)
    assert totals[0, -1] == 0
    emptied.relocate(rows, centers, labels, totals[:, :-1], totals[:, -1])
    np.testing.assert_allclose(totals[0, :-1] + rows.shift, far[17])
    assert totals[:, -1].sum() == 300
    assert totals[0, -1] == 1


def test_a_rank_without_others_fits_its_rows_as_they_are(task: Task, given: Callable[..., Data]) -> None:
    rows = given(X).rows
    answer: gathered.Fitted = {"n_iter": 3}, [np.zeros(300, np.int32)], False
    came: list[Any] = []

    def fitted(*arguments: Any) -> gathered.Fitted:
        came.extend(arguments)
        return answer

    assert gathered.on_rank_0(task, rows, [0, 300], None, fitted) is answer
    assert came[0] is rows
