"""The one SYCL device of this process: its queue, its memory and the clock of its kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import dpctl
import dpctl.memory
import dpctl.tensor as dpt
import numpy as np
import numpy.typing as npt

from xpulab.exceptions import DeviceError, DeviceNotFoundError
from xpulab.kernels.submit import Event

__all__ = ["Device"]

_PIECE = 1 << 18
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Device:
    """The default-selected SYCL device behind one in-order, profiled queue.

    ``ONEAPI_DEVICE_SELECTOR`` decides what is visible, so it must be set before dpctl is imported. Kernels, copies to
    the device and copies from it run in the order in which they were submitted.

    Attributes
    ----------
    queue : dpctl.SyclQueue
    name : str
    has_float64 : bool
    is_cpu : bool
    compute_units : int
    max_group : int
        Work-items per work-group at most.
    kernel_seconds : float
        Seconds that kernels ran, by the device's own clock; complete after `fetch` or `wait`. The caller resets it.
    compile_seconds : float
        Seconds spent compiling kernels. The caller resets it.

    Raises
    ------
    DeviceNotFoundError
        If no device is visible.
    """

    def __init__(self) -> None:
        try:
            device = dpctl.SyclDevice()
            # In order: each launch depends on the one before it in any case, and one wait then covers them all.
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
        #: On the CPU the device's memory is the host's, and a copy needs no command of the queue.
        self._usm_type = "shared" if self.is_cpu else "device"
        self.kernel_seconds = 0.0
        self.compile_seconds = 0.0
        self.specialisations: dict[Any, Any] = {}  # filled and read by launch.py
        self.tiles: dict[str, Any] = {}  # by class of sizes, where not the default; filled by tune.py
        #: Called between the steps of each compilation, which takes seconds; what it raises ends the call.
        self.while_compiling: Callable[[], None] = lambda: None
        self._running: list[tuple[Event, Any]] = []
        #: By id, as arrays have no hash: asking dpctl takes longer than adding up what a kernel has found.
        self._mapped: dict[int, tuple[npt.NDArray[Any], Any]] = {}

    def describe(self) -> dict[str, Any]:
        """What the device is: name, backend, device_type, driver, memory (bytes), compute_units, float64."""
        device = self.queue.sycl_device
        return {
            "name": self.name,
            "backend": device.backend.name,
            "device_type": device.device_type.name,
            "driver": device.driver_version,
            "memory": device.global_mem_size,
            "compute_units": self.compute_units,
            "float64": self.has_float64,
        }

    def check_dtype(self, dtype: npt.DTypeLike) -> np.dtype[Any]:
        """The dtype as a NumPy dtype, if rows of it can be computed with here.

        Raises
        ------
        DeviceError
            If it is neither float32 nor float64, or float64 and the device has none.
        """
        dtype = np.dtype(dtype)
        if dtype not in _FLOATS:
            raise DeviceError(f"rows of {dtype} were given, float32 or float64 expected; cast to float32 first")
        if dtype == np.float64 and not self.has_float64:
            raise DeviceError(f"rows of float64 were given, and {self.name} has no float64; cast to float32 first")
        return dtype

    def empty(self, size: int, dtype: npt.DTypeLike) -> dpt.usm_ndarray:
        """A flat device array of at least one element, not initialised.

        Raises
        ------
        DeviceError
            If the device has no room for it.
        """
        size = max(size, 1)
        try:
            # What `dpt.empty` comes to after looking at its arguments for longer than at the memory.
            return dpt.usm_ndarray(size, dtype=dtype, buffer=self._usm_type, buffer_ctor_kwargs={"queue": self.queue})
        except (dpctl.memory.USMAllocationError, MemoryError) as error:
            memory = self.queue.sycl_device.global_mem_size
            raise DeviceError(
                f"{size * np.dtype(dtype).itemsize:,} bytes were asked for, and {self.name} (with {memory:,} in all) "
                "has no room for them; use more engines, or float32, or fewer rows"
            ) from error

    def mapped(self, array: dpt.usm_ndarray) -> npt.NDArray[Any] | None:
        """The memory of a flat device array as the host's, where it is both (a CPU); to be written to after `wait`."""
        if self._usm_type != "shared":
            return None
        key = id(array)
        found = self._mapped.get(key)
        if found is None:
            gone = weakref.ref(array, lambda _: self._mapped.pop(key, None))
            found = self._mapped[key] = np.frombuffer(array.usm_data, array.dtype), gone
        return found[0]

    def store(self, host: npt.NDArray[Any], array: dpt.usm_ndarray, start: int = 0) -> None:
        """Copy a contiguous host array into a flat device array of the same dtype, from element `start` on."""
        if not host.size:
            return
        if self._usm_type == "shared":
            self.wait()
            self.mapped(array)[start : start + host.size] = host.reshape(-1)  # type: ignore[index]
        else:
            part = dpctl.memory.as_usm_memory(array[start : start + host.size])
            self.queue.memcpy(part, host.reshape(-1).view(np.uint8), host.nbytes)

    def array(self, host: npt.NDArray[Any]) -> dpt.usm_ndarray:
        """A flat device copy of a host array."""
        array = self.empty(host.size, host.dtype)
        self.store(np.ascontiguousarray(host), array)
        return array

    def full(self, size: int, value: float, dtype: npt.DTypeLike) -> dpt.usm_ndarray:
        """A flat device array of one number."""
        array = self.empty(size, dtype)
        self.fill(array, value)
        return array

    def fill(self, array: dpt.usm_ndarray, value: float) -> None:
        """Write one number all over a flat device array; the host holds a piece of it at a time."""
        piece = np.full(min(array.size, _PIECE), value, array.dtype)
        for start in range(0, array.size, _PIECE):
            self.store(piece[: array.size - start], array, start)

    def fetch(
        self, array: dpt.usm_ndarray, start: int = 0, stop: int | None = None, copy: bool = True
    ) -> npt.NDArray[Any]:
        """``array[start:stop]`` of a flat device array on the host, after all that was launched before.

        Without `copy` it may be the device's own memory, and so be another after the next launch.
        """
        mapped = self.mapped(array)
        if mapped is not None:
            self.wait()
            return mapped[start:stop].copy() if copy else mapped[start:stop]
        part = array[start:stop]
        host = np.empty(part.size, dtype=part.dtype)
        if host.size:
            self.queue.memcpy(host.view(np.uint8), dpctl.memory.as_usm_memory(part), host.nbytes)
        self.wait()
        return host

    def track(self, event: Event, arguments: Any) -> None:
        """Remember a running kernel: its event for the clock, its arguments so that their memory outlives it."""
        self._running.append((event, arguments))

    def wait(self) -> None:
        """Wait for all kernels, and add their seconds to `kernel_seconds`."""
        if self._running:
            self._running[-1][0].wait()  # they run in order
            for event, _ in self._running:
                self.kernel_seconds += event.seconds()
            self._running.clear()
