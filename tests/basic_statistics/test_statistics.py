"""Statistics of columns against NumPy in float64: options, weights, parts, handles and mapped files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from presses import interrupted_calls
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import xpulab
from xpulab.basic_statistics import BasicStatistics, IncrementalBasicStatistics

pytestmark = pytest.mark.cluster
two_sizes = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
three = pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])


def made(n: int, dtype: Any) -> np.ndarray:
    """Return rows with columns far from 0, tiny, constant and sorted."""
    X = np.random.default_rng(n).normal(size=(n, 5)) * [1, 1, 1e-3, 0, 1] + [0.5, 1e4, 0.1, 2.5, 1]
    X[:, 4].sort()
    return X.astype(dtype)


def expected(X: np.ndarray) -> dict[str, np.ndarray]:
    """Compute all statistics with NumPy in float64."""
    X = X.astype(np.float64)
    deviation = X.std(axis=0, ddof=1)
    return {
        "min": X.min(axis=0),
        "max": X.max(axis=0),
        "sum": X.sum(axis=0),
        "mean": X.mean(axis=0),
        "variance": X.var(axis=0, ddof=1),
        "variation": deviation / X.mean(axis=0),
        "sum_squares": np.square(X).sum(axis=0),
        "standard_deviation": deviation,
        "sum_squares_centered": np.square(X - X.mean(axis=0)).sum(axis=0),
        "second_order_raw_moment": np.square(X).mean(axis=0),
    }


def assert_same(ours: Any, X: np.ndarray, tolerance: float) -> None:
    for name, value in expected(X).items():
        found = getattr(ours, f"{name}_")
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, value, rtol=tolerance, atol=1e-12, err_msg=name)


@two_sizes
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-11)])
def test_the_numbers_of_numpy(current: xpulab.XPUCluster, dtype: Any, tolerance: float) -> None:
    for n in (2, 1003):
        X = made(n, dtype)
        assert_same(BasicStatistics().fit(X), X, tolerance)
    weights = np.random.default_rng(0).uniform(-0.5, 1.0, len(X)).astype(dtype)
    assert_same(BasicStatistics().fit(X, sample_weight=weights), weights[:, None] * X, 30 * tolerance)
    handle = current.scatter(X, counts=[1003] if current.size == 1 else [0, 1000, 3])
    assert_same(BasicStatistics().fit(handle), X, tolerance)
    assert_same(BasicStatistics().fit(handle, sample_weight=weights), weights[:, None] * X, 30 * tolerance)


@three
def test_only_the_chosen_statistics_are_set(current: xpulab.XPUCluster) -> None:
    X = made(30, np.float64)
    ours = BasicStatistics(["mean", "max"]).fit(X)
    assert {name for name in vars(ours) if name.endswith("_")} == {"mean_", "max_", "n_features_in_", "report_"}
    ours.set_params(result_options="sum").fit(X)
    assert not hasattr(ours, "mean_")
    np.testing.assert_allclose(ours.sum_, X.sum(axis=0))
    assert BasicStatistics("mean").fit(X[:, 0]).mean_ == pytest.approx(X[:, 0].mean())  # one number, as in sklearnex
    for options in (["mean", "median"], "median"):
        with pytest.raises(ValueError, match="result_options"):
            BasicStatistics(options).fit(X)
    single = BasicStatistics().fit(X[:1])
    assert np.isnan(single.variance_).all()
    np.testing.assert_array_equal(single.mean_, X[0])


@three
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-11)])
def test_parts_give_the_same_as_all_rows(current: xpulab.XPUCluster, dtype: Any, tolerance: float) -> None:
    X = made(700, dtype)
    weights = np.random.default_rng(0).uniform(0, 2, len(X)).astype(dtype)
    parts, weighted = IncrementalBasicStatistics(), IncrementalBasicStatistics()
    for part in np.split(np.arange(700), [1, 300, 301]):
        parts.partial_fit(X[part])
        weighted.partial_fit(X[part], sample_weight=weights[part])
    assert_same(parts, X, tolerance)
    assert_same(weighted, weights[:, None] * X, 30 * tolerance)
    assert parts.n_samples_seen_ == 700
    assert_same(parts.fit(X[:50]), X[:50], tolerance)
    assert (parts.n_samples_seen_, parts.batch_size_) == (50, 25)
    again = pickle.loads(pickle.dumps(parts))
    assert_same(again.partial_fit(X[50:]), X, tolerance)


@three
def test_mapped_files_frames_and_refusals(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = made(400, np.float64)
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    frame = pd.DataFrame(X, columns=list("abcde"))
    for rows in (mapped, frame):
        assert_same(ours := BasicStatistics().fit(rows), X, 1e-11)
    assert list(ours.feature_names_in_) == list("abcde")
    assert ours.report_.method == "fit"
    assert not hasattr(clone(ours), "mean_")
    with pytest.raises(TypeError, match="scikit-learn has no BasicStatistics"):
        ours.to_sklearn()
    with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required"):
        ours.fit(sparse.csr_matrix(X))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        ours.fit(np.where(X > 2, np.nan, X))


@three
def test_an_interrupt_leaves_what_was_there(current: xpulab.XPUCluster) -> None:
    from sklearn.utils.validation import check_is_fitted

    X = made(50, np.float64)
    ours = IncrementalBasicStatistics().fit(X)

    with interrupted_calls(), pytest.raises(KeyboardInterrupt, match="its rows do not count"):
        ours.partial_fit(X)
    assert ours.n_samples_seen_ == 50
    assert_same(ours, X, 1e-11)
    with interrupted_calls(), pytest.raises(KeyboardInterrupt, match="nothing was fitted"):
        ours.fit(X)
    with pytest.raises(NotFittedError):
        check_is_fitted(ours)


def _cannot(estimator: Any) -> dict[str, str]:
    """Return the checks that an estimator cannot pass, and why."""
    if isinstance(estimator, IncrementalBasicStatistics):
        return {"check_fit_score_takes_y": "the arguments of partial_fit are those of scikit-learn-intelex"}
    return {"check_fit1d": "rows of one number each may have one dimension, as in scikit-learn-intelex"}


_checks = parametrize_with_checks([BasicStatistics(), IncrementalBasicStatistics()], expected_failed_checks=_cannot)


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
