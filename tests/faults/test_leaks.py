"""A long session leaks nothing: a sample of `python tests/faults/leaks.py`."""

from __future__ import annotations

import gc
import time
from typing import Any

import ipyparallel as ipp
import pytest
from ipyparallel.client.futures import MessageFuture
from leaks import State, calls, handles, state

import xpulab
from xpulab.deploy import cluster as registry


@pytest.mark.cluster
def test_calls_and_handles_leak_no_descriptor(pair: xpulab.XPUCluster) -> None:
    pair.activate()

    def settled() -> dict[str, State]:
        for cluster in registry.clusters.running:  # blocks that wait for the next call are freed after 30 seconds
            cluster.rows.blocks.clear()
        return state(pair)

    others = set(pair.rows.handles_here)
    calls(pair, 5)
    handles(pair, 5)
    before = settled()
    calls(pair, 12)
    handles(pair, 12)

    def grown() -> dict[str, int]:
        after = settled()
        return {name: n for name, there in before.items() if (n := after[name].descriptors - there.descriptors) > 0}

    deadline = time.monotonic() + 10
    while (more := grown()) and time.monotonic() < deadline:
        time.sleep(0.1)  # a connection that closes, or opens for a moment
    assert not more
    gc.collect()
    assert sum(isinstance(thing, ipp.AsyncResult | MessageFuture) for thing in gc.get_objects()) <= 20
    assert pair.rows.handles_here <= others  # of tests before this one
    assert pair.engines.processes is not None
    assert len(pair.engines.processes.client.results) == 0


@pytest.mark.cluster
def test_calls_leak_nothing_in_the_client_and_the_engines(pair: xpulab.XPUCluster) -> None:
    pair.activate()

    def kept(task: Any) -> int:
        from ipyparallel.engine.app import IPEngine

        return len(IPEngine.instance().session.digest_history)

    def held() -> dict[str, Any]:
        client = pair.engines.processes.client  # type: ignore[union-attr]
        sizes = {name: len(value) for name, value in vars(client).items() if isinstance(value, dict | set | list)}
        sizes["signatures"] = len(client.session.digest_history)
        return {**sizes, "engines": pair.run(kept)}

    calls(pair, 2)
    before = held()
    calls(pair, 10)
    assert held() == before
