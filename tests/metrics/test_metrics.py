"""Metrics of handles and arrays are equal to scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics

import xpulab
from xpulab import metrics

pytestmark = pytest.mark.cluster

ONE_AND_THREE = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])


def _both(cluster: xpulab.XPUCluster, y: np.ndarray) -> list[Any]:
    """Return an array, and a handle for it. With several ranks, one rank has no rows."""
    counts = [0, *[len(y) // (cluster.size - 1)] * (cluster.size - 1)] if cluster.size > 1 else [len(y)]
    counts[-1] += len(y) - sum(counts)
    return [y, cluster.scatter(y, counts=counts)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.fraction(2)
@ONE_AND_THREE
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_outputs", [0, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_regression(
    current: xpulab.XPUCluster, rng: np.random.Generator, dtype: Any, n_outputs: int, weighted: bool
) -> None:
    shape = (1001, n_outputs) if n_outputs else (1001,)
    truth = (rng.normal(size=shape) + 1e4).astype(dtype)
    predicted = (truth + rng.normal(size=shape)).astype(dtype)
    weights = rng.random(1001) if weighted else None
    ways: list[Any] = ["uniform_average", "raw_values"] + ([np.array([1.0, 2.0, 5.0])] if n_outputs else [])
    for y in _both(current, truth):
        for how in ways:
            for function, extra in (("r2_score", ["variance_weighted"]), ("mean_squared_error", [])):
                for each in [how, *extra]:
                    ours = getattr(metrics, function)(y, predicted, sample_weight=weights, multioutput=each)
                    theirs = getattr(sklearn.metrics, function)(
                        truth.astype(float), predicted.astype(float), sample_weight=weights, multioutput=each
                    )
                    np.testing.assert_allclose(ours, theirs, rtol=1e-6 if dtype is np.float32 else 1e-10)


@pytest.mark.parametrize("force_finite", [True, False])
@pytest.mark.parametrize("off", [0.0, 1.0])
def test_a_constant_truth(pair: xpulab.XPUCluster, on_pair: Any, force_finite: bool, off: float) -> None:
    truth, predicted = np.full(5, 3.0), np.full(5, 3.0 + off)
    ours = metrics.r2_score(truth, predicted, force_finite=force_finite)
    with np.errstate(all="ignore"):  # scikit-learn divides by zero
        np.testing.assert_equal(ours, sklearn.metrics.r2_score(truth, predicted, force_finite=force_finite))
    with pytest.warns(sklearn.exceptions.UndefinedMetricWarning):
        assert np.isnan(metrics.r2_score([1.0], [2.0]))


@ONE_AND_THREE
@pytest.mark.parametrize("weighted", [False, True])
def test_classification(current: xpulab.XPUCluster, rng: np.random.Generator, weighted: bool) -> None:
    truth, predicted = rng.integers(0, 4, 999), rng.integers(1, 6, 999)
    weights = rng.random(999) if weighted else None
    for y in _both(current, truth.astype(np.float32)):
        for normalize in (True, False):
            ours = metrics.accuracy_score(y, predicted, normalize=normalize, sample_weight=weights)
            theirs = sklearn.metrics.accuracy_score(truth, predicted, normalize=normalize, sample_weight=weights)
            assert ours == pytest.approx(theirs)
        for labels in (None, [3, 1], [1, 9, 2]):
            for norm in (None, "true", "pred", "all"):
                matrix = metrics.confusion_matrix(y, predicted, labels=labels, sample_weight=weights, normalize=norm)
                expected = sklearn.metrics.confusion_matrix(
                    truth, predicted, labels=labels, sample_weight=weights, normalize=norm
                )
                np.testing.assert_allclose(matrix, expected)
                assert matrix.dtype == expected.dtype


def test_labels_that_are_strings(on_pair: Any) -> None:
    truth, predicted = ["b", "a", "c", "b"], ["b", "c", "c", "a"]
    assert metrics.accuracy_score(truth, predicted) == 0.5
    for labels in (None, ["c", "a"]):
        np.testing.assert_array_equal(
            metrics.confusion_matrix(truth, predicted, labels=labels),
            sklearn.metrics.confusion_matrix(truth, predicted, labels=labels),
        )
    proba = np.array([[0.1, 0.8, 0.1], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])
    assert metrics.log_loss(truth, proba) == pytest.approx(sklearn.metrics.log_loss(truth, proba))
    with pytest.raises(ValueError, match="the same kind"):
        metrics.accuracy_score(truth, [1, 2, 3, 4])


@ONE_AND_THREE
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_log_loss(current: xpulab.XPUCluster, rng: np.random.Generator, n_classes: int, weighted: bool) -> None:
    truth = rng.integers(0, n_classes, 500)
    proba = rng.dirichlet(np.ones(n_classes), 500)
    proba[0] = np.eye(n_classes)[truth[0]]  # a probability of 0 is kept away from it
    weights = rng.random(500) if weighted else None
    for y in _both(current, truth.astype(np.float64)):
        for normalize in (True, False):
            ours = metrics.log_loss(y, proba, normalize=normalize, sample_weight=weights)
            theirs = sklearn.metrics.log_loss(truth, proba, normalize=normalize, sample_weight=weights)
            assert ours == pytest.approx(theirs, rel=1e-10)
    if n_classes == 2:
        assert metrics.log_loss(truth, proba[:, 1]) == pytest.approx(sklearn.metrics.log_loss(truth, proba[:, 1]))
    part = np.flatnonzero(truth < n_classes - 1)
    if n_classes == 4:
        assert metrics.log_loss(truth[part], proba[part], labels=range(4)) == pytest.approx(
            sklearn.metrics.log_loss(truth[part], proba[part], labels=range(4))
        )


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    handle = on_pair.scatter(np.arange(6.0), counts=[2, 4])
    with pytest.raises(ValueError, match=r"counts=\[2, 4\]"):
        metrics.r2_score(handle, on_pair.scatter(np.arange(6.0)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        metrics.mean_squared_error(handle, np.arange(5.0))
    with pytest.raises(ValueError, match="different number of output"):
        metrics.mean_squared_error(handle, np.ones((6, 2)))
    with pytest.raises(ValueError, match="multioutput"):
        metrics.mean_squared_error(handle, np.ones(6), multioutput="variance_weighted")
    with pytest.raises(ValueError, match="multilabel-indicator"):
        metrics.matthews_corrcoef(np.eye(3, dtype=int), np.eye(3, dtype=int))
    with pytest.raises(ValueError, match="greater than 1"):
        metrics.log_loss([0, 1], [[0.5, 1.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match="only one label"):
        metrics.log_loss([1, 1], [[0.5, 0.5], [0.5, 0.5]])
    assert on_pair.last_report is not None
    assert on_pair.last_report.title == "metrics.log_loss"


@pytest.mark.parametrize("weights", [None, [1, 2, 3]])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_type_of_an_accuracy_is_that_of_the_installed_scikit_learn(
    normalize: bool, weights: Any, on_pair: xpulab.XPUCluster
) -> None:
    found, expected = (
        module.accuracy_score([1, 2, 2], [1, 2, 1], normalize=normalize, sample_weight=weights)
        for module in (metrics, sklearn.metrics)
    )
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
def test_integers_that_float64_would_round_stay_apart(on_pair: Any, dtype: Any) -> None:
    first = 2**60 if dtype is np.int64 else 2**64 - 10
    truth = np.array([first + i % 3 for i in range(12)], dtype)
    scores = np.eye(3)[np.arange(12) % 3] * 0.7 + 0.1
    for predicted in (truth, truth[::-1], np.arange(12) % 2):
        assert metrics.accuracy_score(truth, predicted) == sklearn.metrics.accuracy_score(truth, predicted)
        ours, theirs = (each.adjusted_rand_score(truth, predicted) for each in (metrics, sklearn.metrics))
        assert ours == pytest.approx(theirs)
    for function in ("confusion_matrix", "f1_score", "recall_score"):
        how = {} if function == "confusion_matrix" else {"average": None}
        ours, theirs = (getattr(each, function)(truth, truth[::-1], **how) for each in (metrics, sklearn.metrics))
        np.testing.assert_allclose(ours, theirs)
    assert metrics.log_loss(truth, scores) == pytest.approx(sklearn.metrics.log_loss(truth, scores))
    ours, theirs = (each.roc_auc_score(truth, scores, multi_class="ovr") for each in (metrics, sklearn.metrics))
    assert ours == pytest.approx(theirs)


def test_strings_that_look_like_numbers_are_treated_as_in_scikit_learn(on_pair: xpulab.XPUCluster) -> None:
    strings, numbers = np.array(["1", "2", "3", "5"]), [1, 2, 4, 5]
    for name in ("r2_score", "mean_squared_error"):
        found, expected = (getattr(module, name)(strings, numbers) for module in (metrics, sklearn.metrics))
        assert found == pytest.approx(expected)
    labels = [0, 0, 1, 1]
    found, expected = (each.calinski_harabasz_score(strings[:, None], labels) for each in (metrics, sklearn.metrics))
    assert found == pytest.approx(expected)
    for name in ("silhouette_score", "silhouette_samples", "davies_bouldin_score"):
        for module in (metrics, sklearn.metrics):
            with pytest.raises(ValueError, match="strings"):
                getattr(module, name)(strings[:, None], labels)
