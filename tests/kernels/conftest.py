"""The device of all kernel tests. The runtime must be loaded before dpctl is imported, so this imports kernels last."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from xpulab.libraries import oneapi

oneapi.load()

from xpulab.kernels import (  # noqa: E402
    mixture,
    moments,
    neighbors,
    products,
    project,
    quantiles,
    rows,
)
from xpulab.kernels.kmeans import lloyd  # noqa: E402
from xpulab.kernels.linear import linear_losses  # noqa: E402
from xpulab.kernels.runtime.device import Array, Device  # noqa: E402

#: How much memory a part of the work may take, in each module that cuts its work into parts.
LIMITS = {
    lloyd: ["_STAGE_BYTES"],
    linear_losses: ["_CHUNK_BYTES", "_PARTIAL_BYTES"],
    mixture: ["_CHUNK_BYTES", "_PARTIAL_BYTES", "_STAGE_BYTES"],
    moments: ["_STAGE_BYTES"],
    neighbors: ["_LIST_BYTES"],
    products: ["_PARTIAL_BYTES"],
    project: ["_STAGE_BYTES"],
    quantiles: ["_COUNTERS_BYTES"],
    rows: ["_READ_BYTES"],
}


class DeviceOfGarbage(Device):
    """A device whose fresh memory contains garbage."""

    def empty(self, size: int, dtype: npt.DTypeLike) -> Array:
        array = super().empty(size, dtype)
        self.fill(array, np.nan if array.dtype.kind == "f" else 0x5A)
        return array


@pytest.fixture
def least_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernels' functions cut their work into as many parts as they can: a part may take one byte."""
    for module, names in LIMITS.items():
        for name in names:
            monkeypatch.setattr(module, name, 1)


@pytest.fixture(scope="session", params=["the CPU", "with memory of its own", "as a GPU"])
def device(request: pytest.FixtureRequest) -> Device:
    """The CPU's device: as it is, with memory that the host cannot reach, and also with the settings for GPUs.

    In the last two cases this package treats the CPU as it would treat a GPU. In the second case it uses the kernels
    for registers of another size than the CPU's. Fresh memory contains garbage in all cases.
    """
    device = DeviceOfGarbage()
    if request.param != "the CPU":
        device.wide = request.param == "as a GPU" or not device.wide
    device.shares_memory = request.param == "the CPU"
    device.is_cpu = request.param != "as a GPU"
    return device
