"""Binarizer against scikit-learn: thresholds, dtypes, handles, and scans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.estimator_checks import parametrize_with_checks

import xpulab
from xpulab.preprocessing import Binarizer
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("threshold", [-0.5, 0, 0.1])
def test_against_scikit_learn(current: xpulab.XPUCluster, tmp_path: Path, threshold: float, dtype: Any) -> None:
    X = np.random.default_rng(0).normal(size=(501, 4)).round(1).astype(dtype)
    expected = sklearn.preprocessing.Binarizer(threshold=threshold).fit_transform(X)
    np.save(tmp_path / "X.npy", X)
    frame, mapped = pd.DataFrame(X, columns=list("abcd")), np.load(tmp_path / "X.npy", mmap_mode="r")
    handle = current.scatter(X, counts=[0] * (current.size - 1) + [501])
    for rows in (X, frame, mapped, handle, xpulab.scan(tmp_path / "X.npy")):
        found = Binarizer(threshold=threshold).fit_transform(rows)
        if rows is handle:
            assert isinstance(found, xpulab.ShardedArray)
            found = found.gather()
        in_floats = isinstance(rows, xpulab.ShardedArray | Scan)  # what the engines have or read
        assert found.dtype == (np.float64 if dtype is np.int64 and in_floats else dtype)
        np.testing.assert_array_equal(found, expected)


def test_it_needs_no_fit_and_refuses_sparse_rows(on_pair: xpulab.XPUCluster) -> None:
    X = np.array([[3.0, 4.0], [0.0, -2.0]])
    np.testing.assert_array_equal(Binarizer().transform(X), [[1, 1], [0, 0]])
    np.testing.assert_array_equal(Binarizer().transform(on_pair.scatter(X)).gather(), [[1, 1], [0, 0]])
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        Binarizer().fit(sparse.csr_matrix(X))


_checks = parametrize_with_checks([Binarizer()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
