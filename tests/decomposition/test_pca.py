"""PCA against scikit-learn's: solvers, dtypes, whitening, handles, files, one engine and three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
from presses import interrupted_calls
from sent import nothing_sent
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from xpulab import XPUCluster
from xpulab.cluster import KMeans
from xpulab.data import ShardedArray
from xpulab.decomposition import PCA

pytestmark = pytest.mark.cluster
on_one_and_three = pytest.mark.parametrize("cluster", [1, 3], indirect=True, ids=["1-engine", "3-engines"])

SOLVERS = ["covariance_eigh", "full", "arpack", "randomized", "auto"]
NUMBERS = ["explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_"]


def made(n: int, d: int, dtype: Any = np.float64, offset: float = 3.0) -> np.ndarray:
    """Return rows whose principal components have clearly different variances."""
    random = np.random.default_rng(n + d)
    turn = np.linalg.qr(random.normal(size=(d, d)))[0]
    return ((random.normal(size=(n, d)) * np.logspace(0, -1, d)) @ turn + offset).astype(dtype)


def agree(ours: Any, theirs: Any, tolerance: float, names: list[str] = NUMBERS) -> None:
    for name in names:
        found, expected = np.asarray(getattr(ours, name)), np.asarray(getattr(theirs, name))
        assert found.shape == expected.shape, name
        scale = max(abs(expected).max(), 1e-9) if expected.size else 1
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale, err_msg=name)
    along = (ours.components_ * theirs.components_).sum(axis=1)
    np.testing.assert_allclose(along[:3], 1, atol=10 * tolerance)
    assert ours.components_.dtype == theirs.components_.dtype


@pytest.mark.fraction(2)
@on_one_and_three
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("svd_solver", SOLVERS)
@pytest.mark.parametrize(("n", "d"), [(1200, 12), (30, 70), (5, 5)])
def test_as_scikit_learn(current: XPUCluster, svd_solver: str, dtype: Any, n: int, d: int) -> None:
    X, tolerance = made(n, d, dtype), 2e-3 if dtype == np.float32 else 1e-8
    counts = None if current.size == 1 else [n - 2, 0, 2]
    arguments: dict[str, Any] = {"n_components": 3, "svd_solver": svd_solver, "random_state": 0}
    theirs = sklearn.decomposition.PCA(**arguments).fit(X)
    ours = PCA(**arguments).fit(current.scatter(X, counts=counts))
    agree(ours, theirs, tolerance)
    assert (ours.n_components_, ours.n_samples_, ours.n_features_in_) == (3, n, d)
    assert ours.explained_variance_.dtype == ours.mean_.dtype == dtype
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=20 * tolerance)
    projected = theirs.transform(X)
    np.testing.assert_allclose(ours.inverse_transform(projected), theirs.inverse_transform(projected), atol=tolerance)
    if n > d:
        np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=20 * tolerance)
        assert ours.score(X) == pytest.approx(theirs.score(X), rel=20 * tolerance)
        np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=tolerance)


@pytest.mark.parametrize("svd_solver", ["covariance_eigh", "full"])
@pytest.mark.parametrize("n_components", [None, 0, 0.5, 0.95, "mle"])
@pytest.mark.parametrize("n", [300, 7])
def test_how_many_components(pair: XPUCluster, monkeypatch: Any, svd_solver: str, n_components: Any, n: int) -> None:
    pair.activate()
    if n == 7 and n_components == "mle":
        pytest.skip("scikit-learn refuses it too, see below")
    X = made(n, 9)
    theirs = sklearn.decomposition.PCA(n_components, svd_solver=svd_solver).fit(X)
    ours = PCA(n_components, svd_solver=svd_solver).fit(X)
    assert ours.n_components_ == theirs.n_components_
    agree(ours, theirs, 1e-7)
    assert ours.transform(X).shape == (n, ours.n_components_)


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"n_components": 10}, (20, 9)),
        ({"n_components": "mle"}, (7, 9)),
        ({"n_components": "mle", "svd_solver": "arpack"}, (20, 9)),
        ({"n_components": 0, "svd_solver": "randomized"}, (20, 9)),
        ({"n_components": 0.5, "svd_solver": "arpack"}, (20, 9)),
        ({"n_components": 9, "svd_solver": "arpack"}, (20, 9)),
        ({"svd_solver": "other"}, (20, 9)),
        ({"n_components": -1}, (20, 9)),
    ],
    ids=str,
)
def test_refused_as_scikit_learn_does_before_anything_is_sent(pair: XPUCluster, arguments: Any, shape: Any) -> None:
    pair.activate()
    X = made(*shape)
    with pytest.raises(ValueError, match=r"n_components|svd_solver") as theirs:
        sklearn.decomposition.PCA(**arguments).fit(X)
    with nothing_sent(pair), pytest.raises(ValueError, match=r"n_components|svd_solver") as ours:
        PCA(**arguments).fit(X)
    assert str(ours.value) == str(theirs.value)
    with pytest.raises(NotFittedError):
        PCA(**arguments).transform(X)


def test_small_singular_values_keep_their_accuracy(pair: XPUCluster) -> None:
    """The triangle gives them. In the covariance matrix their squares are below the rounding error."""
    pair.activate()
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=shape))[0] for shape in [(1000, 8), (8, 8)])
    X = left * np.logspace(0, -10, 8) @ right.T
    theirs = sklearn.decomposition.PCA(svd_solver="full").fit(X).singular_values_
    np.testing.assert_allclose(PCA(svd_solver="full").fit(X).singular_values_, theirs, rtol=1e-4)


@on_one_and_three
@pytest.mark.parametrize("svd_solver", ["covariance_eigh", "full", "randomized"])
def test_float32_is_as_good_as_scikit_learn(current: XPUCluster, svd_solver: str) -> None:
    """The results are compared with float64, also for rows far from the origin."""
    X = made(3000, 20, np.float32, offset=1e3)
    arguments: dict[str, Any] = {"n_components": 5, "svd_solver": svd_solver, "random_state": 0}
    best = sklearn.decomposition.PCA(5, svd_solver="full").fit(X.astype(np.float64))

    def error(found: Any) -> float:
        return float(abs(found.explained_variance_ - best.explained_variance_).max() / best.explained_variance_[0])

    ours, theirs = PCA(**arguments).fit(X), sklearn.decomposition.PCA(**arguments).fit(X)
    assert error(ours) <= max(error(theirs), 1e-6)


@on_one_and_three
def test_a_pipeline_on_handles_moves_no_rows(current: XPUCluster, written: list[int]) -> None:
    X = made(600, 10)
    handle = current.scatter(X)
    expected = make_pipeline(PCA(4), KMeans(3, random_state=0)).fit(X)[-1].cluster_centers_
    del written[:]
    steps = make_pipeline(PCA(4), KMeans(3, random_state=0)).fit(handle)
    np.testing.assert_allclose(steps[-1].cluster_centers_, expected)
    made_of_it = steps[0].transform(handle)
    assert isinstance(made_of_it, ShardedArray)
    assert (made_of_it.shape, made_of_it.counts) == ((600, 4), handle.counts)
    back = steps[0].inverse_transform(made_of_it)
    assert isinstance(back, ShardedArray)
    assert written == []
    np.testing.assert_allclose(back.gather(), steps[0].inverse_transform(steps[0].transform(X)), atol=1e-12)
    with pytest.raises(ValueError, match="rows on engines need at least one column"):
        PCA(0).fit(X).transform(handle)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_mapped_file_and_a_frame(pair: XPUCluster, tmp_path: Path, order: Any) -> None:
    import pandas as pd

    pair.activate()
    X = np.asarray(made(400, 6), order=order)
    np.save(tmp_path / "X.npy", X)
    theirs = sklearn.decomposition.PCA(3, whiten=True).fit(X)
    for given in (np.load(tmp_path / "X.npy", mmap_mode="r"), pd.DataFrame(X, columns=list("abcdef"))):
        ours = PCA(3, whiten=True).fit(given)
        agree(ours, theirs, 1e-8)
        np.testing.assert_allclose(ours.transform(given), theirs.transform(X), atol=1e-8)
        np.testing.assert_allclose(
            ours.inverse_transform(ours.transform(given)), theirs.inverse_transform(theirs.transform(X))
        )
    X[7, 2] = np.nan
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(ValueError, match="first such row is row 7"):
        PCA(3).fit(np.load(tmp_path / "X.npy", mmap_mode="r"))


def test_columns_that_are_constant_or_sorted(pair: XPUCluster) -> None:
    pair.activate()
    X = made(500, 6, offset=1e4)
    X[:, 0], X[:, 1] = 7.0, np.sort(X[:, 1])
    for svd_solver in ("covariance_eigh", "full", "randomized"):
        arguments: dict[str, Any] = {"n_components": 6, "svd_solver": svd_solver, "random_state": 0}
        ours, theirs = PCA(**arguments).fit(X), sklearn.decomposition.PCA(**{**arguments, "svd_solver": "full"}).fit(X)
        np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, atol=1e-6)
        assert np.isfinite(ours.components_).all()
    with np.errstate(invalid="ignore"):  # if the mean is exact, the ratios are 0 / 0, as in scikit-learn
        same = PCA().fit(np.ones((20, 3)) * 0.1)
    np.testing.assert_allclose(same.explained_variance_, 0, atol=1e-30)


def test_an_interrupt_leaves_it_unfitted(pair: XPUCluster) -> None:
    pair.activate()
    X, pca = made(50, 4), PCA(2)
    words = r"PCA.fit was interrupted; nothing was fitted: call it again"
    with interrupted_calls(), pytest.raises(KeyboardInterrupt, match=words):
        pca.fit(X)
    with pytest.raises(NotFittedError):
        pca.transform(X)
    assert pca.report_.status == "interrupted"
