"""Distances between all pairs of rows are scikit-learn's, for arrays, handles and files."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sent import nothing_sent

import xpulab
from xpulab.metrics import (
    pairwise_distances,
    pairwise_distances_argmin,
    pairwise_distances_argmin_min,
    pairwise_distances_chunked,
)

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(203, 5)), RNG.normal(size=(37, 5))
HOLES = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
#: Metrics, and their arguments.
METRICS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("euclidean", "l2", "sqeuclidean", "l1", "cosine", "chebyshev", "braycurtis")),
    *((name, {}) for name in ("canberra", "correlation", "hamming", "nan_euclidean", "dice", "jaccard")),
    ("minkowski", {"p": 1.5}),
    ("minkowski", {"w": np.arange(1.0, 6)}),
    ("seuclidean", {"V": np.arange(1.0, 6)}),
    ("mahalanobis", {"VI": np.diag(np.arange(1.0, 6))}),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("metric", "given"), METRICS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_metric(on_pair: xpulab.XPUCluster, metric: str, given: dict[str, Any], dtype: Any) -> None:
    rows, others = np.abs(X).astype(dtype), np.abs(Y).astype(dtype)
    if metric in ("dice", "jaccard"):  # which compare what is not zero
        rows, others = (np.maximum(each - 1, 0) for each in (rows, others))
    for pair in ((rows, others), (rows, None)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found, expected = (
                function(pair[0], pair[1], metric=metric, **given)
                for function in (pairwise_distances, sklearn.metrics.pairwise_distances)
            )
        assert len({str(each.message) for each in said}) == len(said) / 2 == (metric in ("dice", "jaccard"))
        assert found.dtype == expected.dtype
        assert_allclose(found, expected, 1e-5 if dtype is np.float32 else 1e-9, 1e-6)
    assert_array_equal(np.diag(found), np.zeros(len(rows)))


def test_rows_that_stay(current: xpulab.XPUCluster, tmp_path: Path) -> None:
    """Rows of handles and of files are compared where they are, whatever the number of engines."""
    np.save(tmp_path / "x.npy", X)
    counts = [len(X) - 3 * (current.size - 1)] + [3] * (current.size - 1)
    handle, scan = current.scatter(X, counts=counts), xpulab.scan(tmp_path / "x.npy")
    expected = sklearn.metrics.pairwise_distances(X, Y, "manhattan")
    for rows in (handle, scan, np.load(tmp_path / "x.npy", mmap_mode="r"), X.tolist()):
        assert_allclose(pairwise_distances(rows, current.scatter(Y), "manhattan"), expected, 1e-12)
        assert_allclose(pairwise_distances(rows), sklearn.metrics.pairwise_distances(X), 1e-7, 1e-7)
    assert_allclose(
        pairwise_distances(current.scatter(HOLES, allow_nan=True), Y, "nan_euclidean"),
        sklearn.metrics.pairwise_distances(HOLES, Y, "nan_euclidean"), 1e-9,
    )  # fmt: skip
    for metric in ("euclidean", "sqeuclidean", "cosine", "canberra"):
        found = pairwise_distances_argmin_min(handle, current.scatter(Y), metric=metric)
        theirs = sklearn.metrics.pairwise_distances_argmin_min(X, Y, metric=metric)
        assert_array_equal(found[0], theirs[0])
        assert_allclose(found[1], theirs[1], 1e-7)
    nearest = pairwise_distances_argmin(X, scan[:50], axis=0, metric="minkowski", metric_kwargs={"p": 3})
    given: dict[str, Any] = {"axis": 0, "metric": "minkowski", "metric_kwargs": {"p": 3}}
    assert_array_equal(nearest, sklearn.metrics.pairwise_distances_argmin(X, X[:50], **given))


def _blocks(function: Any, rows: Any, **given: Any) -> list[Any]:
    return list(function(rows, working_memory=8 * 203 * 50 / 2**20, **given))


def test_blocks(on_pair: xpulab.XPUCluster) -> None:
    """Blocks have as many rows as scikit-learn's, and a function makes others of them."""
    handle = on_pair.scatter(X)
    below: Any = functools.partial(_near, radius=1.0)
    for given in ({}, {"reduce_func": below}, {"reduce_func": below, "metric": "cityblock"}):
        expected = _blocks(sklearn.metrics.pairwise_distances_chunked, X, **given)
        for rows in (X, handle):
            found = _blocks(pairwise_distances_chunked, rows, **given)
            assert len(found) == len(expected) == 5
            for ours, theirs in zip(found, expected, strict=True):
                assert_allclose(ours, theirs, 1e-7, 1e-7)
    assert_array_equal([block[0, 0] for block in _blocks(pairwise_distances_chunked, X)[:1]], [0])
    with pytest.raises(ValueError, match="same length as input"):
        list(pairwise_distances_chunked(X, reduce_func=lambda block, start: block[:3]))


def _near(block: np.ndarray, start: int, radius: float) -> np.ndarray:
    found: np.ndarray = (block < radius).sum(axis=1) + start
    return found


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        (X, {"metric": "precomputed"}, "metric='precomputed' was given; expected the name of a metric"),
        (X, {"metric": np.dot}, "expected the name of a metric of rows; for others use sklearn.metrics"),
        (X, {"metric": "nearly"}, "Unknown metric nearly"),
        (X, {"metric": "mahalanobis"}, "depends on all rows of X and Y; pass VI=..."),
        (X, {"Y": Y[:, :3]}, "Incompatible dimension"),
        (HOLES, {}, "Input contains NaN|Input X contains NaN"),
        (sparse.csr_matrix(X), {}, "sparse rows were given"),
    ],
)
def test_what_is_refused(on_pair: xpulab.XPUCluster, rows: Any, given: dict[str, Any], said: str) -> None:
    for function in (pairwise_distances, pairwise_distances_chunked):
        with nothing_sent(on_pair), pytest.raises((ValueError, TypeError), match=said):
            function(rows, **given)
    with pytest.raises(ValueError, match="axis=2 was given; expected 0 or 1"):
        pairwise_distances_argmin(X, Y, axis=2)
    with pytest.raises(ValueError, match="X has 5 columns, and Y 3; expected rows with as many columns"):
        pairwise_distances(on_pair.scatter(X), Y[:, :3])
