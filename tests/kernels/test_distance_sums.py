import numpy as np
import pytest
from scipy.spatial.distance import cdist

from xpulab.kernels import distance_sums as module
from xpulab.kernels.distance_sums import Queries

KINDS = {"euclidean": {}, "squares": {}, "absolute": {}, "largest": {}, "powers": {"p": 3.5}}
NAMES = {"squares": "sqeuclidean", "absolute": "cityblock", "largest": "chebyshev", "powers": "minkowski"}
TOLERANCES = {np.float32: 1e-6, np.float64: 1e-13}


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "d", "counts"), [(1, 1, [1]), (70, 3, [5, 1, 8, 2100]), (49, 131, [3, 63])])
def test_sums_against_scipy(device, m, d, counts, kind, dtype):
    rng = np.random.default_rng(0)
    Q, X = (rng.normal(100, 1, (n, d)).astype(dtype) for n in (m, sum(counts)))
    X[0] = Q[0]
    found = Queries(device, Q, kind, 3.5).sums(X, np.array(counts))
    table = cdist(Q.astype(np.float64), X.astype(np.float64), NAMES.get(kind, kind), **KINDS[kind])
    expected = np.stack([part.sum(axis=1) for part in np.split(table, np.cumsum(counts)[:-1], axis=1)])
    assert (found.shape, found.dtype) == ((len(counts), m), np.float64)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCES[dtype])


def test_a_sum_of_many_is_as_exact_as_one(device):
    X = np.full((30_000, 1), 0.1, np.float32)
    found = Queries(device, np.zeros((1, 1), np.float32), "absolute").sums(X, np.array([30_000]))
    assert abs(found[0, 0] / (30_000 * float(np.float32(0.1))) - 1) < 1e-7


def test_powers_that_the_dtype_does_not_hold(device):
    X = np.array([[1e-3, 1e-3], [1e3, 0]], np.float32)
    found = Queries(device, np.zeros((1, 2), np.float32), "powers", 30.0).sums(X, np.array([1, 1]))
    np.testing.assert_allclose(found[:, 0], [1e-3 * 2 ** (1 / 30), 1e3], rtol=1e-5)


def test_every_kernel_is_in_the_catalogue():
    assert len({kernel.key for kernel in module.every_kernel()}) == 20
