"""TfidfTransformer against scikit-learn: all parameters, dense and sparse rows, handles, files; and its own tests."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.feature_extraction.text
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sent import nothing_sent
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.csr import ShardedCSR
from xpulab.feature_extraction.text import TfidfTransformer

pytestmark = pytest.mark.cluster

WAYS = [
    {"norm": norm, "use_idf": use, "smooth_idf": smooth, "sublinear_tf": sublinear}
    for norm, use, smooth, sublinear in itertools.product(("l1", "l2", None), *[(True, False)] * 3)
    if use or smooth
]


def counts(dtype: Any) -> Any:
    """Return counts with empty rows, a column that nobody has, explicit zeros, and unsorted columns."""
    X = sparse.random(301, 50, density=0.1, format="csr", random_state=1).tolil()
    X[:10] = X[-2:] = 0
    X[:, 7] = 0
    X = X.tocsr()
    X.data = np.ceil(5 * X.data).astype(dtype)
    for first, last in zip(X.indptr, X.indptr[1:], strict=False):
        X.indices[first:last], X.data[first:last] = X.indices[first:last][::-1].copy(), X.data[first:last][::-1].copy()
    X.has_sorted_indices = False
    return X.astype(dtype)


@pytest.mark.parametrize(
    ("way", "dtype"),
    [(way, (np.float32, np.float64)[number // 2 % 2 ^ number % 2]) for number, way in enumerate(WAYS)],
    ids=str,
)
def test_against_scikit_learn(
    current: xpulab.XPUCluster, tmp_path: Path, received: list[int], dtype: Any, way: dict[str, Any]
) -> None:
    X, rtol = counts(dtype), 2e-6 if dtype is np.float32 else 1e-12
    dense = X.toarray()
    np.save(tmp_path / "X.npy", dense)
    with np.errstate(divide="ignore", invalid="ignore"):
        theirs = sklearn.feature_extraction.text.TfidfTransformer(**way).fit(X)
        expected = theirs.transform(X)
        uneven = [0] * (current.size - 1) + [301]
        handles = current.scatter(X, counts=uneven), current.scatter(dense)
        for rows in (*(X, X.tocsc(), dense, np.load(tmp_path / "X.npy", mmap_mode="r")), *handles):
            ours = TfidfTransformer(**way)
            received.clear()
            found: Any = ours.fit_transform(rows)
            if isinstance(rows, xpulab.ShardedArray):
                assert isinstance(found, ShardedCSR)
                assert not received
                assert found.nnz == expected.nnz
                assert found.counts == rows.counts
                found = found.gather()
            assert (found.format, found.dtype) == ("csr", expected.dtype)
            assert_allclose(found.toarray(), expected.toarray(), rtol=rtol)
            assert hasattr(ours, "idf_") == way["use_idf"]
            if way["use_idf"]:
                assert ours.idf_.dtype == theirs.idf_.dtype
                assert_allclose(ours.idf_, theirs.idf_, rtol=rtol)
                assert ours.report_.method == "fit"
        assert_allclose(ours.to_sklearn().transform(X).toarray(), expected.toarray(), rtol=rtol)


def test_explicit_zeros_count_as_in_scikit_learn(on_pair: xpulab.XPUCluster) -> None:
    X = counts(np.float64)
    X.data[::5] = 0
    theirs = sklearn.feature_extraction.text.TfidfTransformer().fit(X)
    for rows in (X, on_pair.scatter(X)):
        ours = TfidfTransformer().fit(rows)
        assert_array_equal(ours.idf_, theirs.idf_)
    assert_allclose(ours.transform(on_pair.scatter(X)).gather().toarray(), theirs.transform(X).toarray(), rtol=1e-12)
    ours.set_params(use_idf=False).fit(X)
    assert not hasattr(ours, "idf_")


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    X = counts(np.float64)
    with nothing_sent(on_pair):
        with pytest.raises(ValueError, match="The first such value is in row"):
            TfidfTransformer().fit(X * np.nan)
        with pytest.raises(ValueError, match="The 'norm' parameter"):
            TfidfTransformer(norm="max").fit(X)
    ours, handle = TfidfTransformer().fit(X), on_pair.scatter(X[:, :49])
    with nothing_sent(on_pair):
        for rows in (X[:, :49], handle):
            with pytest.raises(ValueError, match="50 features as input"):
                ours.transform(rows)
    assert not hasattr(ours, "set_output")  # as in scikit-learn


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    modules = ["sklearn.feature_extraction.tests.test_text"]
    why = "in place of theirs is a subclass of ours that counts fits"
    cannot = {"test_pickling_transformer": why, "test_vectorizers_do_not_have_set_output[TfidfTransformer]": why}
    proxies = ["xpulab.feature_extraction.text:TfidfTransformer"]
    dear = ["test_tfidf_vectorizer_preserve_dtype_idf"]  # the words of 100,000 texts, and one fit
    run_suite(tmp_path, pair, modules, proxies, 9, cannot, only="tfidf or idf or transformer", dear=dear)


_checks = parametrize_with_checks([TfidfTransformer()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
