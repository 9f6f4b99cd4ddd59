"""A small sample of `python -m tests.faults --clients 3`."""

from __future__ import annotations

import pytest
from clients import several

import xpulab


@pytest.mark.cluster
def test_three_clients_at_once_get_their_own_results(pair: xpulab.XPUCluster) -> None:
    pair.activate()
    assert several(pair, 3, 6) == [6, 6, 6]
