"""TruncatedSVD against scikit-learn's: both algorithms, tall and wide rows, handles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.decomposition

from xpulab import XPUCluster
from xpulab.decomposition import PCA, TruncatedSVD

pytestmark = pytest.mark.cluster


@pytest.mark.fraction(2)
@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ["arpack", "randomized"])
@pytest.mark.parametrize(("n", "d", "n_components"), [(900, 12, 3), (300, 40, 8), (30, 70, 8), (8, 9, 7), (8, 9, 9)])
def test_as_scikit_learn(current: XPUCluster, dtype: Any, algorithm: Any, n: int, d: int, n_components: int) -> None:
    random = np.random.default_rng(n)
    turn = np.linalg.qr(random.normal(size=(d, d)))[0]
    X = ((random.normal(size=(n, d)) * np.logspace(0, -1, d)) @ turn + 3).astype(dtype)
    arguments: dict[str, Any] = {"n_components": n_components, "algorithm": algorithm, "random_state": 0}
    handle = current.scatter(X, counts=None if current.size == 1 else [n - 2, 0, 2])
    if algorithm == "arpack" and n_components >= min(n, d):
        with pytest.raises(ValueError, match=r"strictly less than min\(n_samples, n_features\)=8"):
            TruncatedSVD(**arguments).fit(handle)
        return
    theirs, ours = sklearn.decomposition.TruncatedSVD(**arguments).fit(X), TruncatedSVD(**arguments).fit(handle)
    tolerance = 2e-3 if dtype == np.float32 else 1e-6
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_"):
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * expected.max())
    along = (ours.components_ * theirs.components_).sum(axis=1)
    np.testing.assert_allclose(along[:3], 1, atol=10 * tolerance)
    projected = theirs.transform(X)
    np.testing.assert_allclose(ours.transform(X)[:, :3], projected[:, :3], atol=50 * tolerance)
    np.testing.assert_allclose(ours.transform(handle).gather(), ours.transform(X))
    np.testing.assert_allclose(ours.inverse_transform(projected), theirs.inverse_transform(projected), atol=tolerance)


@pytest.mark.parametrize("power_iteration_normalizer", ["auto", "LU", "QR", "none"])
def test_bases_are_orthonormal_whatever_the_normalizer(
    pair: XPUCluster, monkeypatch: Any, power_iteration_normalizer: Any
) -> None:
    """Without a normalizer, rounding destroys all but the first component in scikit-learn's result for these rows."""
    pair.activate()
    random = np.random.default_rng(0)
    X = (random.normal(size=(500, 10)) * np.logspace(0, -2, 10) + 5).astype(np.float32)
    ours = TruncatedSVD(4, power_iteration_normalizer=power_iteration_normalizer, random_state=0).fit(X)
    np.testing.assert_allclose(ours.singular_values_, np.linalg.svd(X.astype(float))[1][:4], rtol=1e-4)


def test_too_many_components(pair: XPUCluster, monkeypatch: Any) -> None:
    pair.activate()
    with pytest.raises(ValueError, match=r"n_components\(10\) must be <= n_features\(9\)"):
        TruncatedSVD(10).fit(np.ones((20, 9)))


@pytest.mark.parametrize("estimator", [PCA(2, svd_solver="arpack"), TruncatedSVD(2, algorithm="arpack")])
def test_arpack_draws_as_in_scikit_learn(on_pair: XPUCluster, estimator: Any) -> None:
    X, state = np.random.default_rng(0).normal(size=(20, 6)), np.random.RandomState(0)
    estimator.set_params(random_state=state).fit(X)
    left = state.uniform()
    state.seed(0)
    estimator.unfitted_sklearn().fit(X)
    assert left == state.uniform()
