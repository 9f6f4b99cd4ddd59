"""Singular values of sparse rows on one rank, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from xpulab.engine.algorithms.sparse_rows.svd import SparseSVD, inverse_root, signs_of
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.sparse_rows import SparseRows


def matrix_of(task: Task, X: Any) -> SparseSVD:
    rows = SparseRows.upload(task.device, X.data, X.indices, X.indptr, X.shape[1])
    return SparseSVD(task, rows, [0, X.shape[0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1, 1e-9, 0])
def test_bases_are_orthonormal(task: Task, dtype: Any, scale: float) -> None:
    tall = np.random.default_rng(0).normal(size=(400, 5))
    tall[:, 3] = tall[:, 4] + scale * tall[:, 3]
    tall = tall.astype(dtype)
    found = matrix_of(task, sparse.csr_matrix((3, 3), dtype=dtype)).orthonormal(tall)
    assert found.shape[1] == (5 if scale == 1 or (scale and dtype == np.float64) else 4)
    precision = 1e-6 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found.T @ found, np.eye(found.shape[1]), atol=precision)
    np.testing.assert_allclose(found @ (found.T @ tall), tall, atol=10 * precision)


@pytest.mark.parametrize("shape", [(120, 40), (40, 120)])
def test_singular_values(task: Task, shape: tuple[int, int]) -> None:
    X, random = sparse.random(*shape, density=0.2, format="csr", random_state=0), np.random.default_rng(0)
    expected = np.linalg.svd(X.toarray())[1]
    singular, right = matrix_of(task, X).randomized(random.normal(size=(min(shape), 40)), 40, 1)
    np.testing.assert_allclose(singular, expected, atol=1e-10)
    np.testing.assert_allclose(right.T @ right, np.eye(40), atol=1e-10)
    largest, _ = matrix_of(task, X).largest(random.normal(size=shape[1]), 3, 0.0)
    np.testing.assert_allclose(largest, expected[:3], rtol=1e-10)


def test_roots_and_signs() -> None:
    matrix, condition = inverse_root(np.diag([4.0, 2.0, 0.0]), np.float64)
    np.testing.assert_allclose(np.abs(matrix), np.diag([0.25, 0.5, 1])[:, :2])
    assert condition == 2
    np.testing.assert_array_equal(signs_of(np.array([[1.0, -3.0], [2.0, 1.0]])), [-1.0, 1.0])
