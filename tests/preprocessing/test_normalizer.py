"""Normalizer against scikit-learn: norms, dtypes, handles, files, and names."""

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
from xpulab.preprocessing import Normalizer

pytestmark = pytest.mark.cluster


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_against_scikit_learn(current: xpulab.XPUCluster, tmp_path: Path, norm: str, dtype: Any) -> None:
    X = np.random.default_rng(0).normal(size=(501, 4)).astype(dtype)
    X[7] = 0
    expected = sklearn.preprocessing.Normalizer(norm).fit_transform(X)
    np.save(tmp_path / "X.npy", X)
    frame, mapped = pd.DataFrame(X, columns=list("abcd")), np.load(tmp_path / "X.npy", mmap_mode="r")
    handle = current.scatter(X, counts=[0] * (current.size - 1) + [501])
    for rows in (X, frame, mapped, handle):
        found = Normalizer(norm).fit_transform(rows)
        if rows is handle:
            assert isinstance(found, xpulab.ShardedArray)
            found = found.gather()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype is np.float32 else 1e-14)


def test_it_needs_no_fit_and_refuses_sparse_rows(on_pair: xpulab.XPUCluster) -> None:
    X = np.array([[3.0, 4.0], [0.0, 2.0]])
    np.testing.assert_array_equal(Normalizer().transform(X), [[0.6, 0.8], [0.0, 1.0]])
    np.testing.assert_array_equal(Normalizer().transform(on_pair.scatter(X)).gather(), [[0.6, 0.8], [0.0, 1.0]])
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        Normalizer().fit(sparse.csr_matrix(X))


_checks = parametrize_with_checks([Normalizer()])


@pytest.mark.parametrize(_checks.args[0], list(_checks.args[1]), **_checks.kwargs)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any, pair: Any) -> None:
    pair.activate()
    check(estimator)
