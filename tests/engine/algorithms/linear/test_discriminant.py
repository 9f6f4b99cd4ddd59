"""The scatter within classes, and targets by class, on a rank alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from xpulab.engine.algorithms.linear.discriminant import lengths_of_each, scatter_of, scatter_of_each
from xpulab.engine.algorithms.linear.of_classes import any_data_of_classes, data_of_classes
from xpulab.engine.dataset import Data, on_host
from xpulab.engine.engine import Task
from xpulab.sharing.linear_models import OfClasses
from xpulab.sharing.sources import HandleRows

RNG = np.random.default_rng(0)
Y = np.array([0, 1, 2, 1, 0, 2, 1, 1, 0, 2, 2, 0])
X = RNG.normal(size=(12, 4)) + 1e3 * Y[:, None]
WEIGHTS = RNG.uniform(0.5, 2, 12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("n_features", [4, 30])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
def test_scatter(
    task: Task, given: Callable[..., Data], dtype: type, exact: bool, n_features: int, weights: np.ndarray | None
) -> None:
    rows: np.ndarray = np.hstack([X, RNG.normal(size=(12, 26))])[:, :n_features].astype(dtype)
    data = given(rows, weights, np.eye(3, dtype=dtype)[Y])
    found = scatter_of(task, data, exact)
    assert found.roots == (exact or n_features > 12)
    rows, mine = rows.astype(float), np.ones(12) if weights is None else weights.astype(dtype).astype(float)
    means = np.stack([np.average(rows[k == Y], axis=0, weights=mine[k == Y]) for k in range(3)])
    np.testing.assert_allclose(found.means, means, rtol=1e-6)
    np.testing.assert_allclose(found.weight, mine.sum())
    for sums, middle in ((found.within, means[Y]), (found.total, np.average(rows, axis=0, weights=mine))):
        right = (rows - middle).T @ (mine[:, None] * (rows - middle))
        made = sums.T @ sums if found.roots else sums
        np.testing.assert_allclose(made, right, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scatter_of_each_class(task: Task, given: Callable[..., Data], dtype: type) -> None:
    rows = (X - 1e3 * Y[:, None] + 10).astype(dtype)
    rows[:, 3] = 7
    data = given(rows, None, Y.astype(dtype))
    found = lengths_of_each(task, data, Y, 3, scatter_of_each(task, data, Y, 3, whole=True))
    assert found.scales is not None
    assert found.lengths is not None
    np.testing.assert_array_equal(found.counts, [*np.bincount(Y), len(Y)])
    for k in range(4):
        own = rows[(k == Y) | (k == 3)].astype(float)
        scaler = StandardScaler().fit(own)
        np.testing.assert_allclose(found.scales[k], scaler.scale_, rtol=1e-6)
        lengths = np.square(scaler.transform(own)).sum(axis=1)
        np.testing.assert_allclose(found.lengths[k], np.square(lengths).sum(), rtol=1e-5)
        np.testing.assert_allclose(found.means[k], own.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(found.within[k], np.cov(own.T) * (len(own) - 1), rtol=1e-5, atol=1e-5)


def test_labels_stand_for_targets_and_weights(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> None:
    labels, table, by_class = np.array([5.0, 9.0, 11.0]), RNG.normal(size=(3, 2)), np.array([1.0, 2.0, 3.0])
    for known, given in ((labels, labels[Y]), (None, Y.astype(float))):
        data = data_of_classes(task, sent(X), None, sent(given), OfClasses(known, table, by_class))
        rows, targets = any_data_of_classes(task, sent(X), None, sent(given), OfClasses(known, table))
        assert data.targets is not None
        for each in (data.targets, targets):
            np.testing.assert_array_equal(on_host(each, np.float64), table[Y])
        np.testing.assert_array_equal(data.rows.weights_on_cpu(), by_class[Y])
        np.testing.assert_array_equal(rows.weights_on_cpu(), np.ones(12))
