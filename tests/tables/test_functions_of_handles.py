"""Functions of single numbers on handles: the engines compute them, and FunctionTransformer moves nothing."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sent import nothing_sent
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import xpulab
from xpulab.cluster import KMeans
from xpulab.preprocessing import StandardScaler

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(203, 3)) + 5
FRAME = pd.DataFrame(X, columns=list("abc"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_those_of_numpy(current: xpulab.XPUCluster, dtype: Any) -> None:
    rows = X.astype(dtype)
    handle = current.scatter(rows, counts=[0] * (current.size - 1) + [203])
    for function in (np.log1p, np.rint, scipy.special.expit, abs, operator.neg, lambda some: 1 / some - [1, 2, 3]):
        found, expected = function(handle), function(rows)
        assert isinstance(found, xpulab.ShardedArray)
        assert found.dtype == expected.dtype
        assert_allclose(found.gather(), expected, rtol=1e-6)
    assert_array_equal((handle * np.sqrt(handle) > 10).gather(), rows * np.sqrt(rows) > 10)
    assert_allclose((handle**2).gather(), rows**2, rtol=1e-6)


def test_a_pipeline_with_functions_moves_nothing(current: xpulab.XPUCluster, written: list[int]) -> None:
    steps = FunctionTransformer(np.log1p), StandardScaler(), KMeans(3, random_state=0, n_init=1)
    expected = make_pipeline(*steps).fit(X)[-1].cluster_centers_
    handle, table = current.scatter(X), current.scatter(FRAME)
    del written[:]
    found = make_pipeline(*steps).fit(handle)[-1].cluster_centers_
    assert sum(written) == 0
    assert_allclose(found, expected, rtol=1e-9)
    columns = make_column_transformer((FunctionTransformer(np.sqrt), ["c", "a"]), (StandardScaler(), ["b"]))
    assert_allclose(columns.fit_transform(table).gather(), columns.fit_transform(FRAME), rtol=1e-9)
    assert np.sqrt(table[["c", "a"]]).columns == ["c", "a"]


def test_nan_is_known_and_infinity_refused(current: xpulab.XPUCluster) -> None:
    rows = X.copy()
    rows[200, 1] = -4
    handle = current.scatter(rows)
    roots: Any = np.sqrt(handle)
    assert roots.nan
    assert not (handle * handle).nan
    with pytest.raises(ValueError, match=r"Input X contains NaN"):
        KMeans(2).fit(roots)
    with pytest.raises(ValueError, match=r"numpy\.exp of rows on the engines gives infinity"):
        np.exp(handle * 1000)


def test_what_is_not_computed_says_so(on_pair: xpulab.XPUCluster) -> None:
    handle, words = on_pair.scatter(X), on_pair.scatter(pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}))
    stored, others = on_pair.scatter(sparse.csr_matrix(np.eye(3))), on_pair.scatter(X, counts=[3, 200])
    refused: list[tuple[Any, str]] = [
        (lambda: np.add.reduce(handle), r"add\.reduce was asked of ShardedArray.* such as np\.log1p\(X\)"),
        (lambda: np.log(handle, out=np.empty(X.shape)), r"log\(\.\.\., out=\) was asked"),
        (lambda: np.frexp(handle), "frexp was asked"),
        (lambda: handle + np.ones((203, 1)), r"a function with ndarray of shape \(203, 1\)"),
        (lambda: handle + others, "with rows on the engines as"),
        (lambda: np.log1p(words), "No numbers in X: 'a'"),
        (lambda: np.log1p(stored), "whose rows are sparse"),
        (lambda: FunctionTransformer(np.cumsum).fit_transform(handle), r"X\.gather\(\)"),
    ]
    with nothing_sent(on_pair):
        for call, message in refused:
            with pytest.raises((TypeError, ValueError), match=message):
                call()
