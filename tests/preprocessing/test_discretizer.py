"""KBinsDiscretizer against scikit-learn: strategies, encodings, drawn rows, weights, handles, and its own tests."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.preprocessing import KBinsDiscretizer

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:The current default behavior:FutureWarning")]

RNG = np.random.default_rng(0)
X = np.hstack([RNG.normal(size=(1001, 3)), RNG.integers(0, 3, (1001, 1))])
WEIGHTS = RNG.integers(0, 4, 1001).astype(float)
CASES: list[tuple[dict[str, Any], Any]] = [
    ({"strategy": "quantile"}, None),
    ({"strategy": "uniform", "n_bins": [2, 3, 4, 5]}, None),
    ({"strategy": "kmeans", "n_bins": 3}, None),
    ({"strategy": "kmeans", "n_bins": 3}, WEIGHTS),
    ({"strategy": "uniform", "subsample": 100, "random_state": 0}, None),
    ({"strategy": "uniform", "dtype": np.float32}, None),
]
if hasattr(sklearn.preprocessing.KBinsDiscretizer(), "quantile_method"):  # since 1.7, which also draws rows by weight
    CASES += [
        ({"strategy": "uniform", "subsample": 100, "random_state": 0}, WEIGHTS),
        ({"quantile_method": "averaged_inverted_cdf"}, WEIGHTS),
        ({"quantile_method": "hazen"}, None),
    ]


def fitted(kind: Any, parameters: dict[str, Any], rows: Any, weights: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return kind(**parameters).fit(rows, sample_weight=weights), sorted({str(each.message) for each in said})


def require_same(cluster: xpulab.XPUCluster, parameters: dict[str, Any], weights: Any, rows: np.ndarray) -> None:
    """Compare a fit, its transformed rows, and these transformed back with scikit-learn's."""
    theirs, expected_words = fitted(sklearn.preprocessing.KBinsDiscretizer, parameters, rows, weights)
    ours, words = fitted(KBinsDiscretizer, parameters, rows, weights)
    assert words == expected_words
    np.testing.assert_array_equal(ours.n_bins_, theirs.n_bins_)
    for found, expected in zip(ours.bin_edges_, theirs.bin_edges_, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12 if rows.dtype == np.float64 else 1e-5)
    found, expected = ours.transform(rows), ours.to_sklearn().transform(rows)
    assert (found.dtype, sparse.issparse(found)) == (expected.dtype, parameters["encode"] == "onehot")
    assert (found != expected).sum() == 0
    if parameters["encode"] != "onehot":
        handle = cluster.scatter(rows, counts=[0] * (cluster.size - 1) + [1001])
        np.testing.assert_array_equal(ours.transform(handle).gather(), expected)
    np.testing.assert_allclose(ours.inverse_transform(found), theirs.inverse_transform(expected), rtol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "weights", "encode"),
    [(*case, encode) for case, encode in zip(CASES, itertools.cycle(["onehot", "onehot-dense", "ordinal"]))],
    ids=str,
)
def test_against_scikit_learn(current: xpulab.XPUCluster, parameters: Any, weights: Any, encode: str) -> None:
    require_same(current, {**parameters, "encode": encode}, weights, X)


@pytest.mark.parametrize(("parameters", "weights"), CASES, ids=str)
def test_float32_against_scikit_learn(current: xpulab.XPUCluster, parameters: Any, weights: Any) -> None:
    require_same(current, {**parameters, "encode": "ordinal"}, weights, X.astype(np.float32))


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    with pytest.raises(ValueError, match="invalid number of bins at indices 1"):
        KBinsDiscretizer([2, 1, 2, 2]).fit(X)
    with pytest.raises(ValueError, match="n_samples=2 should be >= n_clusters=5"):
        KBinsDiscretizer(5, strategy="kmeans").fit(X[:2])
    binned = KBinsDiscretizer(strategy="uniform").fit(X)
    dense = binned.transform(on_pair.scatter(X))  # the engines have dense rows
    np.testing.assert_array_equal(dense.gather(), binned.transform(X).toarray())
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        KBinsDiscretizer().fit(sparse.csr_matrix(X))


_checks = parametrize_with_checks([KBinsDiscretizer(encode="ordinal")])


@pytest.mark.filterwarnings("ignore:Bins whose width are too small:UserWarning")  # of the few rows of some checks
@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    modules, proxies = ["sklearn.preprocessing.tests.test_discretization"], ["xpulab.preprocessing:KBinsDiscretizer"]
    run_suite(tmp_path, pair, modules, proxies, least=20)
