import numpy as np
import pytest

from xpulab.kernels.project import project, projected
from xpulab.kernels.row_passes import column_sums, take
from xpulab.kernels.rows import Rows

SHAPES = [(1, 1, 1), (63, 3, 2), (64, 16, 5), (65, 17, 6), (5003, 1, 4), (10007, 70, 10), (1030, 300, 33)]
TOLERANCES = [(np.float32, 2e-6), (np.float64, 2e-15)]


def tables(n, d, k, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(100, 1, (n, d)).astype(dtype)
    return X, rng.normal(size=(d, k)).astype(dtype), np.full(d, 100, dtype), rng.normal(size=k).astype(dtype)


def reference(X, matrix, shift, offset):
    return (X.astype(np.float64) - shift) @ matrix.astype(np.float64) + offset.astype(np.float64)


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_project_against_numpy(device, n, d, k, dtype, tolerance):
    X, matrix, shift, offset = tables(n, d, k, dtype)
    found = np.concatenate(list(project(Rows.upload(device, X), matrix, shift, offset)))
    assert (found.dtype, found.shape) == (dtype, (n, k))
    np.testing.assert_allclose(found, reference(X, matrix, shift, offset), rtol=0, atol=tolerance * 4 * d**0.5 + 1e-15)


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.parametrize("subtracting", [False, True])
def test_projected_against_numpy(device, n, d, k, subtracting, dtype, tolerance):
    X, matrix, shift, offset = tables(n, d, k, dtype)
    rows = Rows.upload(device, X, np.arange(n))
    targets = np.random.default_rng(1).normal(size=(n, k)).astype(dtype) if subtracting else np.zeros((n, k), dtype)
    minus = Rows.upload(device, targets) if subtracting else None
    found = projected(rows, matrix, shift, offset, minus)
    assert (found.n_samples, found.n_features, found.dtype) == (n, k, dtype)
    assert found.sample_weight is rows.sample_weight
    expected = reference(X, matrix, shift, offset) - targets
    np.testing.assert_allclose(take(found, np.arange(n)), expected, rtol=0, atol=tolerance * 4 * d**0.5 + 1e-15)
    blocks = device.fetch(found.data).reshape(-1, k, 64).swapaxes(1, 2).reshape(-1, k)
    np.testing.assert_array_equal(blocks[n:], 0)


@pytest.mark.usefixtures("least_memory")
def test_project_without_shift_and_offset_some_rows_at_a_time(device):
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    matrix = np.eye(3, 2)
    parts = list(project(Rows.upload(device, X), matrix))
    assert [part.shape for part in parts] == [(64, 2)] * 4 + [(44, 2)]
    np.testing.assert_array_equal(np.concatenate(parts), X[:, :2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_project_of_no_rows(device, dtype):
    rows = Rows.upload(device, np.empty((0, 3), dtype))
    assert list(project(rows, np.ones((3, 4)))) == []
    found = projected(rows, np.ones((3, 4)))
    assert (found.n_samples, found.n_features) == (0, 4)
    np.testing.assert_array_equal(column_sums(found), np.zeros(4))


def test_shapes_that_do_not_fit_are_refused(device):
    rows = Rows.upload(device, np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match=r"shape \(2, 4\) was given for rows of 3 features"):
        projected(rows, np.ones((2, 4)))
    with pytest.raises(ValueError, match="5 rows of 3 features in float32 were given to subtract, 5 of 4"):
        projected(rows, np.ones((3, 4)), minus=rows)
