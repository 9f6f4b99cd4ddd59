"""One device for all kernel tests. The runtime must be loaded before dpctl is imported, so kernels come last here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from xpulab import oneapi

oneapi.load()

from xpulab.kernels.device import Array, Device  # noqa: E402


@pytest.fixture(scope="session", params=["the CPU", "with memory of its own", "as a GPU"])
def device(request: pytest.FixtureRequest) -> Device:
    """The CPU's device: as it is, with memory that the host does not reach, and also with what is chosen for GPUs.

    The last two are no GPU, and take the ways through this package that a GPU takes. The second has the kernels for
    registers of the other size than the CPU's. Fresh memory of all holds garbage.
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
