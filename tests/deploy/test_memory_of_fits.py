"""The device memory in the status of a cluster while a fit runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strikes import meetings, strike

import xpulab
from xpulab.cluster import KMeans
from xpulab.report import progress

pytestmark = pytest.mark.cluster


def test_the_rows_of_a_running_fit_are_used_memory(clusters: Callable[[int], xpulab.XPUCluster]) -> None:
    cluster = clusters(2).activate()
    X = np.random.default_rng(0).normal(size=(200_000, 8)).astype(np.float32)
    before = [engine.device_bytes or 0 for engine in cluster.status().engines]
    held: list[list[int]] = []

    class View:
        def update(self, report: Any) -> None:
            if report.iterations:
                held.append([engine.device_bytes or 0 for engine in cluster.status().engines])

        def close(self, report: Any) -> None: ...

    unsubscribe = progress.subscribe(lambda report: View())
    cluster.run(strike, pause=0.05)
    KMeans(60, init=X[:60], n_init=1, max_iter=20, tol=0).fit(X)
    unsubscribe()
    cluster.run(meetings)
    assert held
    assert all(now - b >= X.nbytes / 2 for now, b in zip(held[-1], before, strict=True))
    assert [engine.device_bytes or 0 for engine in cluster.status().engines] == before
