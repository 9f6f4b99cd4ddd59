import copy
import gc
from pathlib import Path

import numpy as np
import pytest

from xpulab.kernels import row_passes
from xpulab.kernels import rows as module
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.row_passes import column_sums, consecutive, find_nonfinite, take
from xpulab.kernels.rows import Rows, are_few, copying
from xpulab.sharing.memory import SharedBlock

SHAPES = [(1, 1), (5, 3), (64, 14), (257, 2), (10007, 14), (10007, 64), (1030, 130), (257, 300)]


def changed(device, **attributes):
    """Return a copy of the device that differs in some attributes."""
    other = copy.copy(device)
    vars(other).update(attributes)
    return other


def table(n, d, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(3, 1, (n, d)).astype(dtype)


@pytest.mark.parametrize(
    ("n", "d", "k", "few"),
    [
        (0, 5, 1, False),
        (1536, 14, 3, True),
        (1536, 14, 4, False),
        (64, 1024, 1, True),
        (64, 1025, 1, False),
        (3, 20_000, 2, True),  # kernels compute 64 rows in place of 3
        (4, 12_000, 2, True),
        (3, 1_000_000, 2, False),
        (3, 20_000, 20_000, False),
    ],
)
def test_few_rows_are_those_that_a_kernel_passes_over_in_no_less_time(n, d, k, few):
    assert are_few(n, d, k) == few


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_upload_keeps_every_number(device, n, d, dtype, order):
    X = np.asarray(table(n, d, dtype), order=order)
    rows = Rows.upload(device, X)
    assert (rows.n_samples, rows.n_features, rows.dtype, rows.sample_weight) == (n, d, dtype, None)
    np.testing.assert_array_equal(take(rows, np.arange(n)), X)


@pytest.mark.fraction(2)
@pytest.mark.parametrize("wide", [True, False], ids=["AVX-512", "AVX2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 7, 8, 9, 14, 15, 16, 17, 31, 33, 300])
def test_consecutive_rows_come_back_in_their_order(device, d, dtype, wide):
    device = changed(device, wide=wide)  # registers of half the size transpose smaller squares
    X = table(333, d, dtype)
    rows = Rows.upload(device, X)
    for first, last in [(0, 333), (0, 64), (64, 128), (63, 65), (100, 333), (332, 333), (7, 7)]:
        np.testing.assert_array_equal(consecutive(rows, first, last), X[first:last])
    assert consecutive(rows, 0, 0).shape == (0, d)


@pytest.mark.usefixtures("least_memory")
@pytest.mark.parametrize("order", ["C", "F"])
def test_upload_in_many_stages(device, order):
    X = np.asarray(table(333, 5), order=order)
    np.testing.assert_array_equal(take(Rows.upload(device, X), np.arange(333)), X)


@pytest.fixture(params=[1, 3, 20])
def reader(request, device, monkeypatch):
    """The device with some compute units, which reads a block of 5 columns at a time; four of them may pass."""
    monkeypatch.setattr(module, "_READ_BYTES", 64 * 5 * 8)
    monkeypatch.setattr(module, "_STREAM_BYTES", 4 * 64 * 5 * 8)
    return changed(device, compute_units=request.param)


def test_rows_are_read_once_each_and_looked_at(reader):
    X = table(1000, 5, np.float64)
    seen = np.zeros(1000, int)

    def fill(first, part):
        part[...] = X[first : first + len(part)]
        seen[first : first + len(part)] += 1

    rows, finite = Rows.read(reader, X.shape, X.dtype, fill)
    assert finite
    assert (seen == 1).all()
    np.testing.assert_array_equal(take(rows, np.arange(1000)), X)
    assert find_nonfinite(rows) == -1  # nothing but zeros after the last row
    for row in (0, 700, 999):
        for value in (np.nan, -np.inf):
            before, X[row, 3] = X[row, 3], value
            assert not Rows.read(reader, X.shape, X.dtype, fill)[1]
            X[row, 3] = before


@pytest.mark.parametrize("n", [1, 64, 1000, 1537])
def test_rows_that_pass_are_all_rows_in_order(reader, n):
    X, weights = table(n, 5, np.float64), np.arange(n) + 1.0
    X[n - 1, 2] = np.nan
    seen, last = np.empty((0, 5)), -1
    for rows, first in Rows.stream(reader, X.shape, X.dtype, copying(X), weights):
        assert first == len(seen)
        assert first % BLOCK == 0
        np.testing.assert_array_equal(rows.weights_on_cpu(), weights[first : first + rows.n_samples])
        seen = np.concatenate([seen, take(rows, np.arange(rows.n_samples))])
        last = find_nonfinite(rows)
        assert rows.n_samples <= max(4, min(reader.compute_units, module._READERS)) * 64
    np.testing.assert_array_equal(seen, X)
    assert first + last == n - 1  # nothing but zeros after the last row of each part


def test_no_rows_pass(device):
    assert list(Rows.stream(device, (0, 3), np.float32, copying(np.empty((0, 3), np.float32)))) == []


def test_a_part_of_rows(device):
    X, weights = table(1000, 5), np.arange(1000.0)
    part = Rows.upload(device, X, weights).part(128, 300)
    gc.collect()  # the part keeps the memory of the whole
    np.testing.assert_array_equal(take(part, np.arange(300)), X[128:428])
    np.testing.assert_array_equal(part.weights_on_cpu(), weights[128:428])
    np.testing.assert_allclose(column_sums(part.part(0, 256)), X[128:384].sum(axis=0, dtype=np.float64), rtol=1e-5)


def test_an_error_while_rows_are_read_is_raised(device):
    def fill(first, part):
        raise OSError("the process has ended")

    with pytest.raises(OSError, match="has ended"):
        Rows.read(changed(device, compute_units=3), (1000, 5), np.float32, fill)


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(0, 3), (40_011, 64), *SHAPES])
def test_rows_that_are_read_by_columns_are_the_same(device, n, d, dtype):
    X = table(n, d, dtype)

    def fill(first, part):
        rows = X[first : first + int(np.prod(part.shape[:-1]))]
        part[...] = rows.reshape(part.shape)

    weights = np.arange(n, dtype=dtype)
    rows, finite = Rows.read(device, (n, d), dtype, fill, weights, by_columns=True)
    assert finite
    np.testing.assert_array_equal(take(rows, np.arange(n)), X)
    for part, first in Rows.stream(device, (n, d), dtype, fill, weights, by_columns=True):
        np.testing.assert_array_equal(take(part, np.arange(part.n_samples)), X[first : first + part.n_samples])
        np.testing.assert_array_equal(part.weights_on_cpu(), weights[first : first + part.n_samples])
    if n > 2:
        for place in (0, n - 1):
            X[place, d - 1] = np.nan
            assert not Rows.read(device, (n, d), dtype, fill, by_columns=True)[1]
            X[place, d - 1] = 1


def test_upload_of_a_strided_view(device):
    X = table(1000, 30)
    np.testing.assert_array_equal(take(Rows.upload(device, X[::3, 4:20:5]), np.arange(334)), X[::3, 4:20:5])


def test_upload_of_a_read_only_memory_map(device, tmp_path):
    X = table(777, 9)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.testing.assert_array_equal(take(Rows.upload(device, mapped[5:700]), np.arange(695)), X[5:700])


def test_upload_does_not_change_the_rows(device):
    X = table(100, 4)
    before = X.copy()
    rows = Rows.upload(device, X, np.ones(100))
    X[:] = 0
    np.testing.assert_array_equal(take(rows, np.arange(100)), before)


def test_weights_take_the_dtype_of_the_rows(device):
    rows = Rows.upload(device, table(100, 4), np.arange(100.0))
    np.testing.assert_array_equal(device.fetch(rows.sample_weight, stop=100), np.arange(100, dtype=np.float32))
    assert rows.sample_weight.dtype == np.float32


def test_nbytes_is_little_more_than_the_rows(device):
    X = table(100_000, 14)
    assert X.nbytes <= Rows.upload(device, X).nbytes < 1.01 * X.nbytes


def test_shapes_that_do_not_fit_are_refused(device):
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        Rows.upload(device, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"shape \(3, 0\)"):
        Rows.upload(device, np.zeros((3, 0), np.float32))
    with pytest.raises(ValueError, match="for 3 rows"):
        Rows.upload(device, np.zeros((3, 2), np.float32), np.ones(4))


def test_no_rows(device):
    rows = Rows.upload(device, np.empty((0, 3), np.float32), np.empty(0))
    np.testing.assert_array_equal(column_sums(rows), np.zeros(3))
    assert take(rows, []).shape == (0, 3)
    assert find_nonfinite(rows) == -1
    with pytest.raises(IndexError):
        take(rows, [0])


@pytest.mark.fraction(3)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-13)])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_column_sums(device, n, d, dtype, tolerance):
    X = table(n, d, dtype)
    shift = X.mean(axis=0)
    centred = (X - shift).astype(np.float64)
    rows = Rows.upload(device, X, np.full(n, 7.0))  # weights are not used
    np.testing.assert_allclose(column_sums(rows), X.sum(axis=0, dtype=np.float64), rtol=tolerance)
    np.testing.assert_allclose(column_sums(rows, shift, squared=True), (centred**2).sum(axis=0), rtol=tolerance)
    np.testing.assert_allclose(column_sums(rows, shift), centred.sum(axis=0), atol=n * tolerance)


