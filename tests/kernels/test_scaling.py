import numpy as np
import pytest

from xpulab.kernels import scaling as module
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import binarised, centred, pieces_on_cpu, stretched

SHAPES = [(1, 1), (63, 3), (64, 16), (65, 17), (5003, 1), (10007, 70), (1030, 300)]


def tables(n, d, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(3, 1, (n, d)).astype(dtype)
    X[n // 2, d // 2] = np.nan
    return X, rng.normal(3, 1, d).astype(dtype), rng.uniform(0.1, 3, d).astype(dtype)


def check(device, found, rows, expected):
    n, d = expected.shape
    assert (found.n_samples, found.n_features, found.dtype) == (n, d, expected.dtype)
    assert found.sample_weight is rows.sample_weight
    np.testing.assert_array_equal(take(found, np.arange(n)), expected)
    blocks = device.fetch(found.data).reshape(-1, d, 64).swapaxes(1, 2).reshape(-1, d)
    np.testing.assert_array_equal(blocks[n:], 0)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_centred_is_numpy_bit_by_bit(device, n, d, dtype):
    X, shift, scale = tables(n, d, dtype)
    rows = Rows.upload(device, X, np.arange(n))
    check(device, centred(rows, shift, scale), rows, (X - shift) / scale)
    check(device, centred(rows, shift, None), rows, X - shift)
    check(device, centred(rows, None, scale), rows, X / scale)
    check(device, centred(rows, None, None), rows, X)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_stretched_is_numpy_bit_by_bit(device, n, d, dtype):
    X, offset, factor = tables(n, d, dtype)
    rows = Rows.upload(device, X)
    expected = X * factor + offset
    check(device, stretched(rows, factor, offset), rows, expected)
    check(device, stretched(rows, factor, offset, 2.5, 7), rows, np.clip(expected, dtype(2.5), dtype(7)))
    check(device, stretched(rows, factor, offset, high=4), rows, np.minimum(expected, dtype(4)))


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_binarised_is_numpy(device, n, d, dtype):
    X = np.random.default_rng(0).integers(-2, 3, (n, d)).astype(dtype)
    rows = Rows.upload(device, X, np.arange(n))
    for threshold in (-1.5, 0.0, 1.0):
        check(device, binarised(rows, threshold), rows, (dtype(threshold) < X).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pieces_on_cpu(device, monkeypatch, dtype):
    monkeypatch.setattr(module, "_PIECE_BYTES", 1000)
    X = np.random.default_rng(0).normal(size=(333, 5)).astype(dtype)
    parts = list(pieces_on_cpu(Rows.upload(device, X)))
    assert len(parts) > 3
    np.testing.assert_array_equal(np.concatenate(parts), X)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rows(device, dtype):
    rows = Rows.upload(device, np.empty((0, 3), dtype))
    assert list(pieces_on_cpu(rows)) == []
    for found in (centred(rows, np.ones(3), np.ones(3)), stretched(rows, np.ones(3), np.ones(3))):
        assert (found.n_samples, found.n_features, found.dtype) == (0, 3, dtype)
