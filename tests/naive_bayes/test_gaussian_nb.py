"""GaussianNB against scikit-learn: attributes, predictions, weights, parts, handles and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.naive_bayes
from sklearn.utils.estimator_checks import parametrize_with_checks

import xpulab
from xpulab.naive_bayes import GaussianNB

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
N = 3001
LABELS = np.array(["a", "b", "c"])[(RNG.random(N) ** 3 * 3).astype(int)]
#: Columns far from 0, tiny, constant in a class, and with means that depend on the class.
X = RNG.normal(size=(N, 5)) * [1, 1e-3, 1, 100, 1] + [1e3, 0, 0, -5, 0]
X[:, 2], X[:, 4] = np.where(LABELS == "b", 7.0, X[:, 2]), X[:, 4] + 1000.0 * (LABELS == "c")
WEIGHTS = RNG.integers(0, 4, N).astype(float)
METHODS = ("predict", "predict_joint_log_proba", "predict_log_proba", "predict_proba")


def assert_same(ours: Any, theirs: Any, rows: Any, plain: np.ndarray, tolerance: float) -> None:
    for name in ("classes_", "class_count_", "class_prior_", "theta_", "var_", "epsilon_"):
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert np.asarray(found).dtype == np.asarray(expected).dtype, name
        if name == "classes_":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=tolerance, err_msg=name)
    for method in METHODS:
        found, expected = getattr(ours, method)(rows), getattr(theirs, method)(plain)
        assert found.dtype == expected.dtype, method
        if method == "predict":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=10 * tolerance, atol=100 * tolerance, err_msg=method)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
def test_against_scikit_learn(current: xpulab.XPUCluster, tmp_path: Path, dtype: Any, weights: Any) -> None:
    rows, tolerance = X.astype(dtype), 1e-9 if dtype is np.float64 else 2e-4
    theirs = sklearn.naive_bayes.GaussianNB(var_smoothing=1e-6).fit(rows, LABELS, weights)
    np.save(tmp_path / "X.npy", rows)
    counts = [0] * (current.size - 1) + [N]
    for each in (rows, np.load(tmp_path / "X.npy", mmap_mode="r"), current.scatter(rows, counts=counts)):
        ours = GaussianNB(var_smoothing=1e-6).fit(each, LABELS, weights)
        assert_same(ours, theirs, each, rows, tolerance)
        assert ours.score(each, LABELS, weights) == theirs.score(rows, LABELS, weights)
    np.testing.assert_array_equal(ours.to_sklearn().predict(rows), theirs.predict(rows))


def test_labels_of_a_handle_and_parts_and_priors(on_pair: xpulab.XPUCluster) -> None:
    y = np.searchsorted(["a", "b", "c"], LABELS) + 2.0
    theirs = sklearn.naive_bayes.GaussianNB().fit(X, y)
    assert_same(GaussianNB().fit(on_pair.scatter(X), on_pair.scatter(y)), theirs, X, X, 1e-9)
    priors = [0.5, 0.0, 0.25, 0.25]
    ours, theirs = GaussianNB(priors=priors), sklearn.naive_bayes.GaussianNB(priors=priors)
    for part in (slice(0, 1000), slice(1000, None)):
        chosen = LABELS[part] != ("c" if part.start == 0 else "")
        for each in (ours, theirs):
            each.partial_fit(X[part][chosen], LABELS[part][chosen], ["a", "absent", "b", "c"], WEIGHTS[part][chosen])
    with np.errstate(divide="ignore", invalid="ignore"):
        for name in ("class_count_", "theta_", "var_", "class_prior_"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-9, err_msg=name)


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(ValueError, match="classes must be passed"):
        GaussianNB().partial_fit(X, LABELS)
    with pytest.raises(ValueError, match="do not exist in the initial classes"):
        GaussianNB().partial_fit(X, LABELS, ["a", "b"])
    with pytest.raises(ValueError, match="Number of priors must match"):
        GaussianNB(priors=[0.5, 0.5]).fit(X, LABELS)


_checks = parametrize_with_checks([GaussianNB()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
