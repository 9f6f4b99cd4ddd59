import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xpulab.kernels import quantiles as module
from xpulab.kernels.quantiles import order_statistics, ordered_counts
from xpulab.kernels.rows import Rows

SHAPES = [(1, 1), (63, 3), (64, 16), (65, 17), (5003, 3), (10007, 70), (1030, 300)]


def table(n, d, dtype):
    rng = np.random.default_rng(0)
    X = (rng.normal(0, 1, (n, d)) * 10.0 ** rng.integers(-20, 20, d)).astype(dtype)
    X[rng.random((n, d)) < 0.1] = np.nan
    X[rng.random((n, d)) < 0.1] = 0
    return X


def at_ranks(X, ranks):
    found = np.full(ranks.shape, np.nan, X.dtype)
    for f in range(X.shape[1]):
        column = np.sort(X[~np.isnan(X[:, f]), f])
        there = (ranks[:, f] >= 0) & (ranks[:, f] < len(column))
        found[there, f] = column[ranks[there, f]]
    return found


@pytest.mark.fraction(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_order_statistics_against_a_sort(device, n, d, dtype):
    X = table(n, d, dtype)
    count = (~np.isnan(X)).sum(axis=0)
    ranks = np.stack([np.zeros(d, int), count // 4, count // 2, count - 1, np.full(d, n)])
    found = order_statistics(Rows.upload(device, X), ranks)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, at_ranks(X, ranks))


def test_order_statistics_of_several_ranks(device):
    X = table(5003, 4, np.float32)
    parts = [Rows.upload(device, part) for part in (X[:17], X[17:17], X[17:])]
    ranks = np.array([[5, 100, 2000, 4000]])
    asked = []

    def reduce(counts):  # the prefixes are known from what is counted on the first of the parts
        prefixes, level = asked[-1]
        return counts + sum(ordered_counts(part, prefixes, level) for part in parts[1:])

    def remember(rows, prefixes, level):
        asked.append((prefixes, level))
        return ordered_counts(rows, prefixes, level)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ordered_counts", remember)
        found = order_statistics(parts[0], ranks, reduce)
    np.testing.assert_array_equal(found, at_ranks(X, ranks))


@pytest.mark.usefixtures("least_memory")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_of_each_byte(device, dtype):
    X = table(3001, 5, dtype)
    width = 8 * X.itemsize
    bits = X.view(f"u{X.itemsize}")
    ordered = np.where(bits >> (width - 1), ~bits, bits | bits.dtype.type(1 << (width - 1)))
    rows = Rows.upload(device, X)
    for level in range(X.itemsize):
        known = ordered[[5, 1000]].astype(np.uint64) >> np.uint64(width - 8 * level) if level else np.zeros((2, 5))
        found = ordered_counts(rows, known, level)
        for q, f in np.ndindex(2, 5):
            column = ordered[~np.isnan(X[:, f]), f].astype(object)
            follows = [int(x) >> (width - 8 * level - 8) for x in column]
            expected = np.bincount([x & 255 for x in follows if x >> 8 == int(known[q, f])], minlength=256)
            np.testing.assert_array_equal(found[q, f], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rows_and_no_values(device, dtype):
    for X in (np.empty((0, 3), dtype), np.full((70, 3), np.nan, dtype)):
        rows = Rows.upload(device, X)
        np.testing.assert_array_equal(order_statistics(rows, np.zeros((2, 3), int)), np.full((2, 3), np.nan))
        assert order_statistics(rows, np.zeros((0, 3), int)).shape == (0, 3)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), dtype=st.sampled_from([np.float32, np.float64]))
def test_any_numbers(device, data, dtype):
    width = 8 * np.dtype(dtype).itemsize
    shape = st.tuples(st.integers(1, 150), st.integers(1, 3))
    X = data.draw(hnp.arrays(dtype, shape, elements=st.floats(width=width)))
    ranks = data.draw(hnp.arrays(np.int64, (2, X.shape[1]), elements=st.integers(-1, len(X))))
    found = order_statistics(Rows.upload(device, X), ranks)
    np.testing.assert_array_equal(found, at_ranks(X, ranks))
    assert not np.signbit(found[found == 0]).any()
