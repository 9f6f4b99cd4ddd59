"""The device of all kernel tests. The runtime must be loaded before dpctl is imported, so this imports kernels last."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from xpulab.libraries import oneapi

oneapi.load()

from xpulab.kernels.runtime.device import Array, Device  # noqa: E402


@pytest.fixture(scope="session", params=["the CPU", "with memory of its own", "as a GPU"])
def device(request: pytest.FixtureRequest) -> Device:
    """The CPU's device: as it is, with memory that the host cannot reach, and also with the settings for GPUs.

    In the last two cases this package treats the CPU as it would treat a GPU. In the second case it uses the kernels
    for registers of another size than the CPU's. Fresh memory contains garbage in all cases.
    """
    device = Device()
    if request.param != "the CPU":
        device.wide = request.param == "as a GPU" or not device.wide
    device.shares_memory = request.param == "the CPU"
    device.is_cpu = request.param != "as a GPU"
    empty = device.empty

    def not_initialised(size: int, dtype: npt.DTypeLike) -> Array:
        array = empty(size, dtype)
        device.fill(array, np.nan if array.dtype.kind == "f" else 0x5A)
        return array

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(device, "empty", not_initialised)
    return device
