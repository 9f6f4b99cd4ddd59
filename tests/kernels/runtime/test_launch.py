import numpy as np
import pytest
from samples import add, add_after_asking, divide, fused, reverse, weigh

from xpulab.exceptions import DeviceError, KernelBuildError, KernelLaunchError
from xpulab.kernels.language import INTRINSICS, Local, device_function, kernel
from xpulab.kernels.runtime import launch as module
from xpulab.kernels.runtime.catalogue import Compiled, find
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.runtime.launch import launch, program_of

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.fixture
def ones(device):
    return device.array(np.ones(512, np.float32))


def test_launch_runs_every_work_item(device, ones):
    launch(device, add(F32), 2, 256, ones, np.float32(2))
    np.testing.assert_array_equal(device.fetch(ones), np.full(512, 3, np.float32))


def test_launches_run_in_order(device, ones):
    for _ in range(50):
        launch(device, add(F32), 2, 256, ones, np.float32(1))
    np.testing.assert_array_equal(device.fetch(ones), np.full(512, 51, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_group_has_memory_of_its_own(device, dtype):
    host = np.arange(4 * 64).astype(dtype)
    array = device.array(host)
    launch(device, reverse(np.dtype(dtype)), 4, 64, array, Local(64, np.dtype(dtype)))
    np.testing.assert_array_equal(device.fetch(array), host.reshape(4, 64)[:, ::-1].ravel())


def test_more_memory_than_a_group_can_have_raises(device, ones):
    with pytest.raises(KernelLaunchError, match="did not take 4 work-groups"):
        launch(device, reverse(F32), 4, 64, ones, Local(2**24, F32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_prefetch_does_not_change_the_array(device, dtype):
    array = device.array(np.ones(512, dtype))
    kernel = add_after_asking(np.dtype(dtype))
    launch(device, kernel, 2, 256, array, dtype(2), np.int64(500))  # beyond the end as well
    np.testing.assert_array_equal(device.fetch(array), np.full(512, 3))


@pytest.mark.parametrize(("groups", "size"), [(1, 2**14), (2**30, 256), (0, 64), (4, 0), (-1, 64)])
def test_sizes_beyond_the_device_raise(device, ones, groups, size):
    with pytest.raises(KernelLaunchError, match=r"add: .* were asked for"):
        launch(device, add(F32), groups, size, ones, np.float32(1))
    np.testing.assert_array_equal(device.fetch(ones), np.ones(512, np.float32))


def test_one_array_can_be_the_first_and_another_argument(device):
    x, y = (device.array(np.full(512, value, np.float32)) for value in (1, 2))
    three = device.array(np.array([3], np.float32))
    for first, second in ((x, y), (y, x), (x, x)):
        launch(device, weigh(), 2, 256, first, second, three)
    np.testing.assert_array_equal(device.fetch(x), np.full(512, 28))
    np.testing.assert_array_equal(device.fetch(y), np.full(512, 23))


def test_a_submission_that_the_runtime_refuses_raises(device, ones, monkeypatch):
    monkeypatch.setattr(module, "_MAX_ITEMS", 2**40)
    with pytest.raises(KernelLaunchError, match="did not take"):
        launch(device, add(F32), 2**24, 256, ones, np.float32(1))


def test_a_request_to_leave_is_heard_before_each_program_is_built(ones):
    def leave():
        raise KeyboardInterrupt

    device = Device()
    array = device.array(np.ones(512, np.float32))
    device.while_compiling = leave
    with pytest.raises(KeyboardInterrupt):
        launch(device, add(F32), 2, 256, array, np.float32(1))
    device.while_compiling = lambda: None
    launch(device, add(F32), 2, 256, array, np.float32(1))
    np.testing.assert_array_equal(device.fetch(array), np.full(512, 2, np.float32))


@pytest.fixture
def found(monkeypatch):
    """Has the catalogue give something else."""
    return lambda compiled: monkeypatch.setattr(module, "find", lambda kernel: compiled)


@pytest.mark.parametrize("kept", [0, 40])
def test_a_kernel_that_the_device_refuses_raises(found, kept):
    whole = find(divide())
    found(Compiled(whole.entry, whole.digest, whole.spirv[:kept]))
    with pytest.raises(KernelBuildError, match=r"divide: the compiler of .* refused the kernel"):
        program_of(Device(), divide())


def test_a_program_without_the_kernel_raises(found):
    whole = find(divide())
    found(Compiled("other", whole.digest, whole.spirv))
    with pytest.raises(KernelBuildError, match="divide: its program has no other"):
        program_of(Device(), divide())


def test_a_signature_that_is_not_the_compiled_one_raises(found):
    found(find(fused()))
    with pytest.raises(KernelBuildError, match="add: 6 values for the kernel's 8 arguments"):
        program_of(Device(), add(F32))


def test_division_by_zero_gives_infinity_and_does_not_end_the_work_item(device, ones):
    launch(device, divide(), 2, 256, ones, np.float32(0))
    assert np.isinf(device.fetch(ones)).all()


@pytest.mark.parametrize("value", [2, 2.0, None, np.float16(2), np.float64(2), Local(64, F32)])
def test_arguments_that_are_not_what_the_signature_says_are_refused(device, ones, value):
    with pytest.raises(DeviceError, match=r"add: argument 2 is of type .*, float32 expected; wrap a Python number"):
        launch(device, add(F32), 2, 256, ones, value)


@pytest.mark.parametrize("array", [np.ones(512, np.float32), np.float32(1)])
def test_an_argument_that_is_no_device_array_is_refused(device, array):
    with pytest.raises(DeviceError, match=r"add: argument 1 is of type .*, float32\[\] expected"):
        launch(device, add(F32), 2, 256, array, np.float32(1))


def test_an_array_of_another_dtype_is_refused(device):
    x, y = device.array(np.ones(1, np.float32)), device.array(np.ones(1))
    with pytest.raises(DeviceError, match=r"weigh: argument 2 is of type Array of float64, float32\* expected"):
        launch(device, weigh(), 1, 1, x, y, x)


def test_too_few_arguments_are_refused(device, ones):
    with pytest.raises(DeviceError, match="add: 1 arguments were given, 2 expected"):
        launch(device, add(F32), 1, 1, ones)


def test_a_program_is_built_once_per_kernel():
    device = Device()
    first = program_of(device, add(F32))
    assert program_of(device, add(F32)) is first
    assert program_of(device, add(F64)) is not first
    assert device.compile_seconds > 0


def test_fma_rounds_once(device):
    x = device.array(np.zeros(16, np.float32))
    a = np.float32(1 + 2**-12)
    launch(device, fused(), 1, 16, x, a, a, np.float32(-1))
    exact = np.float32(np.float64(a) * np.float64(a) - 1)
    assert exact != np.float32(a * a) - np.float32(1)
    np.testing.assert_array_equal(device.fetch(x), np.full(16, exact))


def test_functions_for_kernels_raise_an_error_outside_of_kernels():
    @device_function
    def helper(x):
        return x

    for function in (*INTRINSICS, helper):
        with pytest.raises(RuntimeError, match="was called outside of a kernel"):
            function(*[None] * getattr(getattr(function, "__code__", None), "co_argcount", 1))


def test_a_kernel_that_the_catalogue_does_not_have_is_named(device, ones):
    @kernel("f4[]")
    def unknown(item, x):
        x[0] = 1

    with pytest.raises(
        KernelBuildError, match=r"test_launch.unknown\(\) f4\[\] is not in the catalogue .*; type: python"
    ):
        launch(device, unknown, 1, 1, ones)
