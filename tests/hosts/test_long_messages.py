"""A message between hosts that takes longer than the limit for hangs, on a network that is made slow."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from machines import Network

import xpulab
from xpulab.console.cells import run_cell
from xpulab.sharing import hangs

pytestmark = [pytest.mark.cluster, pytest.mark.flaky(reruns=1)]

LIMIT = 1.0  # seconds, in place of those of the line about a wait, and again of the error after it


@pytest.fixture
def slow(hosts: Network) -> Iterator[Network]:
    """The network, through which this machine sends 4 MB a second."""
    (line,) = [
        line
        for line in subprocess.check_output(["ip", "-o", "-4", "addr"], text=True).splitlines()
        if f" {hosts.address}/" in line
    ]
    device = line.split()[1]
    rate = ["root", "tbf", "rate", "32mbit", "burst", "64kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", device, *rate], check=True)
    yield hosts
    subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=True)


def hurry(task: Any, limit: float) -> None:
    from xpulab.sharing import hangs

    hangs.TOLD = hangs.LAST_CHANCE = limit


def test_it_is_not_blamed(slow: Network, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hangs, "TOLD", LIMIT)
    with xpulab.XPUCluster(
        hosts=f"{slow.address}:1,node1:1", ssh_config=slow.ssh_config, display="none", timeout=120
    ) as cluster:
        cluster.run(hurry, LIMIT)
        source = f"""
import numpy as np, time
many = np.full(20_000_000, 1 + rank, np.uint8)
begun = time.monotonic()
if rank == 0:
    comm.Send(many, 1)
else:
    comm.Recv(many, 0)
print(many[-1], rank == 0 or time.monotonic() - begun > {2 * LIMIT})
"""
        run_cell(cluster, source)
    output = capsys.readouterr()
    assert output.out == "[0-1] 1 True\n"
    assert "wait" not in output.err
