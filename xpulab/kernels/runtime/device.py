"""The SYCL device of this process: its queue, its memory and the clock of its kernels."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import dpctl
import dpctl.memory
import numpy as np
import numpy.typing as npt

from xpulab.exceptions import DeviceError, DeviceNotFoundError
from xpulab.kernels.runtime.overlay import Overlaid
from xpulab.kernels.runtime.submit import Event, copy
from xpulab.sharing.descriptions import DeviceDescription
from xpulab.sharing.memory import MemoryPool, SharedBlock, prefer_huge_pages

__all__ = ["Array", "Device", "lanes_of"]

_PIECE = 1 << 18
_LEAST_RECYCLED = 1 << 19
_MOST_SCRATCH = 4 << 20
_LEAST_ADOPTED = 1 << 20  # fewer bytes are copied, because a copy takes less time than a mapping
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Array:
    """A one-dimensional array in the memory of a device.

    Parameters
    ----------
    memory : dpctl.memory.MemoryUSMShared or dpctl.memory.MemoryUSMDevice
        The memory, with at least as many bytes as the array.
    size : int
        Number of elements.
    dtype : numpy.dtype
        Type of the elements.

    Attributes
    ----------
    pointer : int
        Address of the first element.
    host : numpy.ndarray or None
        The same memory as a host array, if the host shares the device's memory; write to it after `Device.wait`.
    """

    __slots__ = ("__dict__", "dtype", "host", "memory", "pointer", "size")

    def __init__(
        self, memory: dpctl.memory.MemoryUSMShared | dpctl.memory.MemoryUSMDevice, size: int, dtype: npt.DTypeLike
    ) -> None:
        self.memory = memory
        self.size = size
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.pointer: int = memory._pointer
        shared = isinstance(memory, dpctl.memory.MemoryUSMShared)
        self.host: npt.NDArray[Any] | None = np.frombuffer(memory, self.dtype, size) if shared else None

    @property
    def nbytes(self) -> int:
        """Number of bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def adopted(self) -> bool:
        """Whether the memory is that of a shared block."""
        return isinstance(self.memory, Overlaid)

    def part(self, start: int, size: int) -> Array:
        """Return `size` elements from element `start` on as an array of the same memory."""
        return _Part(self, start, size)

    @cached_property
    def facts(self) -> ctypes.Array[ctypes.c_int64]:
        """Number of elements, and bytes per element, which kernels get in addition to the pointer."""
        return (ctypes.c_int64 * 2)(self.size, self.dtype.itemsize)


class _Part(Array):
    def __init__(self, whole: Array, start: int, size: int) -> None:
        super().__init__(whole.memory, size, whole.dtype)
        self.pointer = whole.pointer + start * whole.dtype.itemsize
        self.host = None if whole.host is None else whole.host[start : start + size]
        self._whole = whole  # whose memory may be recycled when it is deleted


class _Lasting:
    """Memory of a device that outlives the array in it; see `Device.recycled`."""

    def __init__(self, queue: dpctl.SyclQueue, nbytes: int) -> None:
        self.usm = dpctl.memory.MemoryUSMShared(nbytes, queue=queue)
        self.nbytes = nbytes
        prefer_huge_pages(self.usm._pointer, nbytes)

    def close(self) -> None:
        """Free the memory."""
        self.usm = None

    @property
    def unused(self) -> bool:
        """Whether only this object has a reference to the memory."""
        return sys.getrefcount(self.usm) == sys.getrefcount(_alone.usm)


_alone = SimpleNamespace(usm=object())  # has the only reference to an object


class _Recycled(Array):
    """An array whose memory goes to a pool when Python deletes the array, unless other objects use the memory."""

    def __init__(self, pool: MemoryPool[_Lasting], size: int, dtype: np.dtype[Any]) -> None:
        self._pool, self._lasting = pool, pool.take(size * dtype.itemsize)
        super().__init__(self._lasting.usm, size, dtype)

    def __del__(self) -> None:
        lasting = getattr(self, "_lasting", None)
        self.host = self.memory = None
        if lasting is not None and lasting.unused and not sys.is_finalizing():
            self._pool.give(lasting)


def lanes_of(wide: bool) -> int:
    """Return `Device.lanes` of a device that is `Device.wide`, or not."""
    return 16 if wide else 8


