import itertools

import numpy as np
import pytest
from numba_dpex.kernel_api import group_barrier

from xpulab.exceptions import DeviceError, KernelBuildError, KernelLaunchError
from xpulab.kernels import launch as module
from xpulab.kernels.launch import Local, fma, index, launch, prefetch, specialise


def add(item, x, value):
    x[item.get_global_id(0)] += value


@pytest.fixture
def ones(device):
    return device.array(np.ones(512, np.float32))


def test_launch_runs_every_work_item(device, ones):
    launch(device, add, 2, 256, ones, np.float32(2))
    np.testing.assert_array_equal(device.fetch(ones), np.full(512, 3, np.float32))


def test_launches_run_in_order(device, ones):
    for _ in range(50):
        launch(device, add, 2, 256, ones, np.float32(1))
    np.testing.assert_array_equal(device.fetch(ones), np.full(512, 51, np.float32))


def reverse(item, x, shared):
    lane, size = item.get_local_id(0), item.get_local_range(0)
    shared[index(lane)] = x[index(item.get_global_id(0))]
    group_barrier(item.get_group())
    x[index(item.get_global_id(0))] = shared[index(size - 1 - lane)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_group_has_memory_of_its_own(device, dtype):
    host = np.arange(4 * 64).astype(dtype)
    array = device.array(host)
    launch(device, reverse, 4, 64, array, Local(64, np.dtype(dtype)))
    np.testing.assert_array_equal(device.fetch(array), host.reshape(4, 64)[:, ::-1].ravel())


def test_more_memory_than_a_group_can_have_raises(device, ones):
    with pytest.raises(KernelLaunchError, match="did not take 4 work-groups"):
        launch(device, reverse, 4, 64, ones, Local(2**24, np.dtype(np.float32)))


def add_after_asking(item, x, value, ahead):
    i = item.get_global_id(0)
    prefetch(x, index(i + ahead), index(64))
    x[index(i)] += value


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_asked_for_early_is_not_changed(device, dtype):
    array = device.array(np.ones(512, dtype))
    launch(device, add_after_asking, 2, 256, array, dtype(2), np.int64(500))  # beyond the end as well
    np.testing.assert_array_equal(device.fetch(array), np.full(512, 3))


@pytest.mark.parametrize(("groups", "size"), [(1, 2**14), (2**30, 256), (0, 64), (4, 0), (-1, 64)])
def test_sizes_beyond_the_device_raise(device, ones, groups, size):
    with pytest.raises(KernelLaunchError, match=r"add: .* were asked for"):
        launch(device, add, groups, size, ones, np.float32(1))
    np.testing.assert_array_equal(device.fetch(ones), np.ones(512, np.float32))


def weigh(item, x, y, weight):
    i = item.get_global_id(0)
    prefetch(y, index(i), index(64))
    x[index(i)] += weight[index(0)] * y[index(i)]


def test_an_array_is_passed_as_the_first_and_as_another(device):
    x, y = (device.array(np.full(512, value, np.float32)) for value in (1, 2))
    three = device.array(np.array([3], np.float32))
    for first, second in ((x, y), (y, x), (x, x)):
        launch(device, weigh, 2, 256, first, second, three)
    np.testing.assert_array_equal(device.fetch(x), np.full(512, 28))
    np.testing.assert_array_equal(device.fetch(y), np.full(512, 23))


def test_a_submission_that_the_runtime_refuses_raises(device, ones, monkeypatch):
    monkeypatch.setattr(module, "_MAX_ITEMS", 2**40)
    with pytest.raises(KernelLaunchError, match="did not take"):
        launch(device, add, 2**24, 256, ones, np.float32(1))


def test_a_compilation_can_be_left_between_any_two_of_its_steps(device, ones, monkeypatch, tmp_path):
    monkeypatch.setenv("XPULAB_CACHE", str(tmp_path))

    def twice(item, x):
        x[index(item.get_global_id(0))] *= np.float32(2)

    def leave():
        if not next(steps):
            raise KeyboardInterrupt

    monkeypatch.setattr(device, "while_compiling", leave)
    for n in (0, 1, 7, 20):
        steps = iter([True] * n + [False])
        with pytest.raises(KeyboardInterrupt):
            launch(device, twice, 2, 256, ones)
    steps = itertools.repeat(True)
    launch(device, twice, 2, 256, ones)
    np.testing.assert_array_equal(device.fetch(ones), np.full(512, 2, np.float32))


def test_a_kernel_that_does_not_compile_raises(device, ones):
    def wrong(item, x):
        x[item.get_global_id(0)] = no_such_name  # noqa: F821

    with pytest.raises(KernelBuildError, match="wrong does not compile"):
        launch(device, wrong, 1, 1, ones)


def test_a_kernel_that_the_device_refuses_raises(device, ones, monkeypatch):
    def fine(item, x):
        x[item.get_global_id(0)] = np.float32(1)

    build = module.create_program_from_spirv
    monkeypatch.setattr(module, "create_program_from_spirv", lambda queue, spirv: build(queue, spirv[:40]))
    with pytest.raises(KernelBuildError, match="refused the kernel"):
        launch(device, fine, 1, 1, ones)


def test_an_exception_inside_a_kernel_is_refused(device, ones):
    def checked(item, x):
        if x[item.get_global_id(0)] < 0:
            raise ValueError

    with pytest.raises(KernelBuildError, match="write an error code instead"):
        launch(device, checked, 1, 1, ones)


def test_division_by_zero_gives_infinity_and_does_not_end_the_work_item(device, ones):
    def divide(item, x, divisor):
        i = item.get_global_id(0)
        x[i] = x[i] / divisor

    launch(device, divide, 2, 256, ones, np.float32(0))
    assert np.isinf(device.fetch(ones)).all()


@pytest.mark.parametrize("value", [2, 2.0, None, np.float16(2)])
def test_arguments_that_would_smuggle_in_other_types_are_refused(device, ones, value):
    with pytest.raises(DeviceError, match="expected"):
        launch(device, add, 2, 256, ones, value)


def test_arrays_with_gaps_are_refused(device, ones):
    with pytest.raises(KernelLaunchError, match="flat contiguous"):
        launch(device, add, 1, 256, ones[::2], np.float32(1))


def test_a_kernel_is_compiled_once_per_argument_types(device, ones):
    def own(item, x, value):
        x[item.get_global_id(0)] += value

    first = specialise(device, own, ones, np.float32(1))
    assert specialise(device, own, device.array(np.ones(7, np.float32)), np.float32(2)) is first
    assert specialise(device, own, device.array(np.ones(7)), np.float64(2)) is not first
    assert device.compile_seconds > 0


def test_fma_rounds_once(device):
    def fused(item, x, a, b, c):
        x[item.get_global_id(0)] = fma(a, b, c)

    x = device.array(np.zeros(16, np.float32))
    a = np.float32(1 + 2**-12)
    launch(device, fused, 1, 16, x, a, a, np.float32(-1))
    exact = np.float32(np.float64(a) * np.float64(a) - 1)
    assert exact != np.float32(a * a) - np.float32(1)
    np.testing.assert_array_equal(device.fetch(x), np.full(16, exact))
