"""Scores of clusterings of sparse rows that need only sums, against scikit-learn's of dense rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from scipy import sparse
from sent import nothing_sent

import xpulab
from xpulab.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_against_scikit_learn(current: xpulab.XPUCluster, received: list[int], dtype: Any, index: Any) -> None:
    X = sparse.random(901, 60, density=0.1, format="csr", random_state=0).tolil()
    X[:30] = 0
    X = X.tocsr().astype(dtype)
    X.data[::8] = 0
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    labels = np.random.default_rng(0).integers(0, 5, 901)
    labels[900] = 7  # alone
    names = np.array(list("abcdefgh"))[labels]
    exact, uneven = X.toarray().astype(np.float64), [0] * (current.size - 1) + [901]
    for ours in (davies_bouldin_score, calinski_harabasz_score):
        expected = getattr(sklearn.metrics, ours.__name__)(exact, labels)
        handle = current.scatter(X, counts=uneven)
        received.clear()
        for rows in (X, X.tocsc(), handle, current.scatter(X)):
            assert ours(rows, labels) == pytest.approx(expected, rel=1e-6 if dtype is np.float32 else 1e-10)
        assert ours(X, names) == pytest.approx(expected, rel=1e-6)
        kept = current.scatter(labels.astype(dtype), counts=uneven)
        assert ours(handle, kept) == pytest.approx(expected, rel=1e-6)
        assert not received


def test_refusals(on_pair: xpulab.XPUCluster) -> None:
    X = sparse.random(90, 60, density=0.1, format="csr", random_state=0)
    with nothing_sent(on_pair):
        for call in (davies_bouldin_score, calinski_harabasz_score):
            with pytest.raises(ValueError, match="Number of labels is 1"):
                call(X, np.zeros(90))
            with pytest.raises(ValueError, match="inconsistent numbers of samples"):
                call(X, np.zeros(89))
        with pytest.raises(TypeError, match=r"toarray\(\) takes 42.2 KiB"):
            silhouette_score(X, np.arange(90) % 2)