class Device:
    """The default-selected SYCL device behind one in-order, profiled queue.

    ``ONEAPI_DEVICE_SELECTOR`` decides which device is visible, so it must be set before dpctl is imported. Kernels,
    copies to the device and copies from it run in the order in which they were submitted.

    Attributes
    ----------
    queue : dpctl.SyclQueue
        The queue of all kernels and copies.
    name : str
        Name of the device.
    has_float64 : bool
        Whether the device computes in float64.
    is_cpu : bool
        Whether the device is a CPU.
    wide : bool
        False for a CPU whose vector registers have at most 32 bytes (AVX2): they hold half as many numbers as those of
        AVX-512, so that kernels keep fewer sums in them.
    compute_units : int
        Number of compute units.
    max_group : int
        Largest number of work-items of a work-group.
    kernel_seconds : float
        Seconds that kernels ran, by the device's clock; complete after `fetch` or `wait`. The caller resets it.
    compile_seconds : float
        Seconds of compiling kernels. The caller resets it.

    Raises
    ------
    DeviceNotFoundError
        If no device is visible.
    """

    def __init__(self) -> None:
        try:
            device = dpctl.SyclDevice()
            # The queue runs commands in order: each launch depends on the one before it in any case, and a single wait
            # is then enough for all launches.
            self.queue = dpctl.SyclQueue(device, property=["in_order", "enable_profiling"])
        except (dpctl.SyclDeviceCreationError, dpctl.SyclQueueCreationError) as error:
            raise DeviceNotFoundError(
                f"no SYCL device is visible ({error}); unset ONEAPI_DEVICE_SELECTOR, or type: xpulab doctor"
            ) from error
        self.name: str = device.name.strip()
        self.has_float64: bool = device.has_aspect_fp64
        self.compute_units: int = device.max_compute_units
        self.max_group: int = device.max_work_group_size
        self.is_cpu: bool = device.is_cpu
        self.wide: bool = not self.is_cpu or device.native_vector_width_float > 8
        #: Whether the host can access the device's memory, as on a CPU: a copy then needs no command of the queue.
        self.shares_memory: bool = self.is_cpu
        self.kernel_seconds = 0.0
        self.compile_seconds = 0.0
        self.programs: dict[Any, Any] = {}  # kernel -> program; used by launch.py
        self.launch_shapes: dict[str, Any] = {}  # class of sizes -> launch shape, if not the default; set by tune.py
        #: Called between the steps of a compilation, which may take seconds; its exceptions end the compilation.
        self.while_compiling: Callable[[], None] = lambda: None
        self._running: list[tuple[Event, Any]] = []
        self._scratch: dict[str, Array] = {}
        self._pool = MemoryPool(lambda nbytes: _Lasting(self.queue, nbytes))

    @property
    def lanes(self) -> int:
        """Number of work-items that a CPU's compiler puts into one vector; with fewer it makes no vectors.

        With AVX2, groups of 16 work-items pass over the same cache lines twice and take up to 1.8 times as long.
        """
        return lanes_of(self.wide)

    def describe(self) -> DeviceDescription:
        """Return what the driver tells about the device."""
        device = self.queue.sycl_device
        return DeviceDescription(
            name=self.name,
            backend=device.backend.name,
            device_type=device.device_type.name,
            driver=device.driver_version,
            memory=device.global_mem_size,
            compute_units=self.compute_units,
            float64=self.has_float64,
        )

    def check_dtype(self, dtype: npt.DTypeLike) -> np.dtype[Any]:
        """Return the dtype as a NumPy dtype, if the device can compute with rows of this dtype.

        Raises
        ------
        DeviceError
            If it is neither float32 nor float64, or if it is float64 and the device does not compute in float64.
        """
        dtype = np.dtype(dtype)
        if dtype not in _FLOATS:
            raise DeviceError(f"rows of {dtype} were given, float32 or float64 expected; cast to float32 first")
        if dtype == np.float64 and not self.has_float64:
            raise DeviceError(f"rows of float64 were given, and {self.name} has no float64; cast to float32 first")
        return dtype

    def empty(self, size: int, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised device array of at least one element.

        Raises
        ------
        DeviceError
            If the device has too little memory.
        """
        size, dtype = max(size, 1), np.dtype(dtype)
        kind = dpctl.memory.MemoryUSMShared if self.shares_memory else dpctl.memory.MemoryUSMDevice
        try:
            return Array(kind(size * dtype.itemsize, queue=self.queue), size, dtype)
        except (dpctl.memory.USMAllocationError, MemoryError) as error:
            raise self._no_room(size * dtype.itemsize) from error

    def recycled(self, size: int, dtype: npt.DTypeLike) -> Array:
        """As `empty`, but large memory of deleted arrays is used again: the system takes long to clear new pages."""
        dtype = np.dtype(dtype)
        if not self.shares_memory or size * dtype.itemsize < _LEAST_RECYCLED:
            return self.empty(size, dtype)
        try:
            return _Recycled(self._pool, size, dtype)
        except (dpctl.memory.USMAllocationError, MemoryError) as error:
            raise self._no_room(size * dtype.itemsize) from error

    def scratch(self, use: str, size: int, dtype: npt.DTypeLike) -> Array:
        """As `empty`, for numbers that kernels keep until the next call for the same use.

        Up to a few MiB are kept for each use, because the system takes longer to clear new pages than a kernel to pass
        over a few thousand rows.
        """
        dtype = np.dtype(dtype)
        held = self._scratch.get(use)
        if held is None or held.dtype != dtype or held.size < size:
            held = self.empty(size, dtype)
            if held.nbytes > _MOST_SCRATCH:
                return held
            self._scratch[use] = held
        return held if held.size == size else held.part(0, size)

    def _no_room(self, nbytes: int) -> DeviceError:
        memory = self.queue.sycl_device.global_mem_size
        return DeviceError(
            f"{nbytes:,} bytes were asked for, and {self.name} (with {memory:,} in all) has no room for them; use more "
            "engines, or float32, or fewer rows"
        )

    def adopt(self, block: SharedBlock, filled: int, size: int, dtype: npt.DTypeLike) -> Array:
        """Return a device array that begins with the elements at the start of a shared block.

        If the host shares the device's memory, the array uses the memory of the block, so a change of one is a change
        of the other. Other devices, and small arrays, get a copy; see `Array.adopted`.

        Parameters
        ----------
        block : SharedBlock
            A writable block. Its memory lives as long as the array, also if the block is closed.
        filled : int
            Number of elements in the block.
        size : int
            Number of elements of the array, at least `filled`. The elements after the first `filled` are uninitialised.
        dtype : numpy.dtype
            Type of the elements.

        Returns
        -------
        Array

        Raises
        ------
        DeviceError
            If the device has too little memory for a copy.
        """
        dtype = np.dtype(dtype)
        nbytes = filled * dtype.itemsize
        if self.shares_memory and nbytes >= _LEAST_ADOPTED:
            return Array(Overlaid.over(self.queue, block, nbytes, size * dtype.itemsize), size, dtype)
        array = self.empty(size, dtype)
        self.store(block.array((filled,), dtype), array)
        return array

    def store(self, host: npt.NDArray[Any], array: Array, start: int = 0) -> None:
        """Copy a contiguous host array into a device array of the same dtype, from element `start` on."""
        if not host.size:
            return
        if array.host is not None:
            self.wait()
            array.host[start : start + host.size] = host.reshape(-1)
        else:
            host = np.ascontiguousarray(host)
            copy(self.queue, array.pointer + start * host.itemsize, host.ctypes.data, host.nbytes).wait()

    def store_from(self, address: int, size: int, array: Array, start: int = 0) -> None:
        """Copy `size` elements from an address of the device's memory, or the host's, to a device array."""
        nbytes = size * array.dtype.itemsize
        if nbytes:
            copy(self.queue, array.pointer + start * array.dtype.itemsize, address, nbytes).wait()

    def array(self, host: npt.NDArray[Any]) -> Array:
        """Return a device array with a copy of a host array."""
        array = self.empty(host.size, host.dtype)
        self.store(np.ascontiguousarray(host), array)
        return array

    def full(self, size: int, value: float, dtype: npt.DTypeLike) -> Array:
        """Return a device array whose elements all have one value."""
        array = self.empty(size, dtype)
        self.fill(array, value)
        return array

    def fill(self, array: Array, value: float) -> None:
        """Set all elements of a device array to one value. The host needs memory only for a part of the array."""
        piece = np.full(min(array.size, _PIECE), value, array.dtype)
        for start in range(0, array.size, _PIECE):
            self.store(piece[: array.size - start], array, start)

    def fetch(self, array: Array, start: int = 0, stop: int | None = None, copied: bool = True) -> npt.NDArray[Any]:
        """Return ``array[start:stop]`` of a device array on the host, after all kernels launched so far.

        If `copied` is False, the result may be the device's memory itself, which the next launch may change.
        """
        if array.host is not None:
            self.wait()
            return array.host[start:stop].copy() if copied else array.host[start:stop]
        first, last, _ = slice(start, stop).indices(array.size)
        found = np.empty(max(last - first, 0), array.dtype)
        if found.size:
            copy(self.queue, found.ctypes.data, array.pointer + first * found.itemsize, found.nbytes).wait()
        self.wait()
        return found

    def track(self, event: Event, arguments: object) -> None:
        """Keep the event of a running kernel, for the clock, and its arguments, so that their memory is not freed."""
        self._running.append((event, arguments))

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Count the seconds of the body, in which the processor of a CPU device works, as those of a kernel."""
        self.wait()
        started = time.perf_counter()
        yield
        self.kernel_seconds += time.perf_counter() - started

    def wait(self) -> None:
        """Wait for all kernels, and add their seconds to `kernel_seconds`."""
        if self._running:
            self._running[-1][0].wait()  # the queue runs them in order, so the last one ends last
            for event, _ in self._running:
                self.kernel_seconds += event.seconds()
            self._running.clear()
