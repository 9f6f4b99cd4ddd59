"""PolynomialFeatures against scikit-learn: degrees, dtypes, handles, names, and scikit-learn's own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from sklearn.utils.estimator_checks import parametrize_with_checks
from suites import run_suite

import xpulab
from xpulab.preprocessing import PolynomialFeatures

pytestmark = pytest.mark.cluster
CASES: list[dict[str, Any]] = [{}, {"degree": (2, 3)}, {"degree": 3, "interaction_only": True, "include_bias": False}]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_scikit_learn(current: xpulab.XPUCluster, dtype: Any) -> None:
    X = np.random.default_rng(0).normal(size=(501, 4)).astype(dtype)
    frame = pd.DataFrame(X, columns=list("abcd"))
    counts = [0] * (current.size - 1) + [501]
    for case in CASES:
        theirs = sklearn.preprocessing.PolynomialFeatures(**case).fit(frame)
        expected = theirs.transform(frame)
        ours = PolynomialFeatures(**case).fit(current.scatter(frame, counts=counts))
        np.testing.assert_array_equal(ours.get_feature_names_out(), theirs.get_feature_names_out())
        np.testing.assert_array_equal(ours.powers_, theirs.powers_)
        found = ours.transform(current.scatter(frame, counts=counts))
        assert isinstance(found, xpulab.ShardedArray)
        assert found.counts == tuple(counts)
        for rows in (found.gather(), ours.transform(frame), ours.to_sklearn().transform(frame)):
            assert rows.dtype == expected.dtype
            np.testing.assert_array_equal(rows, expected)


def test_the_order_in_memory_and_refusals(on_pair: xpulab.XPUCluster) -> None:
    X = np.arange(6.0).reshape(3, 2)
    assert PolynomialFeatures(order="F").fit_transform(X).flags.f_contiguous
    with pytest.raises(ValueError, match="Setting degree to zero and include_bias to False"):
        PolynomialFeatures(0, include_bias=False).fit(X)
    with pytest.raises(ValueError, match="X has 1 features"):
        PolynomialFeatures().fit(X).transform(X[:, :1])


_checks = parametrize_with_checks([PolynomialFeatures()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)


def test_the_tests_of_scikit_learn(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_suite(
        tmp_path,
        pair,
        ["sklearn.preprocessing.tests.test_polynomial"],
        ["xpulab.preprocessing:PolynomialFeatures"],
        least=20,
        only="polynomial_feature and not (csr or csc or sparse or array_api)",  # sparse rows are refused
    )
