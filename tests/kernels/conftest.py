"""One device for all kernel tests. The runtime must be loaded before dpctl is imported, so kernels come last here."""

from __future__ import annotations

import pytest

from xpulab import oneapi

oneapi.load()

from xpulab.kernels.device import Device  # noqa: E402


@pytest.fixture(scope="session")
def device() -> Device:
    return Device()
