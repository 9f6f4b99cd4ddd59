"""IncrementalPCA against scikit-learn's: batches of arrays, handles and files, and batches one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
from sklearn.exceptions import NotFittedError

from xpulab import XPUCluster
from xpulab.decomposition import IncrementalPCA, _incremental_pca

pytestmark = [
    pytest.mark.cluster,
    # scikit-learn warns, too, if a batch has no more rows than there are components.
    pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered"),
]

NUMBERS = ["explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "var_", "noise_variance_"]


def made(n: int, d: int, dtype: Any = np.float64) -> np.ndarray:
    random = np.random.default_rng(n)
    turn = np.linalg.qr(random.normal(size=(d, d)))[0]
    return ((random.normal(size=(n, d)) * np.logspace(0, -1, d)) @ turn + 3).astype(dtype)


def agree(ours: Any, theirs: Any, dtype: Any) -> None:
    tolerance = 2e-3 if dtype == np.float32 else 1e-8
    for name in NUMBERS:
        found, expected = np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name))
        assert found.shape == expected.shape, name
        if np.__version__.startswith("1."):  # with NumPy 2 scikit-learn's float32 becomes float64 on the way
            assert found.dtype == expected.dtype, name
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * abs(expected).max(initial=0))
    along = (ours.components_ * theirs.components_).sum(axis=1)
    np.testing.assert_allclose(along[:3], 1, atol=10 * tolerance)
    assert (ours.n_samples_seen_, ours.n_components_) == (theirs.n_samples_seen_, theirs.n_components_)
    if np.__version__.startswith("1."):
        assert ours.components_.dtype == theirs.components_.dtype


@pytest.mark.fraction(2)
@pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(400, 12), (60, 40)])
@pytest.mark.parametrize(("n_components", "batch_size"), [(3, None), (None, 50), (3, 7)])
def test_as_scikit_learn(
    current: XPUCluster,
    monkeypatch: Any,
    tmp_path: Path,
    dtype: Any,
    n: int,
    d: int,
    n_components: Any,
    batch_size: Any,
) -> None:
    X, arguments = made(n, d, dtype), {"n_components": n_components, "batch_size": batch_size}
    theirs = sklearn.decomposition.IncrementalPCA(**arguments).fit(X)
    np.save(tmp_path / "X.npy", X)
    counts = None if current.size == 1 else [n - 9, 0, 9]
    for given in (X, current.scatter(X, counts=counts), np.load(tmp_path / "X.npy", mmap_mode="r")):
        ours = IncrementalPCA(**arguments).fit(given)
        agree(ours, theirs, dtype)
        assert ours.batch_size_ == theirs.batch_size_
        # A small limit, so that few batches are decomposed at once, as for triangles that take much memory.
        monkeypatch.setattr(_incremental_pca, "_ANSWER_BYTES", 3 * (d + 1) * (d + 1) * 8)
    tolerance = 1e-2 if dtype == np.float32 else 1e-8
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=tolerance)
    made_of_it = ours.transform(current.scatter(X, counts=counts))
    np.testing.assert_array_equal(made_of_it.gather(), ours.transform(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("whiten", [False, True])
def test_batch_by_batch(pair: XPUCluster, monkeypatch: Any, dtype: Any, whiten: bool) -> None:
    pair.activate()
    X = made(200, 8, dtype)
    ours, theirs = IncrementalPCA(3, whiten=whiten), sklearn.decomposition.IncrementalPCA(3, whiten=whiten)
    for start, stop in [(0, 5), (5, 60), (60, 61), (61, 200)]:
        batch = X[start:stop]
        ours.partial_fit(pair.scatter(batch) if start == 5 else batch)
        theirs.partial_fit(batch.copy())
        agree(ours, theirs, dtype)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-2 if dtype == np.float32 else 1e-8)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-3)
    assert ours.report_.method == "partial_fit"


def test_refused_as_scikit_learn_does(pair: XPUCluster, monkeypatch: Any) -> None:
    pair.activate()
    X = made(20, 8)
    for ours in (IncrementalPCA, sklearn.decomposition.IncrementalPCA):
        with pytest.raises(ValueError, match="n_components=9 invalid for n_features=8"):
            ours(9).fit(X)
        with pytest.raises(ValueError, match="n_components=5 must be less or equal to the batch number of samples 4"):
            ours(5).partial_fit(X[:4])
        with pytest.raises(ValueError, match="has changed from 3 to 4 between calls to partial_fit"):
            ours(3).partial_fit(X).set_params(n_components=4).partial_fit(X)
    with pytest.raises(NotFittedError):
        IncrementalPCA().transform(X)
