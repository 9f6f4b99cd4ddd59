"""Estimators that take CSR rows against scikit-learn: they stay sparse, for any number of engines."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import psutil
import pytest
import sklearn.decomposition
import sklearn.linear_model
import sklearn.preprocessing
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import TruncatedSVD
from xpulab.linear_model import LogisticRegression, Ridge
from xpulab.preprocessing import MaxAbsScaler, StandardScaler

pytestmark = pytest.mark.cluster

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SHAPES = pytest.mark.parametrize("shape", [(601, 57), (80, 200)], ids=["tall", "wide"])


def made(shape: tuple[int, int], dtype: Any) -> Any:
    X = sparse.random(*shape, density=0.08, format="csr", random_state=1, dtype=np.float64)
    X.data -= 0.3
    return X.astype(dtype)


def test_texts_from_their_words_to_clusters(current: xpulab.XPUCluster) -> None:
    words = np.array([f"word{i}" for i in range(500)])
    random = np.random.default_rng(0)
    topics = random.integers(0, 3, 300)
    texts = [" ".join(random.choice(words[100 * t : 100 * t + 200], 30)) for t in topics]
    X = TfidfVectorizer().fit_transform(texts)
    ours = make_pipeline(TruncatedSVD(5, random_state=0), KMeans(3, random_state=0)).fit(X)
    theirs = sklearn.decomposition.TruncatedSVD(5, random_state=0).fit(X)
    np.testing.assert_allclose(ours[0].singular_values_, theirs.singular_values_, rtol=1e-6)
    np.testing.assert_allclose(ours[0].transform(X), theirs.transform(X), atol=1e-6)
    assert len({(t, label) for t, label in zip(topics, ours.predict(X), strict=True)}) == 3


def test_rows_of_which_the_memory_could_not_hold_the_zeros(on_pair: xpulab.XPUCluster) -> None:
    shape, random = (60_000, 1 << 18), np.random.default_rng(0)
    places = [random.integers(0, n, 600_000) for n in shape]
    X = sparse.csr_matrix((random.random(600_000, np.float32), places), shape)
    assert 4 * shape[0] * shape[1] > 2 * psutil.virtual_memory().total
    ours = TruncatedSVD(2, n_iter=2, n_oversamples=2, random_state=0).fit(MaxAbsScaler().fit_transform(X))
    theirs = sklearn.decomposition.TruncatedSVD(2, n_iter=2, n_oversamples=2, random_state=0)
    theirs.fit(sklearn.preprocessing.MaxAbsScaler().fit_transform(X))
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-3)
    assert ours.transform(X).shape == (60_000, 2)
    y = X[:, 7:40].sum(axis=1) > 0
    assert LogisticRegression(max_iter=3, tol=1.0).fit(X, np.ravel(y)).coef_.shape == (1, 1 << 18)


@DTYPES
@SHAPES
def test_truncated_svd(current: xpulab.XPUCluster, shape: tuple[int, int], dtype: Any) -> None:
    X = made(shape, dtype)
    ours, theirs = (each(4, random_state=0) for each in (TruncatedSVD, sklearn.decomposition.TruncatedSVD))
    found, expected = ours.fit_transform(X), theirs.fit_transform(X)
    assert found.dtype == expected.dtype
    tolerance = 2e-4 if dtype is np.float32 else 1e-9
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=tolerance)
    for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=tolerance)
    np.testing.assert_allclose(ours.transform(X), ours.transform(X.toarray()), atol=tolerance)
    ours, theirs = (each(4, algorithm="arpack") for each in (TruncatedSVD, sklearn.decomposition.TruncatedSVD))
    np.testing.assert_allclose(np.abs(ours.fit_transform(X)), np.abs(theirs.fit_transform(X)), atol=tolerance)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=tolerance)


@DTYPES
@SHAPES
def test_truncated_svd_of_rows_of_lower_rank(current: xpulab.XPUCluster, shape: tuple[int, int], dtype: Any) -> None:
    X = (made((shape[0], 3), dtype) @ made((3, shape[1]), dtype) * 9).tocsr()
    ours = TruncatedSVD(6, random_state=0)
    projected = ours.fit_transform(X)
    exact = np.linalg.svd(X.toarray().astype(np.float64))[1][:6]
    np.testing.assert_allclose(ours.singular_values_, exact, atol=1e-5 * exact[0])
    np.testing.assert_allclose(ours.components_ @ ours.components_.T, np.eye(6), atol=1e-5)
    np.testing.assert_allclose(projected, X @ ours.components_.T, atol=1e-5 * exact[0])
    with np.errstate(invalid="ignore"):  # the share of a variance of zero
        assert not TruncatedSVD(2, random_state=0).fit_transform(sparse.csr_matrix(shape, dtype=dtype)).any()


@DTYPES
@pytest.mark.parametrize("weighted", [False, True])
def test_scalers(current: xpulab.XPUCluster, dtype: Any, weighted: bool) -> None:
    X = made((601, 57), dtype).tolil()
    X[:, 3], X[7, 5] = 0, np.nan
    if not weighted:  # scikit-learn's variance of a constant column with weights may be below zero
        X[:, 4] = 7
    X = X.tocsr()
    given = X.copy()
    weights = np.random.default_rng(0).uniform(0.5, 2, 601) if weighted else None
    for std in (True, False):
        ours, theirs = (
            each(with_mean=False, with_std=std, copy=False).fit(X, sample_weight=weights)
            for each in (StandardScaler, sklearn.preprocessing.StandardScaler)
        )
        for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
            found, expected = getattr(ours, name), getattr(theirs, name)
            assert (found is None) == (expected is None)
            if expected is not None:
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        scaled = ours.transform(X)
        assert sparse.issparse(scaled)
        np.testing.assert_allclose(scaled.toarray(), theirs.transform(X.copy()).toarray(), rtol=1e-5)
        np.testing.assert_allclose(ours.inverse_transform(scaled).toarray(), X.toarray(), rtol=1e-5)
    ours, theirs = (each.fit(X[:300]).partial_fit(X) for each in (MaxAbsScaler(), sklearn.preprocessing.MaxAbsScaler()))
    np.testing.assert_array_equal(ours.max_abs_, theirs.max_abs_)
    assert ours.n_samples_seen_ == theirs.n_samples_seen_ == 901
    np.testing.assert_array_equal(ours.transform(X).toarray(), theirs.transform(X).toarray())
    np.testing.assert_array_equal(X.data, given.data)  # also with copy=False
    with pytest.raises(ValueError, match="Cannot center sparse matrices: pass `with_mean=False`"):
        StandardScaler().fit(X)


@DTYPES
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_regression(current: xpulab.XPUCluster, dtype: Any, solver: str, n_classes: int) -> None:
    X, random = made((601, 57), dtype), np.random.default_rng(0)
    y = (X @ random.normal(size=(57, n_classes)) + 0.1 * random.normal(size=(601, n_classes))).argmax(axis=1)
    labels, weights = np.array(["a", "b", "c"])[y], random.uniform(0.5, 2, 601)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ours, theirs = (
            each(solver=solver, C=10, tol=1e-7, max_iter=500, class_weight="balanced").fit(X, labels, weights)
            for each in (LogisticRegression, sklearn.linear_model.LogisticRegression)
        )
    tolerance = 5e-3 if dtype is np.float32 else 5e-4 if solver == "newton-cg" else 1e-5
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=tolerance * np.abs(theirs.coef_).max())
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=tolerance)
    np.testing.assert_array_equal(ours.predict(X), ours.predict(X.toarray()))
    assert ours.score(X, labels, weights) == pytest.approx(theirs.score(X, labels, weights), abs=0.01)


@DTYPES
@SHAPES
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_ridge(current: xpulab.XPUCluster, shape: tuple[int, int], dtype: Any, fit_intercept: bool) -> None:
    X, random = made(shape, dtype), np.random.default_rng(0)
    exact, y = X.toarray().astype(np.float64), random.normal(size=(shape[0], 2))
    y += X @ random.normal(size=(shape[1], 2)) + 5
    weights = random.uniform(0.5, 2, shape[0])
    tolerance = 1e-5 if dtype is np.float32 else 1e-9
    for alpha, targets, of_rows in ((1.0, y, weights), (0.01, y[:, 0], None), ([0.1, 2.0], y, None)):
        ours = Ridge(alpha, fit_intercept=fit_intercept).fit(X, targets, of_rows)
        theirs = sklearn.linear_model.Ridge(alpha, fit_intercept=fit_intercept, solver="cholesky")
        theirs.fit(exact, targets, of_rows)
        assert ours.coef_.shape == theirs.coef_.shape
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=tolerance * np.abs(theirs.coef_).max())
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=10 * tolerance)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(exact), atol=100 * tolerance)
        assert ours.score(X, targets, of_rows) == pytest.approx(theirs.score(exact, targets, of_rows), abs=1e-6)
    if shape == (601, 57) and dtype is np.float64:  # columns of different sizes, targets that they do not explain
        sizes = np.logspace(-6, 8, 57)
        scaled, noise = X.astype(np.float64) @ sparse.diags(sizes), random.normal(size=601)
        ours = Ridge(1e-3, fit_intercept=fit_intercept).fit(scaled, noise)
        exact = np.vstack(
            [(X.toarray() - fit_intercept * X.toarray().mean(axis=0)) * sizes, np.sqrt(1e-3) * np.eye(57)]
        )
        right = np.concatenate([noise - fit_intercept * noise.mean(), np.zeros(57)])
        lengths = np.linalg.norm(exact, axis=0)
        expected = np.linalg.lstsq(exact / lengths, right, rcond=None)[0]
        np.testing.assert_allclose(ours.coef_ * lengths, expected, atol=1e-7 * np.abs(expected).max())
        assert ours.report_.converged
        with pytest.warns(ConvergenceWarning, match="increase alpha, or scale the columns"):
            Ridge(0.0, fit_intercept=fit_intercept).fit(scaled[:, ::5], noise)
    with pytest.raises(TypeError, match="positive=True was given with sparse rows, and it takes dense rows"):
        Ridge(positive=True).fit(X, y)
