"""The sums of metrics, and the spreads and silhouettes of clusters, against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics

from xpulab.engine.algorithms.clustering.clusterings import spreads
from xpulab.engine.algorithms.clustering.silhouette import Labelled, silhouettes
from xpulab.engine.algorithms.scores import distances, sums, tables
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task

RNG = np.random.default_rng(0)
TRUTH, GUESS = RNG.integers(0, 4, (2, 300)).astype(np.float64)
WEIGHTS = RNG.uniform(0, 2, 300)
X = RNG.normal(size=(300, 3)) + GUESS[:, None]


def test_errors_of_a_regression(task: Task, given: Callable[..., Data]) -> None:
    truth, predicted = X, X + RNG.normal(size=X.shape)
    found = sums.regression_sums(task, given(truth, WEIGHTS, predicted))
    expected = sklearn.metrics.r2_score(truth, predicted, sample_weight=WEIGHTS, multioutput="raw_values")
    np.testing.assert_allclose(1 - found["errors"] / found["spread"], expected, rtol=1e-12)
    squared = sklearn.metrics.mean_squared_error(truth, predicted, sample_weight=WEIGHTS, multioutput="raw_values")
    np.testing.assert_allclose(found["errors"] / found["weight"], squared, rtol=1e-12)


def test_labels_that_agree(task: Task, given: Callable[..., Data]) -> None:
    data = given(TRUTH, WEIGHTS, GUESS)
    np.testing.assert_array_equal(tables.distinct(task, data.rows), [0, 1, 2, 3])
    equal, weight, largest = sums.agreeing(task, data)
    np.testing.assert_array_equal(largest, [3, 3])
    assert equal / weight == pytest.approx(sklearn.metrics.accuracy_score(TRUTH, GUESS, sample_weight=WEIGHTS))


@pytest.mark.parametrize("all_pairs", [1 << 20, 3], ids=["in an array", "sorted"])
def test_pairs_of_labels(
    task: Task, given: Callable[..., Data], monkeypatch: pytest.MonkeyPatch, all_pairs: int
) -> None:
    monkeypatch.setattr(tables, "_ALL_PAIRS", all_pairs)
    labels, (rows, columns, counts, weights) = tables.contingency(task, given(TRUTH, WEIGHTS, GUESS * 2))
    np.testing.assert_array_equal(labels, [[0, 1, 2, 3], [0, 2, 4, 6]])
    for found, given_weights in ((counts, None), (weights, WEIGHTS)):
        expected = sklearn.metrics.confusion_matrix(TRUTH, GUESS, sample_weight=given_weights)
        np.testing.assert_allclose(found, expected[rows, columns])
        assert found.sum() == pytest.approx(expected.sum())


@pytest.mark.parametrize("n_labels", [4, 20])
def test_scores_of_each_label(task: Task, given: Callable[..., Data], n_labels: int) -> None:
    scores, truth = np.round(X[:, :1], 1), np.arange(300.0) % n_labels
    labels, (table,), add_up = tables.tables_of_scores(task, given(scores, WEIGHTS, truth))
    assert not add_up
    np.testing.assert_array_equal(labels, np.arange(n_labels))
    for label in range(n_labels):
        some = label == truth
        values, places = np.unique(scores[some], return_inverse=True)
        mine = table["codes"] == label
        np.testing.assert_array_equal(table["values"][mine], values)
        np.testing.assert_allclose(table["weights"][mine], np.bincount(places.ravel(), WEIGHTS[some]))


def test_losses_of_probabilities(task: Task, given: Callable[..., Data]) -> None:
    probabilities = RNG.dirichlet(np.ones(4), 300)
    data = given(probabilities, WEIGHTS, TRUTH)
    found = sums.probability_losses(task, data, np.arange(4.0), np.arange(4))
    expected = sklearn.metrics.log_loss(TRUTH, probabilities, sample_weight=WEIGHTS)
    assert found["total"] / found["weight"] == pytest.approx(expected)
    squares = np.square(np.eye(4)[TRUTH.astype(int)] - probabilities).sum(axis=1)
    assert found["squares"] / found["weight"] == pytest.approx(np.average(squares, weights=WEIGHTS))
    assert (found["lowest"], found["highest"]) == (probabilities.min(), probabilities.max())
    assert found["worst"] < 1e-12


def test_spreads_of_clusters(task: Task, given: Callable[..., Data]) -> None:
    found = spreads(task, given(X, None, GUESS), 4, None)
    for cluster in range(4):
        rows = X[cluster == GUESS]
        away = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
        assert found["counts"][cluster] == len(rows)
        np.testing.assert_allclose(found["means"][cluster], rows.mean(axis=0), rtol=1e-13)
        np.testing.assert_allclose(found["distances"][cluster], away.sum(), rtol=1e-12)
        np.testing.assert_allclose(found["squares"][cluster], (away**2).sum(), rtol=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "manhattan"])
def test_silhouettes(task: Task, given: Callable[..., Data], metric: str) -> None:
    mine = Labelled(task, given(X), GUESS.astype(np.int64), 4, metric)
    np.testing.assert_array_equal(mine.counts, [np.bincount(GUESS.astype(int))])
    found = np.empty(300)
    found[mine.places] = silhouettes(task, mine, metric, 2.0)
    np.testing.assert_allclose(found, sklearn.metrics.silhouette_samples(X, GUESS, metric=metric), atol=1e-12)


def test_rows_with_a_negative_label_have_no_silhouette(task: Task, given: Callable[..., Data]) -> None:
    labels = np.where(np.arange(300) < 50, -1, GUESS)
    mine = Labelled(task, given(X), labels.astype(np.int64), 4, "euclidean")
    assert set(mine.places.tolist()) == set(range(50, 300))
    found: dict[int, Any] = dict(zip(mine.places.tolist(), silhouettes(task, mine, "euclidean", 2.0), strict=True))
    expected = sklearn.metrics.silhouette_samples(X[50:], GUESS[50:])
    np.testing.assert_allclose([found[i] for i in range(50, 300)], expected, atol=1e-12)


def test_distances_in_parts(task: Task, given: Callable[..., Data]) -> None:
    others = np.tile(X, (60, 1))
    parts = list(distances.distances_from(task, given(X), others, "minkowski", {"p": 3}))
    assert len(parts) > 5
    expected = sklearn.metrics.pairwise_distances(X, others, "minkowski", p=3)
    np.testing.assert_allclose(np.concatenate(parts), expected)
