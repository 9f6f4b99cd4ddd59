import numpy as np
import pytest
from scipy.spatial.distance import cdist

from xpulab.kernels.kmeans.lloyd import transform
from xpulab.kernels.rows import Rows


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (257, 14, 3), (5, 300, 8), (10007, 2, 127), (257, 64, 1000)])
def test_transform_against_scipy(device, n, d, k, dtype):
    rng = np.random.default_rng(0)
    X, centers = rng.normal(100, 1, (n, d)).astype(dtype), rng.normal(100, 1, (k, d)).astype(dtype)
    found = np.concatenate(list(transform(Rows.upload(device, X), centers)))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, cdist(X, centers), rtol=1e-5 if dtype == np.float32 else 1e-12, atol=1e-12)


@pytest.mark.usefixtures("least_memory")
def test_transform_some_rows_at_a_time(device):
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    parts = list(transform(Rows.upload(device, X), X[:5]))
    assert [part.shape for part in parts] == [(64, 5)] * 4 + [(44, 5)]
    np.testing.assert_allclose(np.concatenate(parts), cdist(X, X[:5]), rtol=1e-5, atol=1e-6)


def test_transform_of_no_rows(device):
    rows = Rows.upload(device, np.empty((0, 3), np.float32))
    assert list(transform(rows, np.zeros((4, 3), np.float32))) == []