def test_column_sums_some_spans_at_a_time(device, monkeypatch):
    monkeypatch.setattr(row_passes, "_PARTIAL_BYTES", 3 * 5 * BLOCK * 4)
    X = table(10_007, 5)
    np.testing.assert_allclose(column_sums(Rows.upload(device, X)), X.sum(axis=0, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("times", [1, 100])  # few are copied by the host
def test_take_subtracts_the_shift(device, times):
    X = table(500, 6)
    shift = X.mean(axis=0)
    index = [499, 0, 64, 64, 63] * times
    np.testing.assert_array_equal(take(Rows.upload(device, X), index, shift), X[index] - shift)


@pytest.mark.parametrize("index", [[-1], [500], [3, 1000]])
def test_take_of_a_row_that_is_not_there(device, index):
    with pytest.raises(IndexError, match="of 500"):
        take(Rows.upload(device, table(500, 6)), index)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 63, 64, 9999])
def test_find_nonfinite(device, value, at):
    X = table(10_000, 14)
    assert find_nonfinite(Rows.upload(device, X)) == -1
    X[at, 13] = value
    X[at:, 0] = np.nan
    assert find_nonfinite(Rows.upload(device, X)) == at


def test_the_largest_numbers_are_finite(device):
    assert find_nonfinite(Rows.upload(device, np.full((70, 300), np.finfo(np.float32).max))) == -1


