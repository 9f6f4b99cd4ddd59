"""The compiled host functions against NumPy."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from xpulab.exceptions import KernelBuildError
from xpulab.kernels.on_cpu import host
from xpulab.kernels.on_cpu.host_functions import FUNCTIONS


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


def test_the_machine_code_does_what_the_python_says(centers):
    """Each function's Python source gives the same bits, except where vectors add numbers in another order."""
    k, d = centers.shape
    rng = np.random.default_rng(5)
    totals, moved = np.abs(rng.normal(size=(k, d + 1))), np.empty_like(centers)
    expected, ended = np.empty_like(centers), np.empty(2)
    FUNCTIONS["move_centers"](totals.ravel(), centers.ravel(), k, d, expected.reshape(-1))
    host.move_centers(totals, centers, moved)
    np.testing.assert_array_equal(moved, expected)
    FUNCTIONS["finish"](50.0, totals.ravel(), centers.ravel(), k, d, expected.reshape(-1), ended)
    assert host.finish(50.0, totals, centers, moved) == pytest.approx(tuple(ended), rel=1e-12)


@pytest.fixture
def fresh():
    """The module as it is before it has loaded a library."""
    spec = importlib.util.find_spec(host.__name__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("level", host.LEVELS)
def test_every_level_s_library_has_all_functions(level, fresh):
    fresh.LEVELS = {level: frozenset()}
    for dtype in (np.float32, np.float64):
        centers, moved = np.eye(3, dtype=dtype), np.empty((3, 3), dtype)
        totals = np.array([[2.0, 0, 0, 2], [0, 4, 0, 2], [0, 0, 2, 1]])
        assert fresh.finish(9.0, totals, centers, moved)[1] == 2  # from 1 to 2, twice
        np.testing.assert_array_equal(moved, np.diag([1, 2, 2]))
    assert f" {host.library_file(level)}\n" in Path("/proc/self/maps").read_text()


def test_a_library_that_cannot_be_loaded_is_an_error_that_says_what_to_type(fresh, tmp_path):
    (tmp_path / "host.so").write_bytes(b"no library")
    fresh.library_file = lambda level: tmp_path / "host.so"
    with pytest.raises(KernelBuildError, match=r"host.so cannot be loaded: .*; install xpulab again"):
        fresh.finish(9.0, np.ones((3, 4)), np.eye(3), np.empty((3, 3)))


def test_arrays_that_machine_code_would_misread_are_refused(centers):
    totals = np.ones((7, 4))
    with pytest.raises(TypeError, match="an array of int64 was given, float64 expected"):
        host.move_centers(totals.astype(np.int64), centers, centers.copy())
    with pytest.raises(TypeError, match=r"an array of shape \(7, 3\) has gaps, or is not in C order"):
        host.move_centers(totals, np.asfortranarray(centers), centers.copy())
    with pytest.raises(TypeError, match="has gaps"):
        host.move_centers(totals, np.repeat(centers, 2, axis=1)[:, ::2], centers.copy())


def test_read_only_and_empty_arrays_are_read(centers):
    expected, moved = np.empty_like(centers), np.empty_like(centers)
    totals = np.ones((7, 4))
    host.move_centers(totals, centers, expected)
    for array in (totals, centers):
        array.flags.writeable = False
    host.move_centers(totals, centers, moved)
    np.testing.assert_array_equal(moved, expected)
    assert host.count_positive(np.empty(0, np.int32), np.empty(0, np.float32), 2).tolist() == [0, 0]


@pytest.mark.parametrize("d", [1, 4, 7, 130])
def test_compared_rows_against_numpy(d):
    rng = np.random.default_rng(0)
    X, Q = rng.normal(size=(50, d)).astype(np.float32), rng.normal(size=(3, d))
    places = rng.integers(0, 50, size=(3, 6))
    places[1, 4] = -1
    away = X[places] - Q[:, None]
    expected = {
        "product": (X[places] * Q[:, None]).sum(axis=2),
        "squares": (away**2).sum(axis=2),
        "absolute": np.abs(away).sum(axis=2),
        "largest": np.abs(away).max(axis=2),
    }
    for kind, numbers in expected.items():
        numbers[1, 4] = np.inf
        np.testing.assert_allclose(host.compare_with(X, Q, places, kind), numbers, rtol=1e-12, atol=1e-14)
