import numpy as np
import pytest
from samples import add
from waiting import until

from xpulab.exceptions import DeviceError
from xpulab.kernels.row_passes import column_sums
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.runtime.launch import launch


def test_describe_names_the_device(device):
    described = device.describe()
    assert described.name == device.name
    assert described.memory > 2**20
    assert described.compute_units >= 1


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.complex64])
def test_rows_of_another_dtype_are_refused(device, dtype):
    with pytest.raises(DeviceError, match="cast to float32"):
        Rows.upload(device, np.zeros((3, 2), dtype))


def test_float64_is_refused_where_there_is_none():
    device = Device()
    device.has_float64 = False
    with pytest.raises(DeviceError, match="has no float64; cast to float32"):
        Rows.upload(device, np.zeros((3, 2)))
    ones = device.array(np.ones(1))
    with pytest.raises(DeviceError, match="has no float64; cast to float32"):
        launch(device, add(ones.dtype), 1, 1, ones, np.float64(2))


def test_more_memory_than_there_is_raises(device):
    with pytest.raises(DeviceError, match="use more engines"):
        device.empty(2**50, np.float32)


def test_kernel_seconds_come_from_the_device_clock(device):
    rows = Rows.upload(device, np.ones((200_000, 8), np.float32))
    column_sums(rows)
    device.kernel_seconds = device.compile_seconds = 0.0
    column_sums(rows)
    assert 1e-6 < device.kernel_seconds < 10
    assert device.compile_seconds == 0.0


def test_store_and_fetch_are_inverse(device):
    host = np.arange(10, dtype=np.float32)
    array = device.array(host)
    np.testing.assert_array_equal(device.fetch(array), host)
    np.testing.assert_array_equal(device.fetch(array, 3, 7), host[3:7])
    assert device.fetch(array, 4, 4).shape == (0,)


def test_large_memory_is_used_again_once_nothing_else_has_it(device):
    if not device.shares_memory:
        pytest.skip("the host does not share the device's memory")
    first = device.recycled(1 << 20, np.float32)
    place = first.pointer
    first.host[:] = 7
    del first
    again = device.recycled((1 << 20) - 5, np.float32)
    assert (again.pointer, again.size, len(again.host)) == (place, (1 << 20) - 5, (1 << 20) - 5)
    view = again.host[3:5]
    del again
    other = device.recycled(1 << 20, np.float32)
    assert other.pointer != place  # the view still has the memory
    other.host[:] = 9
    np.testing.assert_array_equal(view, [7, 7])


def test_memory_of_a_deleted_array_is_freed_after_a_while(device, monkeypatch):
    if not device.shares_memory:
        pytest.skip("the host does not share the device's memory")
    monkeypatch.setattr("xpulab.sharing.memory._KEPT", 0.05)
    fresh = type(device)()  # nothing of which waits since before
    fresh.shares_memory = True
    fresh.recycled(1 << 20, np.float32)
    pool = fresh._pool
    assert pool.nbytes == 4 << 20
    until(lambda: pool.nbytes == 0)


def test_small_memory_and_memory_of_other_devices_is_not_kept(device):
    device._pool.clear()
    device.recycled(10, np.float32)
    assert device._pool.nbytes == 0
    with pytest.raises(DeviceError, match="use more engines"):
        device.recycled(2**50, np.float32)


def test_scratch_is_used_again(device):
    first = device.scratch("sums", 1000, np.float32)
    fewer = device.scratch("sums", 10, np.float32)
    assert (fewer.size, fewer.pointer) == (10, first.pointer)
    assert len(device.fetch(fewer)) == 10
    assert device.scratch("other sums", 1000, np.float32).pointer != first.pointer
    assert device.scratch("sums", 10, np.float64).dtype == np.float64
    assert device.scratch("sums", 2000, np.float64).size == 2000
    large = [device.scratch("large", 1 << 21, np.float32) for _ in range(2)]
    assert large[0].pointer != large[1].pointer  # not kept
