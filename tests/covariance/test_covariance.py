"""Covariances against scikit-learn's: fitted numbers, scores, distances, parts, handles and mapped files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.covariance
from presses import interrupted_calls
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.covariance import EmpiricalCovariance, IncrementalEmpiricalCovariance
from xpulab.covariance._products import root

pytestmark = pytest.mark.cluster
two_sizes = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
three = pytest.mark.parametrize("cluster", [3], indirect=True, ids=["3-engines"])


def made(n: int, d: int, dtype: Any, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(n * d)
    return (rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + offset * (np.arange(d) % 2)).astype(dtype)


@two_sizes
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
def test_the_numbers_of_scikit_learn(current: xpulab.XPUCluster, dtype: Any, tolerance: float, centered: bool) -> None:
    for n, d, offset in ((1001, 7, 0.0), (300, 40, 1e4), (4, 6, 1.0)):
        X = made(n, d, dtype, offset)
        ours = EmpiricalCovariance(assume_centered=centered).fit(X)
        exact = sklearn.covariance.EmpiricalCovariance(assume_centered=centered).fit(X.astype(np.float64))
        plainly = sklearn.covariance.EmpiricalCovariance(assume_centered=centered).fit(X)
        for name in ("location_", "covariance_"):
            found, value = getattr(ours, name), getattr(exact, name)
            size = np.abs(value).max()
            assert found.dtype == np.float64
            assert np.abs(found - value).max() <= tolerance * size
            if dtype == np.float32:  # as precise as scikit-learn's, or within the rounding error of the largest number
                allowed = max(np.abs(getattr(plainly, name) - value).max(), np.finfo(dtype).eps * size)
                assert np.abs(found - value).max() <= allowed
        np.testing.assert_array_equal(ours.covariance_, ours.covariance_.T)
        if n == 1001:
            rounding = 1e3 * tolerance
            assert ours.score(X) == pytest.approx(exact.score(X), rel=rounding)
            np.testing.assert_allclose(ours.mahalanobis(X), exact.mahalanobis(X.astype(np.float64)), rtol=rounding)
            np.testing.assert_allclose(ours.precision_, exact.precision_, rtol=rounding, atol=rounding)
            assert ours.error_norm(exact.covariance_) <= tolerance


@three
def test_distances_far_from_zero_are_precise(current: xpulab.XPUCluster) -> None:
    """The mean is not representable in the dtype of the rows. The engines correct for this."""
    X = made(500, 3, np.float32, 1e4)
    ours = EmpiricalCovariance().fit(X)
    expected = ours.to_sklearn().mahalanobis(X.astype(np.float64))
    np.testing.assert_allclose(ours.mahalanobis(X), expected, rtol=1e-4, atol=1e-5)


@three
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-12)])
def test_parts_give_the_same_as_all_rows(
    current: xpulab.XPUCluster, dtype: Any, tolerance: float, centered: bool
) -> None:
    X = made(700, 6, dtype, 1e3)
    parts = IncrementalEmpiricalCovariance(assume_centered=centered, store_precision=True)
    for part in np.split(X, [2, 300, 301]):
        parts.partial_fit(part)
    whole = EmpiricalCovariance(assume_centered=centered).fit(X)
    size = np.abs(whole.covariance_).max()
    np.testing.assert_allclose(parts.covariance_, whole.covariance_, rtol=0, atol=tolerance * size)
    np.testing.assert_allclose(parts.location_, whole.location_, atol=tolerance * 1e3)
    assert parts.n_samples_seen_ == 700
    assert parts.precision_.shape == (6, 6)
    assert not hasattr(parts, "batch_size_")
    parts.fit(X[:50])
    assert (parts.n_samples_seen_, parts.batch_size_) == (50, 30)
    assert clone(parts).set_params(batch_size=7).fit(X).batch_size_ == 7
    plain = parts.to_sklearn()
    assert type(plain) is sklearn.covariance.EmpiricalCovariance
    np.testing.assert_array_equal(plain.covariance_, parts.covariance_)
    assert IncrementalEmpiricalCovariance().fit(X).precision_ is None
    with pytest.raises(ValueError, match="'batch_size' parameter of IncrementalEmpiricalCovariance must be"):
        IncrementalEmpiricalCovariance(batch_size=0).fit(X)


@three
def test_handles_mapped_files_and_frames(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = made(1000, 5, np.float64)
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    handle = current.scatter(X, counts=[0, 990, 10])
    expected = EmpiricalCovariance().fit(X)
    for rows in (handle, mapped, pd.DataFrame(X, columns=list("abcde"))):
        ours = EmpiricalCovariance().fit(rows)
        np.testing.assert_allclose(ours.covariance_, expected.covariance_, rtol=1e-11, atol=1e-12)
        distances = ours.mahalanobis(rows)
        assert isinstance(distances, np.ndarray)
        np.testing.assert_allclose(distances, expected.mahalanobis(X), rtol=1e-9)
        assert ours.score(rows) == pytest.approx(expected.score(X))
    assert list(ours.feature_names_in_) == list("abcde")
    again = pickle.loads(pickle.dumps(expected))
    np.testing.assert_array_equal(again.mahalanobis(X), expected.mahalanobis(X))
    assert again.report_.method == "fit"
    assert not hasattr(clone(expected), "covariance_")


@three
def test_what_is_refused(current: xpulab.XPUCluster) -> None:
    X = made(20, 3, np.float64)
    ours = EmpiricalCovariance()
    for method in (ours.mahalanobis, ours.score):
        with pytest.raises(NotFittedError):
            method(X)
    with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required"):
        ours.fit(sparse.csr_matrix(X))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        ours.fit(np.where(X > 1, np.nan, X))
    with pytest.warns(UserWarning, match="Only one sample available"):
        ours.fit(X[:1])
    ours.fit(X)
    with pytest.raises(ValueError, match="X has 2 features, but EmpiricalCovariance is expecting 3"):
        ours.mahalanobis(X[:, :2])
    with interrupted_calls():
        with pytest.raises(KeyboardInterrupt, match=r"nothing was fitted: call it again"):
            ours.fit(X)
        with pytest.raises(NotFittedError):
            ours.mahalanobis(X)


def test_a_root_of_a_singular_matrix() -> None:
    A = made(8, 3, np.float64)
    found = root(A @ A.T)
    assert found.shape == (8, 3)
    np.testing.assert_allclose(found @ found.T, A @ A.T, atol=1e-12)
    assert not root(np.zeros((3, 3))).any()


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.covariance.tests.test_covariance"],
        ["xpulab.covariance:EmpiricalCovariance"],
        least=2,
        only="covariance and not shrunk",
    )


_checks = parametrize_with_checks([EmpiricalCovariance(), IncrementalEmpiricalCovariance()])


# The list of checks in scikit-learn 1.7 has a generator, and pytest warns about it.
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
@pytest.mark.filterwarnings("ignore:Only one sample available:UserWarning")
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
