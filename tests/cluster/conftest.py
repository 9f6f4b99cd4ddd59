from __future__ import annotations

import pytest

import xpulab


@pytest.fixture
def on_pair(pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch) -> xpulab.XPUCluster:
    monkeypatch.setattr("xpulab.deploy.cluster._clusters", [pair])
    return pair
