"""The compiled host functions against the same in NumPy."""

import numpy as np
import pytest

from xpulab.kernels import host, lloyd, nearest
from xpulab.kernels.rows import Rows


@pytest.fixture(params=["float32", "float64"])
def centers(request):
    return np.random.default_rng(0).normal(size=(7, 3)).astype(request.param)


@pytest.mark.parametrize("anew", [False, True])
def test_packed_centers_are_where_the_kernel_reads_them(centers, anew):
    k, d = centers.shape
    shift, moved = np.arange(d, dtype=centers.dtype), np.arange(k, dtype=np.float64)
    packed = np.full(d + 8 + 8 * d + k + 3, np.nan, centers.dtype)
    norms = (centers.astype(np.float64) ** 2).sum(axis=1)
    host.pack_centers(shift, centers, moved, 4, anew, packed)
    np.testing.assert_array_equal(packed[:d], shift)
    np.testing.assert_allclose(packed[d : d + k], norms, rtol=1e-6)
    assert np.isinf(packed[d + k])
    tiles = packed[d + 8 : -k - 3].reshape(2, d, 4)
    np.testing.assert_array_equal(tiles.transpose(0, 2, 1).reshape(8, d)[:k], -2 * centers)
    np.testing.assert_array_equal(packed[-k - 3 : -3], moved)
    np.testing.assert_allclose(packed[-3:], [2 * norms.max(), 4 * np.finfo(centers.dtype).eps * (k - 1), anew])


def test_a_norm_that_overflows_is_the_largest(centers):
    centers[2] = np.nan
    room = np.empty(3 + 8 + 24 + 7 + 3, centers.dtype)
    host.pack_centers(centers[0], centers, np.zeros(7), 4, False, room)
    assert np.isnan(room[-3])


@pytest.mark.parametrize("twice", [False, True])
def test_moved_grows_by_the_own_step_and_the_longest_of_the_others(centers, twice):
    steps = np.array([0, 3, 1, 2, 3 if twice else 0.5, 0, 0])
    before = centers.astype(np.float64)
    after = before.copy()
    after[:, 1] += steps
    moved = np.ones(7)
    host.widen_moved(before, after, moved)
    others = [np.delete(steps, j).max() for j in range(7)]
    np.testing.assert_allclose(moved, 1 + steps + others)
    assert (moved >= 1 + np.abs(after - centers).sum(axis=1)).all()
    np.testing.assert_array_equal(before, after)


def test_partial_sums_are_added_in_float64(centers):
    dtype, workers, k, width = centers.dtype, 3, 7, 16
    rng = np.random.default_rng(1)
    partial = rng.normal(size=workers * k * 2 * width + workers).astype(dtype)
    partial[-workers:] = [5, 0, 7]
    sums = rng.normal(size=(k, 4))
    expected = sums + partial[:-workers].reshape(workers, k, 2, width).sum(axis=(0, 2), dtype=np.float64)[:, :4]
    assert host.add_partial_sums(partial, workers, width, sums) == 12
    np.testing.assert_allclose(sums, expected, rtol=1e-13)


def test_inertia_of_sums_is_that_of_the_rows(centers):
    rng = np.random.default_rng(2)
    X, labels = rng.normal(size=(40, 3)), rng.integers(7, size=40)
    totals = np.zeros((7, 4))
    np.add.at(totals, labels, np.column_stack([X, np.ones(40)]))
    found = host.inertia_of_sums((X**2).sum(), totals, centers)
    assert found == pytest.approx(((X - centers[labels]) ** 2).sum())
    assert host.inertia_of_sums(-1.0, np.zeros((7, 4)), centers) == 0


def test_rows_without_weight_are_not_counted():
    labels, weights = np.array([0, 2, 2, 1, 2], np.int32), np.array([1, 0, 2, 0, 1e-9], np.float32)
    assert host.count_positive(labels, weights, 4).tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize("heaviest", [0, 3, 6])
def test_means_with_the_order_of_scikit_learn_for_empty_clusters(centers, heaviest):
    rng = np.random.default_rng(3)
    weights = np.array([1.0, 0, 2, 1, 0, 3, 2])
    weights[heaviest] = 9
    sums = rng.normal(size=(7, 3))
    expected = sums.copy()
    for j in range(7):
        expected[j] = expected[j] / weights[j] if weights[j] > 0 else expected[heaviest]
    moved = np.empty_like(centers)
    shift = host.move_centers(np.column_stack([sums, weights]), centers, moved)
    np.testing.assert_array_equal(moved, expected.astype(centers.dtype))
    assert shift == pytest.approx(((moved.astype(np.float64) - centers) ** 2).sum())


def test_an_iteration_that_ends_moves_the_centres_if_no_cluster_is_empty(centers):
    totals = np.abs(np.random.default_rng(4).normal(size=(7, 4)))
    moved, expected = np.zeros_like(centers), np.zeros_like(centers)
    ended = host.finish(50.0, totals, centers, moved)
    assert ended == (host.inertia_of_sums(50.0, totals, centers), host.move_centers(totals, centers, expected))
    np.testing.assert_array_equal(moved, expected)
    totals[5] = moved[:] = 0
    assert host.finish(50.0, totals, centers, moved) == (host.inertia_of_sums(50.0, totals, centers), -1)
    assert not moved.any()


def test_without_a_folder_for_machine_code_it_is_compiled_for_this_process(monkeypatch):
    def refuse(function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return "compiled"

    monkeypatch.setattr(host, "_kept", True)
    monkeypatch.setattr(host.numba, "njit", refuse)
    assert host._compiled(len) == "compiled"
    assert not host._kept


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_prepared_is_what_an_iteration_calls(device, dtype, monkeypatch):
    monkeypatch.setattr(nearest, "_MOST_LISTED", 2)
    asked = []
    host.prepare(np.dtype(dtype), lambda: asked.append(1))
    functions = [host.pack_centers, host.widen_moved, host.add_partial_sums, host.finish, host.move_centers]
    known = [len(function.signatures) for function in functions]
    X = np.random.default_rng(0).normal(size=(500, 14)).astype(dtype)
    rows, labels, centers = Rows.upload(device, X), lloyd.new_labels(device, 500), X[:60]
    labels._pause = 0
    for _ in range(3):
        sums, weights, _ = lloyd.lloyd_step(rows, X[0], centers, labels)
        totals, moved = np.column_stack([sums, weights]), np.empty_like(centers)
        host.finish(1.0, totals, centers, moved)
        host.move_centers(totals, centers, moved)
        centers = moved
    assert labels.span
    assert [len(function.signatures) for function in functions] == known
    asked.clear()
    host.prepare(np.dtype(dtype), lambda: asked.append(1))
    assert not asked


def test_a_wish_to_leave_is_heard_between_two_compilations(monkeypatch):
    def leave():
        raise KeyboardInterrupt

    monkeypatch.setattr(host, "_ready", set())
    with pytest.raises(KeyboardInterrupt):
        host.prepare(np.dtype("float32"), leave)
    assert not host._ready
