import numpy as np
import pytest

from xpulab.kernels.norms import NORMS, normalised
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows

NORM = {
    "l1": lambda X: np.abs(X).sum(axis=1),
    "l2": lambda X: np.sqrt(np.square(X).sum(axis=1)),
    "max": lambda X: np.abs(X).max(axis=1),
}


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (63, 3), (64, 16), (65, 17), (5003, 1), (1030, 300)])
def test_each_row_is_divided_by_its_norm(device, n, d, norm, dtype):
    X = np.random.default_rng(0).normal(0, 3, (n, d)).astype(dtype)
    X[n // 2] = 0
    norms = NORM[norm](X.astype(np.float64))
    norms[n // 2] = 1
    rows = Rows.upload(device, X, np.arange(n))
    found = normalised(rows, norm)
    assert (found.n_samples, found.n_features, found.dtype) == (n, d, X.dtype)
    assert found.sample_weight is rows.sample_weight
    np.testing.assert_allclose(take(found, np.arange(n)), X / norms[:, None], rtol=(d + 9) * np.finfo(dtype).eps)
    blocks = device.fetch(found.data).reshape(-1, d, 64).swapaxes(1, 2).reshape(-1, d)
    np.testing.assert_array_equal(blocks[n:], 0)


@pytest.mark.parametrize("norm", NORMS)
def test_no_rows(device, norm):
    found = normalised(Rows.upload(device, np.empty((0, 3))), norm)
    assert (found.n_samples, found.n_features) == (0, 3)


@pytest.mark.parametrize("norm", NORMS)
def test_a_row_of_nearly_0_stays_as_it_is(device, norm):
    X = np.array([[1e-16, -1e-16], [1e-10, 0]])
    np.testing.assert_array_equal(take(normalised(Rows.upload(device, X), norm), [0, 1]), [X[0], [1, 0]])
