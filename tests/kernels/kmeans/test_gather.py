import numpy as np
import pytest
from scipy import sparse as scipy_sparse

from xpulab.kernels.kmeans import dense, sparse
from xpulab.kernels.kmeans.gather import Batches, subset
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "m"), [(1, 1, 1), (70, 14, 0), (1030, 3, 64), (1030, 33, 501)])
def test_a_subset_has_the_rows_and_weights_in_their_order(device, n, d, m, dtype):
    X, weights = RNG.normal(size=(n, d)).astype(dtype), RNG.uniform(size=n).astype(dtype)
    places = RNG.integers(n, size=m)
    for given in (None, weights):
        some = subset(Rows.upload(device, X, given), places)
        assert (some.n_samples, some.sample_weight is None) == (m, given is None)
        np.testing.assert_array_equal(take(some, np.arange(m)), X[places])
        np.testing.assert_array_equal(some.weights_on_cpu(), np.ones(m) if given is None else weights[places])


def test_batches_replace_each_other_and_end_with_weights_of_zero(device):
    X = RNG.normal(size=(3000, 5)).astype(np.float32)
    batches = Batches(Rows.upload(device, X, np.full(3000, 7.0)), 200)
    for m in (200, 3, 64, 5, 65, 3, 200):
        places = RNG.integers(3000, size=m)
        rows, _ = batches.take(places)
        copied = m <= BLOCK and device.shares_memory  # by the CPU
        assert rows.n_samples == (m if copied else -(-m // BLOCK) * BLOCK)
        np.testing.assert_array_equal(take(rows, np.arange(m)), X[places])
        np.testing.assert_array_equal(rows.weights_on_cpu(), np.arange(rows.n_samples) < m)
        padding = device.fetch(rows.data).reshape(-1, 5, BLOCK)[-1, :, (m - 1) % BLOCK + 1 :]
        np.testing.assert_array_equal(padding, 0)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_of_a_batch_has_its_own_sums_and_inertia(device, kind, dtype):
    X = np.where(RNG.random((2000, 6)) < 0.5, 0, RNG.normal(size=(2000, 6))).astype(dtype)
    rows, kernels = Rows.upload(device, X), dense
    if kind == "sparse":
        csr = scipy_sparse.csr_matrix(X)
        rows, kernels = SparseRows.upload(device, csr.data, csr.indices, csr.indptr, 6), sparse
    batches = kernels.Batches(rows, 300)
    shift = np.zeros(6, dtype)
    for k, m in ((5, 300), (5, 300), (70, 190), (5, 290)):
        places, centers = RNG.integers(2000, size=m), RNG.normal(size=(k, 6)).astype(dtype)
        batch, labels = batches.take(places)
        sums, weights, inertia = kernels.fresh_step(batch, shift, centers, labels)
        squares = ((X[places, None].astype(np.float64) - centers) ** 2).sum(axis=2)
        nearest = squares.argmin(axis=1)
        expected = np.zeros((k, 6))
        np.add.at(expected, nearest, X[places])
        np.testing.assert_array_equal(weights, np.bincount(nearest, minlength=k))
        np.testing.assert_allclose(sums, expected, atol=1e-5)
        np.testing.assert_allclose(inertia, squares.min(axis=1).sum(), rtol=1e-5)
