"""Products of sparse rows with dense matrices against NumPy, with few and many columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.sparse_products import HostMatrix


def uploaded(device: Device, X: Any) -> SparseRows:
    return SparseRows.upload(device, X.data, X.indices, X.indptr, X.shape[1])


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 7, 8, 15, 16, 17, 33, 48, 60, 64, 65, 131])
def test_products_of_any_number_of_columns(device: Device, dtype: Any, k: int) -> None:
    X = sparse.random(5000, 37, density=0.1, format="csr", random_state=0).tolil()
    X[3], X[:, 5], X[4999] = 0, 0, 0
    X, random = X.tocsr().astype(dtype), np.random.default_rng(k)
    matrix, dense = HostMatrix(uploaded(device, X), 40), X.toarray().astype(np.float64)
    wide, tall = random.normal(size=(40, k)).astype(dtype), random.normal(size=(5000, k)).astype(dtype)
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    found = matrix.times(wide)
    assert (found.dtype, found.flags.c_contiguous) == (dtype, True)
    np.testing.assert_allclose(found, dense @ wide[:37], atol=tolerance)
    by_column = np.vstack([dense.T @ tall, np.zeros((3, k))])
    np.testing.assert_allclose(matrix.transposed_times(tall), by_column, atol=1e-12)
    np.testing.assert_allclose(matrix.quick_transposed_times(tall), by_column, atol=10 * tolerance)
    np.testing.assert_allclose(matrix.exact_times(wide.astype(np.float64)), dense @ wide[:37], atol=1e-12)


@pytest.mark.parametrize("n", [0, 2])
def test_rows_without_stored_values(device: Device, n: int) -> None:
    matrix = HostMatrix(uploaded(device, sparse.csr_matrix((n, 3))))
    np.testing.assert_array_equal(matrix.times(np.ones((3, 20))), np.zeros((n, 20)))
    np.testing.assert_array_equal(matrix.transposed_times(np.ones((n, 20))), np.zeros((3, 20)))
