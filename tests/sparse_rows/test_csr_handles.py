"""Sparse rows that stay on the engines: what scatter keeps, what takes the handle, and what refuses it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.model_selection
from exported import exported, numbers_of
from scipy import sparse
from sent import nothing_sent
from sklearn.base import is_classifier, is_regressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from strikes import die_on_rank_1, strike
from waiting import until

import xpulab
from xpulab import metrics
from xpulab.cluster import BisectingKMeans, KMeans, MiniBatchKMeans
from xpulab.csr import ShardedCSR
from xpulab.decomposition import TruncatedSVD
from xpulab.exceptions import EngineLostError, HandleError
from xpulab.explorer.session import Explorer
from xpulab.feature_extraction.text import TfidfTransformer
from xpulab.linear_model import (
    HuberRegressor,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from xpulab.model_selection import train_test_split
from xpulab.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB
from xpulab.neighbors import KNeighborsClassifier, KNeighborsRegressor
from xpulab.preprocessing import MaxAbsScaler, Normalizer, StandardScaler
from xpulab.svm import LinearSVC, LinearSVR

pytestmark = pytest.mark.cluster

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def made(dtype: Any = np.float64, index: Any = np.int32) -> Any:
    """Return CSR rows with empty rows at both ends and in the middle, explicit zeros, and unsorted columns."""
    X = sparse.random(301, 40, density=0.1, format="csr", random_state=1, dtype=np.float64).tolil()
    X[:20] = X[150:170] = X[-3:] = 0
    X = X.tocsr()
    X.data[::7] = 0
    for first, last in zip(X.indptr, X.indptr[1:], strict=False):
        X.indices[first:last], X.data[first:last] = X.indices[first:last][::-1].copy(), X.data[first:last][::-1].copy()
    X = sparse.csr_matrix((X.data.astype(dtype), X.indices.astype(index), X.indptr.astype(index)), X.shape)
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    assert not X.has_sorted_indices
    return X


def kept(cluster: xpulab.XPUCluster, X: Any, **options: Any) -> ShardedCSR:
    handle = cluster.scatter(X, **options)
    assert isinstance(handle, ShardedCSR)
    return handle


def same(found: Any, expected: Any) -> None:
    expected = expected.copy()
    expected.sum_duplicates()
    assert found.format == "csr"
    assert found.dtype == expected.dtype
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@DTYPES
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_come_back_as_they_were_sent(current: xpulab.XPUCluster, dtype: Any, index: Any) -> None:
    X = made(dtype, index)
    given = X.copy()
    handle = kept(current, X)
    assert (handle.shape, handle.dtype, handle.nnz) == (X.shape, X.dtype, X.nnz)
    assert sum(handle.counts) == 301
    same(handle.gather(), X)
    np.testing.assert_array_equal(X.indices, given.indices)  # X itself is not sorted
    text = repr(handle)
    assert text.startswith(f"ShardedCSR(shape=(301, 40), dtype={np.dtype(dtype)}, {X.nnz:,} stored values (")
    assert text.endswith(f"rows by rank: {', '.join(map(str, handle.counts))})")
    assert handle.nbytes == X.nnz * (X.dtype.itemsize + 4) + 8 * (301 + current.size) + 301 * X.dtype.itemsize


def test_other_formats_and_numbers(current: xpulab.XPUCluster) -> None:
    X = made()
    for other in (X.tocsc(), X.tocoo(), X.tolil(), sparse.csr_array(X), sparse.coo_array(X), sparse.csc_array(X)):
        np.testing.assert_array_equal(kept(current, other).gather().toarray(), X.toarray())
    twice = sparse.coo_matrix(([1, 2, 3], ([0, 0, 1], [1, 1, 0])), (2, 3))
    assert kept(current, twice).gather().toarray().tolist() == [[0, 3, 0], [3, 0, 0]]
    nothing = kept(current, sparse.csr_matrix((5, 3), dtype=np.float32))
    assert (nothing.nnz, nothing.gather().shape) == (0, (5, 3))


def test_counts_names_and_missing_values(current: xpulab.XPUCluster) -> None:
    X, size = made(), current.size
    counts = [0] * (size - 1) + [301] if size > 1 else [301]
    uneven = current.scatter(X, counts=counts, name="words")
    assert uneven.counts == tuple(counts)
    same(uneven.gather(), X)
    found = current.handles()["words"]  # as another notebook gets it
    assert repr(found) == repr(uneven)
    same(found.gather(), X)
    assert KMeans(2, random_state=0).fit(found).inertia_ == KMeans(2, random_state=0).fit(uneven).inertia_
    current.release(uneven)
    with pytest.raises(HandleError, match="gone"):
        uneven.gather()
    X.data[5] = np.nan
    with nothing_sent(current), pytest.raises(ValueError, match="The first such value is in row"):
        current.scatter(X)
    missing = kept(current, X, allow_nan=True)
    assert np.isnan(missing.gather().data).sum() == 1
    np.testing.assert_array_equal(MaxAbsScaler().fit(missing).max_abs_, MaxAbsScaler().fit(X).max_abs_)
    with pytest.raises(ValueError, match="contains NaN"):
        KMeans(2).fit(missing)
    with nothing_sent(current), pytest.raises(ValueError, match=r"X has 2,147,483,648 columns"):
        current.scatter(sparse.csr_matrix((2, 1 << 31)))


def test_rows_are_freed_with_their_handle(on_pair: xpulab.XPUCluster) -> None:
    handle = on_pair.scatter(made())
    known = handle.id
    assert known in on_pair.handles()
    del handle
    gc.collect()
    until(lambda: known not in on_pair.handles())


def test_an_engine_that_is_lost_takes_its_rows(losable: xpulab.XPUCluster) -> None:
    handle = losable.scatter(made())
    losable.run(strike, 2, die_on_rank_1)
    with pytest.raises(EngineLostError):
        KMeans(2, random_state=0).fit(handle)
    losable.restart()
    with pytest.raises(HandleError, match=r"type: cluster\.scatter"):
        handle.gather()
    same(losable.scatter(made()).gather(), made())


def test_split(current: xpulab.XPUCluster, written: list[int], received: list[int]) -> None:
    X, y = made(), np.arange(301) % 3
    handle, labels = current.scatter(X), current.scatter(y.astype(float), counts=list(current.scatter(X).counts))
    written.clear()
    for how in ({"random_state": 0}, {"shuffle": False}, {"random_state": 1, "test_size": 299}):
        ours: Any = train_test_split(handle, labels, **how)
        theirs = sklearn.model_selection.train_test_split(X, y, **how)
        assert sum(written) <= 4 * 8 * 301  # only the numbers of the rows were sent
        assert not received
        assert [part.nnz for part in ours[:2]] == [part.nnz for part in theirs[:2]]
        for part, expected in zip(ours[:2], theirs[:2], strict=True):
            same(part.gather(), expected)
        assert ours[0].counts == ours[2].counts
        received.clear()
        written.clear()
    stratified: Any = train_test_split(handle, stratify=y, random_state=0)
    expected = sklearn.model_selection.train_test_split(X, stratify=y, random_state=0)
    same(stratified[1].gather(), expected[1])
    found: Any = current.handles()[stratified[0].id]
    assert found.nnz == stratified[0].nnz == expected[0].nnz


TAKING: dict[str, Callable[[], Any]] = {
    "KMeans": lambda: KMeans(3, random_state=0),
    "MiniBatchKMeans": lambda: MiniBatchKMeans(3, random_state=0),
    "BisectingKMeans": lambda: BisectingKMeans(3, random_state=0),
    "TruncatedSVD": lambda: TruncatedSVD(3, random_state=0),
    "TruncatedSVD by ARPACK": lambda: TruncatedSVD(3, algorithm="arpack", random_state=0),
    "LogisticRegression": LogisticRegression,
    "LogisticRegressionCV": lambda: LogisticRegressionCV(Cs=2, cv=3),
    "HuberRegressor": HuberRegressor,
    "LinearSVC": LinearSVC,
    "LinearSVR": LinearSVR,
    "PoissonRegressor": PoissonRegressor,
    "QuantileRegressor": lambda: QuantileRegressor(alpha=0.01),
    "TweedieRegressor": lambda: TweedieRegressor(power=1.5),
    "Ridge": Ridge,
    "RidgeClassifier": RidgeClassifier,
    "SGDClassifier": lambda: SGDClassifier(random_state=0),
    "SGDRegressor": lambda: SGDRegressor(random_state=0),
    "MaxAbsScaler": MaxAbsScaler,
    "KNeighborsClassifier": KNeighborsClassifier,
    "KNeighborsRegressor": KNeighborsRegressor,
    "TfidfTransformer": TfidfTransformer,
    "MultinomialNB": MultinomialNB,
    "ComplementNB": ComplementNB,
    "BernoulliNB": BernoulliNB,
    "StandardScaler": lambda: StandardScaler(with_mean=False),
}


@DTYPES
@pytest.mark.fraction(3)
@pytest.mark.parametrize("name", TAKING)
def test_estimators_take_the_handle_and_move_no_row(
    current: xpulab.XPUCluster, written: list[int], received: list[int], name: str, dtype: Any
) -> None:
    X, y = made(dtype), np.arange(301) % 3
    handle = current.scatter(X)
    written.clear()
    ours = TAKING[name]().fit(handle, y)
    results = {method: getattr(ours, method)(handle) for method in ("predict", "transform") if hasattr(ours, method)}
    of_y = 2 * y.astype(dtype).nbytes  # a fit sends y
    assert sum(written) <= of_y * (is_classifier(ours) or is_regressor(ours))
    assert sum(received) <= 2 * 301 * 8 * 5  # labels; distances and indices of neighbours
    theirs = TAKING[name]().fit(X, y)
    for attribute, expected in numbers_of(theirs).items():
        np.testing.assert_allclose(numbers_of(ours)[attribute], expected, rtol=1e-5, atol=1e-6, err_msg=attribute)
    for method, result in results.items():
        found: Any = result.gather() if isinstance(result, xpulab.ShardedArray) else result
        right = getattr(theirs, method)(X)
        assert sparse.issparse(found) == sparse.issparse(right)
        found, right = (each.toarray() if sparse.issparse(each) else each for each in (found, right))
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    if hasattr(ours, "inverse_transform") and sparse.issparse(theirs.transform(X)):
        back = ours.inverse_transform(ours.transform(handle))
        assert isinstance(back, ShardedCSR)
        np.testing.assert_allclose(back.gather().toarray(), X.toarray(), rtol=1e-5)


def test_texts_on_the_engines_from_counts_to_clusters(
    current: xpulab.XPUCluster, written: list[int], received: list[int]
) -> None:
    words, random = np.array([f"word{i}" for i in range(400)]), np.random.default_rng(0)
    topics = random.integers(0, 3, 300)
    texts = [" ".join(random.choice(words[100 * t : 100 * t + 150], 30)) for t in topics]
    counts = current.scatter(CountVectorizer().fit_transform(texts))
    written.clear()
    steps = TfidfTransformer(), TruncatedSVD(5, random_state=0), Normalizer(), KMeans(3, random_state=0)
    made = make_pipeline(*steps).fit(counts)
    assert not written
    assert sum(received) <= 300 * 4  # the labels
    labels = made.predict(counts)
    assert len(set(zip(topics, labels, strict=True))) == 3


def refusing() -> list[type]:
    taking = {name.split()[0] for name in TAKING}
    return [kind for kind in exported() if kind.__name__ not in taking | {"NearestNeighbors", "GammaRegressor"}]


@pytest.mark.parametrize("kind", refusing(), ids=lambda kind: kind.__name__)
def test_what_needs_dense_rows_says_how_large_they_would_be(on_pair: xpulab.XPUCluster, kind: Any) -> None:
    handle, y = on_pair.scatter(made()), np.arange(301) % 3
    with nothing_sent(on_pair), pytest.raises(TypeError, match=r"toarray\(\)\) takes 94.1 KiB"):
        kind().fit(handle, y) if is_classifier(kind()) or is_regressor(kind()) else kind().fit(handle)


def test_other_calls_that_need_dense_rows(on_pair: xpulab.XPUCluster) -> None:
    handle, y = on_pair.scatter(made()), np.arange(301) % 3
    calls: list[Callable[[], Any]] = [
        lambda: np.asarray(handle),
        lambda: np.hstack([handle, handle]),
        lambda: handle[3],
        lambda: Explorer(handle),
        lambda: Explorer(made()),
        lambda: metrics.silhouette_score(handle, y),
        lambda: metrics.r2_score(y, handle),
        lambda: KMeans(2).fit(handle, sample_weight=handle),
        lambda: Ridge().fit(handle, handle),
    ]
    for call in calls:
        with nothing_sent(on_pair), pytest.raises((TypeError, ValueError)) as refused:
            call()
        assert "94.1 KiB" in str(refused.value)
    with pytest.raises(ValueError, match="Cannot center sparse matrices"):
        StandardScaler().fit(handle)


def test_cells_get_their_rows(on_pair: xpulab.XPUCluster) -> None:
    X = made()
    handle = on_pair.scatter(X)
    on_pair.push({"words": handle})
    found = [on_pair.pull("words", ranks=[rank])[0] for rank in range(2)]
    same(sparse.vstack(found, "csr"), X)
