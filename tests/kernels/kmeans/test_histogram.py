import numpy as np
import pytest
from spirv import FLOAT64, capabilities

from xpulab.kernels.kmeans.histogram import count_pixels, ranges
from xpulab.kernels.kmeans.lloyd import assign, labels_on_cpu, new_labels
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.catalogue import find
from xpulab.kernels.runtime.device import Device

FLOATS = [np.float32, np.float64]
LOW, HIGH, SHAPE = (-8.0, -4.0), (8.0, 12.0), (32, 64)  # 4 columns and 2 lines per unit, so every edge is exact


def labelled(device, X, k):
    """Return rows, and the nearest of k centres for each row."""
    centers = np.random.default_rng(1).normal(0, 3, (k, X.shape[1])).astype(X.dtype)
    rows, labels = Rows.upload(device, X), new_labels(device, len(X))
    assign(rows, None, centers, labels, again=False)
    return rows, labels


def expected(X, labels, k, features, low=LOW, high=HIGH, shape=SHAPE):
    """Compute NumPy's histogram. Its last bins include their upper edges, but no row of the tests is there."""
    x, y = X[:, features[0]], X[:, features[1]]
    edges = [
        np.arange(k + 1) - 0.5,
        np.linspace(low[1], high[1], shape[0] + 1),
        np.linspace(low[0], high[0], shape[1] + 1),
    ]
    assert not ((x == high[0]) | (y == high[1])).any()
    return np.histogramdd(np.column_stack([labels, y, x]), edges)[0]


@pytest.mark.fraction(3)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("n", "d", "k", "features"),
    [(1, 2, 1, (0, 1)), (63, 2, 3, (1, 0)), (64, 1, 2, (0, 0)), (10007, 2, 8, (0, 1)), (70001, 5, 13, (4, 2))],
)
def test_counts_are_those_of_numpy(device, n, d, k, features, dtype, shared):
    # Some rows are outside on each side; whole and half units are the edges of pixels.
    X = (np.round(np.random.default_rng(0).normal(2, 4, (n, d)) * 16) / 16).astype(dtype)
    X[np.isin(X, HIGH)] = 0
    rows, labels = labelled(device, X, k)
    counts = count_pixels(rows, labels, k, features, LOW, HIGH, SHAPE, shared)
    assert (counts.dtype, counts.shape) == (np.int32, (k, *SHAPE))
    np.testing.assert_array_equal(counts, expected(X, labels_on_cpu(labels, n), k, features))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_outside_are_not_counted_and_the_upper_edge_is_outside(device, dtype):
    inside = [[-8, -4], [0, 0], [7.9, 11.9]]
    outside = [[8, 0], [0, 12], [-8.1, 0], [0, -4.1], [1e30, 0], [0, -1e30]]
    rows, labels = labelled(device, np.array(outside + inside, dtype), 1)
    counts = count_pixels(rows, labels, 1, (0, 1), LOW, HIGH, SHAPE)
    assert counts.sum() == 3
    assert [tuple(place) for place in np.argwhere(counts)] == [(0, 0, 0), (0, 8, 32), (0, 31, 63)]


def test_no_rows(device):
    rows, labels = Rows.upload(device, np.empty((0, 2), np.float32)), new_labels(device, 0)
    assert not count_pixels(rows, labels, 3, (0, 1), LOW, HIGH, SHAPE).any()
    low, high = ranges(rows)
    assert (low == np.inf).all()
    assert (high == -np.inf).all()


def test_another_picture_with_fewer_clusters_starts_from_zero(device):
    X = np.random.default_rng(0).uniform(-4, 4, (5000, 2)).astype(np.float32)
    rows, labels = labelled(device, X, 8)
    count_pixels(rows, labels, 8, (0, 1), LOW, HIGH, SHAPE)
    assign(rows, None, np.zeros((2, 2), np.float32), labels, again=False)
    counts = count_pixels(rows, labels, 2, (0, 1), LOW, HIGH, (3, 5))
    assert counts.shape == (2, 3, 5)
    assert counts.sum() == 5000
    assert not counts[1].any()


@pytest.mark.parametrize("shared", [False, True])
def test_shards_add_up_to_the_whole(device, shared):
    X = np.random.default_rng(0).normal(2, 3, (10007, 3)).astype(np.float32)

    def counted(block):
        rows, labels = labelled(device, block, 4)
        return count_pixels(rows, labels, 4, (0, 2), LOW, HIGH, SHAPE, shared)

    parts = [counted(X[a:b]) for a, b in [(0, 3), (3, 3), (3, 5000), (5000, 10007)]]
    np.testing.assert_array_equal(sum(parts), counted(X))


def test_more_counters_than_32_bits_reach_are_refused(device):
    rows, labels = labelled(device, np.ones((100, 2), np.float32), 2)
    with pytest.raises(ValueError, match=r"2 clusters on 32768 × 32768 pixels: expected at most 2,147,483,616"):
        count_pixels(rows, labels, 2, (0, 1), LOW, HIGH, (1 << 15, 1 << 15))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 65, 5000])
def test_ranges(device, n, dtype):
    X = np.random.default_rng(0).normal(-50, 3, (n, 3)).astype(dtype)  # zero, which fills blocks, is far away
    low, high = ranges(Rows.upload(device, X))
    np.testing.assert_array_equal(low, X.min(axis=0))
    np.testing.assert_array_equal(high, X.max(axis=0))


@pytest.mark.parametrize("shared", [False, True])
def test_float32_rows_need_no_float64(shared):
    device = Device()
    rows, labels = labelled(device, np.ones((100, 2), np.float32), 2)
    ranges(rows)
    count_pixels(rows, labels, 2, (0, 1), LOW, HIGH, SHAPE, shared)
    assert {"count", "column_range"} <= {kernel.name for kernel in device.programs}
    assert [kernel.name for kernel in device.programs if FLOAT64 in capabilities(find(kernel).spirv)] == []
