"""One device for all kernel tests. The runtime must be loaded before dpctl is imported, so kernels come last here."""

from __future__ import annotations

import pytest

from xpulab import oneapi

oneapi.load()

from xpulab.kernels.device import Device  # noqa: E402


@pytest.fixture(scope="session", params=["the CPU", "with memory of its own", "as a GPU"])
def device(request: pytest.FixtureRequest) -> Device:
    """The CPU's device: as it is, with memory that the host does not reach, and also with what is chosen for GPUs.

    The last two are no GPU, and take the ways through this package that a GPU takes.
    """
    device = Device()
    device.shares_memory = request.param == "the CPU"
    device.is_cpu = request.param != "as a GPU"
    return device
