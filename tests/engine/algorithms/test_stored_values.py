"""Sparse rows whose values change, that are selected, or added up by class, on one rank, against SciPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.spatial
import scipy.special
from scipy import sparse
from sklearn.preprocessing import normalize

from xpulab.engine.algorithms.class_sums import parts_of, sums_of
from xpulab.engine.algorithms.naive_bayes import counts
from xpulab.engine.algorithms.naive_bayes.joint import KINDS
from xpulab.engine.algorithms.sparse_rows.neighbors import SparseIndex
from xpulab.engine.algorithms.sparse_rows.scaling import scaled
from xpulab.engine.algorithms.sparse_rows.selection import selected_sparse
from xpulab.engine.engine import Task
from xpulab.engine.registry import TASKS
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.sparse_products import HostMatrix

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def stored(dtype: Any) -> Any:
    X = sparse.random(300, 20, density=0.2, format="csr", random_state=0).tolil()
    X[0] = X[17] = X[299] = 0
    X = X.tocsr().astype(dtype)
    X.data[:5] = 0  # a row of explicit zeros
    return X


def on_device(task: Task, X: Any) -> SparseRows:
    return SparseRows.upload(task.device, X.data, X.indices, X.indptr, X.shape[1])


@DTYPES
@pytest.mark.parametrize("norm", [None, "l1", "l2"])
def test_values_are_scaled_by_column_and_by_row(task: Task, dtype: Any, norm: str | None) -> None:
    X, factor = stored(dtype), np.linspace(-2, 3, 20)
    found = scaled(on_device(task, X), False, factor, (-1.0, 1.0), norm)
    expected = X.copy()
    expected.data = np.clip((X.data * factor[X.indices]).astype(dtype), -1, 1)
    expected = expected if norm is None else normalize(expected, norm)
    given = HostMatrix(found).as_given
    assert given.dtype == dtype
    np.testing.assert_allclose(given.data, expected.data, rtol=1e-6 if dtype == np.float32 else 1e-14)
    np.testing.assert_allclose(
        task.device.fetch(found.squares, stop=300), np.square(expected.toarray()).sum(axis=1), rtol=1e-5
    )


@DTYPES
def test_logarithms(task: Task, dtype: Any) -> None:
    X = stored(dtype)
    with np.errstate(divide="ignore"):
        expected = np.log(X.data) + dtype(1)
    np.testing.assert_array_equal(HostMatrix(scaled(on_device(task, X), True)).as_given.data, expected)


@DTYPES
@pytest.mark.parametrize("some", ["all", "few", "none"])
def test_rows_are_selected_in_any_order(task: Task, dtype: Any, some: str) -> None:
    X = stored(dtype)
    chosen = np.random.default_rng(0).permutation(300)[: {"all": 300, "few": 40, "none": 0}[some]]
    found = selected_sparse(task, on_device(task, X), [0, 300], chosen, [0, len(chosen)])
    np.testing.assert_array_equal(HostMatrix(found).as_given.toarray(), X[chosen].toarray())
    assert found.n_stored == X[chosen].nnz


@DTYPES
@pytest.mark.parametrize("threshold", [None, 0.3])
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_sums_of_the_rows_of_classes(task: Task, dtype: Any, threshold: float | None, dense: bool) -> None:
    X, weights, codes = stored(dtype), np.linspace(0.5, 2, 300).astype(dtype), np.arange(300) % 4
    X.data[9] = -3
    if dense:
        rows: Any = Rows.upload(task.device, X.toarray(), weights)
    else:
        rows = SparseRows.upload(task.device, X.data, X.indices, X.indptr, 20, weights)
    numbers = X.toarray().astype(np.float64) if threshold is None else (X.toarray() > threshold).astype(np.float64)
    found, least = sums_of(rows, codes, 5, threshold)
    of_class = (codes == np.arange(5)[:, None]) * weights.astype(np.float64)
    np.testing.assert_allclose(found, of_class @ numbers, rtol=1e-12)
    assert least == (-3 if threshold is None else 0)
    for first, part in parts_of(rows, threshold):
        given = part if dense else part.toarray()
        np.testing.assert_array_equal(given, numbers[first : first + len(given)])


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_tasks_of_counts(ask: Callable[..., Any], threshold: float | None) -> None:
    assert TASKS["class_sums"].__module__ == counts.__name__
    X, codes = stored(np.float64).toarray(), np.arange(300) % 4
    numbers = X if threshold is None else (threshold < X).astype(float)
    how = {"known": np.array([10.0, 11, 12, 13]), "n_classes": 4, "threshold": threshold}
    found = ask("class_sums", X, targets=codes + 10.0, **how)
    found = found[0] if isinstance(found, tuple) else found
    np.testing.assert_allclose(found["sums"], (codes == np.arange(4)[:, None]).astype(float) @ numbers, rtol=1e-12)
    np.testing.assert_array_equal(found["weight"], [75] * 4)
    coef, intercept = np.linspace(-1, 1, 80).reshape(4, 20), np.arange(4.0)
    how = {"coef": coef, "intercept": intercept, "threshold": threshold, "kind": "joint"}
    _, joint = ask("class_functions", X, shape=(300, 4), **how)
    np.testing.assert_allclose(joint, numbers @ coef.T + intercept, rtol=1e-12)


def test_probabilities_of_classes() -> None:
    joint = np.array([[-1000.0, -1001.0], [-0.5, -3.0]])
    expected = joint - scipy.special.logsumexp(joint, axis=1, keepdims=True)
    np.testing.assert_allclose(KINDS["log_proba"](joint), expected)
    np.testing.assert_allclose(KINDS["proba"](joint), np.exp(expected))
    np.testing.assert_array_equal(KINDS["label"](joint), [0, 0])
    assert KINDS["joint"](joint) is joint


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@DTYPES
def test_neighbours_of_a_rank(task: Task, dtype: Any, metric: str) -> None:
    X, queries = stored(dtype), stored(np.float64)[20:60]
    index = SparseIndex.of(on_device(task, X), metric)
    numbers, some = X.toarray().astype(np.float64), queries.toarray()
    every = scipy.spatial.distance.cdist(some, numbers, "sqeuclidean" if metric == "euclidean" else "cosine")
    every = np.where(np.isnan(every), 1, every)  # of rows of zeros
    distances, places = index.nearest(queries, 5)
    np.testing.assert_allclose(distances, np.sort(every, axis=1)[:, :5], atol=1e-9)
    np.testing.assert_allclose(np.take_along_axis(every, places, 1), distances, atol=1e-9)
    counts, compared, near = index.within(queries, 0.9)
    np.testing.assert_array_equal(counts, (every <= 0.9).sum(axis=1))
    np.testing.assert_array_equal(near, np.nonzero(every <= 0.9)[1])
    np.testing.assert_allclose(compared, every[every <= 0.9], atol=1e-9)
    few = SparseIndex.of(on_device(task, X[:3]), metric).nearest(queries, 5)
    assert (few[1][:, 3:] == -1).all()
    assert np.isinf(few[0][:, 3:]).all()
