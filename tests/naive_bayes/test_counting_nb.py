"""Naive Bayes by counts against scikit-learn: dense and sparse rows, weights, parts, handles, files; its own tests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.naive_bayes
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sent import nothing_sent
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.naive_bayes import BernoulliNB, ComplementNB, MultinomialNB

pytestmark = pytest.mark.cluster

KINDS = pytest.mark.parametrize("kind", [BernoulliNB, ComplementNB, MultinomialNB], ids=lambda kind: kind.__name__)
N, D = 1203, 40
RNG = np.random.default_rng(0)
LABELS = np.array(["a", "b", "c"])[(RNG.random(N) ** 2 * 3).astype(int)]
COUNTS = RNG.poisson(np.where(LABELS[:, None] == "b", 0.3, 0.1) * np.linspace(0, 2, D), (N, D)).astype(float)
COUNTS[100:120] = 0
WEIGHTS = RNG.uniform(0.5, 2, N)
METHODS = ("predict_proba", "predict_log_proba", "predict_joint_log_proba")


def sparse_rows(dtype: Any) -> Any:
    """Return the counts with explicit zeros and unsorted columns."""
    X = sparse.csr_matrix(COUNTS.astype(dtype))
    X.data[::9] = 0
    for first, last in zip(X.indptr, X.indptr[1:], strict=False):
        X.indices[first:last], X.data[first:last] = X.indices[first:last][::-1].copy(), X.data[first:last][::-1].copy()
    X.has_sorted_indices = False
    return X


def theirs_of(kind: Any, **parameters: Any) -> Any:
    return getattr(sklearn.naive_bayes, kind.__name__)(**parameters)


def assert_same(ours: Any, theirs: Any, rows: Any, plain: Any, tolerance: float = 1e-9) -> None:
    assert_array_equal(ours.classes_, theirs.classes_)
    names = ("class_count_", "feature_count_", "class_log_prior_", "feature_log_prob_", "feature_all_")
    for name in filter(lambda name: hasattr(theirs, name), names):
        found, expected = getattr(ours, name), getattr(theirs, name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert_allclose(found, expected, rtol=tolerance, err_msg=name)
    assert_array_equal(ours.predict(rows), theirs.predict(plain))
    for method in METHODS:
        found, expected = getattr(ours, method)(rows), getattr(theirs, method)(plain)
        assert found.dtype == expected.dtype
        assert_allclose(found, expected, rtol=10 * tolerance, atol=10 * tolerance, err_msg=method)


@KINDS
@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
def test_against_scikit_learn(current: xpulab.XPUCluster, tmp_path: Path, kind: Any, dtype: Any, weights: Any) -> None:
    X, tolerance = sparse_rows(dtype), 1e-9 if dtype is np.float64 or weights is None else 1e-6
    dense, theirs = X.toarray(), theirs_of(kind, alpha=0.5).fit(X, LABELS, weights)
    np.save(tmp_path / "X.npy", dense)
    uneven = [0] * (current.size - 1) + [N]
    for rows in (
        *(X, X.tocsc(), dense, np.load(tmp_path / "X.npy", mmap_mode="r")),
        *(current.scatter(each, counts=uneven) for each in (X, dense)),
    ):
        ours = kind(alpha=0.5).fit(rows, LABELS, weights)
        assert_same(ours, theirs, rows, X, tolerance)
        assert ours.score(rows, LABELS, weights) == pytest.approx(theirs.score(X, LABELS, weights))
        assert ours.report_.method == "fit"
    assert_array_equal(ours.to_sklearn().predict(X), theirs.predict(X))


@KINDS
def test_parameters_parts_and_labels_of_handles(on_pair: xpulab.XPUCluster, kind: Any) -> None:
    X, numbers = sparse_rows(np.float64), np.searchsorted(["a", "b", "c"], LABELS) + 2.0
    rows = on_pair.scatter(X)
    y = on_pair.scatter(numbers, counts=list(rows.counts))
    assert_same(kind().fit(rows, y), theirs_of(kind).fit(X, numbers), rows, X)
    some: list[dict[str, Any]] = [{"fit_prior": False}, {"class_prior": [0.2, 0.3, 0.5]}]
    some.append({"binarize": 1.5} if kind is BernoulliNB else {"alpha": np.linspace(0.1, 2, D)})
    some += [{"norm": True}] if kind is ComplementNB else []
    for parameters in some:
        theirs = theirs_of(kind, **parameters).fit(X, LABELS)
        assert_same(kind(**parameters).fit(X, LABELS), theirs, X, X)
    ours, theirs = kind(), theirs_of(kind)
    for part in (slice(0, 500), slice(500, None)):
        for each in (ours, theirs):
            each.partial_fit(X[part], LABELS[part], ["a", "absent", "b", "c"], WEIGHTS[part])
    with np.errstate(divide="ignore"):
        assert_same(ours, theirs, X, X)
    for each in (ours, theirs):
        each.partial_fit(X[:50], np.full(50, "unknown"))
    assert_same(ours, theirs, X, X)
    alone = np.full(N, "a")
    assert_same(kind().fit(X, alone), theirs_of(kind).fit(X, alone), X, X)


@KINDS
def test_refusals(on_pair: xpulab.XPUCluster, kind: Any) -> None:
    X = sparse_rows(np.float64)
    with nothing_sent(on_pair):
        with pytest.raises(ValueError, match="classes must be passed"):
            kind().partial_fit(X, LABELS)
        with pytest.raises(ValueError, match="Number of priors must match"):
            kind(class_prior=[0.5, 0.5]).fit(X, LABELS)
        with pytest.raises(ValueError, match="it should contain"):
            kind(alpha=[1.0, 2.0]).fit(X, LABELS)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            kind().fit(X, LABELS[:-1])
        with pytest.raises(ValueError, match="NaN"):
            kind().fit(X * np.nan, LABELS)
    if kind is not BernoulliNB:
        for rows in (-X, on_pair.scatter(-X), -COUNTS):
            ours = kind()
            with pytest.raises(ValueError, match=rf"Negative values in data passed to {kind.__name__} \(input X\)"):
                ours.fit(rows, LABELS)
            assert not hasattr(ours, "classes_")
    with warnings.catch_warnings(), pytest.raises(ValueError, match="40 features as input"):
        kind().fit(X, LABELS).predict(X[:, :39])


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    """These are also the tests of `GaussianNB`."""
    names = ("BernoulliNB", "ComplementNB", "MultinomialNB")
    proxies, why = [f"xpulab.naive_bayes:{name}" for name in (*names, "GaussianNB")], "a failed fit changed the classes"
    cannot = {f"test_discretenb_provide_prior[{name}]": why for name in names}
    dear = ["test_check_accuracy_on_digits"]  # 70 fits, of which others check that they are those of scikit-learn
    modules = ["sklearn.tests.test_naive_bayes"]
    run_suite(tmp_path, pair, modules, proxies, 40, cannot, only="not array_api", dear=dear)


_checks = parametrize_with_checks([BernoulliNB(), ComplementNB(), MultinomialNB()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