def shared(X):
    block = SharedBlock.create(X.nbytes)
    block.write(np.ascontiguousarray(X), 0)
    return block


@pytest.mark.fraction(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), [(30_001, 14), (64 * 300, 64), (4097, 130), (1, 300_000), (100, 4), (0, 3)])
def test_adopted_rows_are_those_of_the_block(device, n, d, dtype):
    X = table(n, d, dtype)
    with shared(X) as block:
        rows = Rows.adopt(device, block, X.shape, dtype, np.ones(n))
    assert rows.shared == (device.shares_memory and X.nbytes >= 1 << 20)
    np.testing.assert_array_equal(take(rows, np.arange(n)), X)
    assert find_nonfinite(rows) == -1  # also what fills the last block
    np.testing.assert_allclose(column_sums(rows), X.sum(axis=0, dtype=np.float64), rtol=1e-5)


def test_adopted_rows_take_no_further_memory_and_free_their_block(device):
    if not device.shares_memory:
        pytest.skip("rows are adopted where the host shares the device's memory")

    def blocks() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:xpulab ")

    gc.collect()
    before = blocks()
    X = table(100_000, 14)
    with shared(X) as block:
        rows = Rows.adopt(device, block, X.shape, np.float32)
        assert blocks() == before + 1
        laid_out = device.fetch(rows.data, stop=64 * 14).reshape(14, 64).T
        np.testing.assert_array_equal(laid_out, X[:64])
        np.testing.assert_array_equal(block.array((14, 64), np.float32).T, X[:64])
    del block
    np.testing.assert_array_equal(take(rows, [0, 99_999]), X[[0, -1]])
    del rows
    assert blocks() == before
    fresh = device.empty(100_000 * 14, np.float32)  # SYCL may give out the same memory again
    device.store(np.ones(100_000 * 14, np.float32), fresh)
    assert device.fetch(fresh).min() == 1


def test_a_device_with_memory_of_its_own_gets_a_copy(device):
    X, device = table(30_001, 14), changed(device, shares_memory=False)
    with shared(X) as block:
        rows = Rows.adopt(device, block, X.shape, np.float32)
        assert not rows.shared
        np.testing.assert_array_equal(block.array(X.shape, np.float32), X)
    np.testing.assert_array_equal(take(rows, np.arange(len(X))), X)
