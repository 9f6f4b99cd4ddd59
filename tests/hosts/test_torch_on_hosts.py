"""Networks that engines of several hosts train, as those of one host."""

from __future__ import annotations

import getpass
import importlib.util
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls_of_hosts import busy, interrupted_when, require_clean
from machines import Network
from waiting import until

import xpulab
from xpulab.console.cells import run_cell

if any(importlib.util.find_spec(name) is None for name in ("torch", "skorch")):
    pytest.skip("torch and skorch not installed; type: pip install -e '.[torch]'", allow_module_level=True)
if Path(sys.prefix).is_relative_to(tempfile.gettempdir()):
    pytest.skip("the other hosts have a /tmp of their own, without this Python", allow_module_level=True)

import torch

from xpulab.torch import NeuralNetClassifier, _net

pytestmark = pytest.mark.cluster

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(600, 12)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(12, 16), torch.nn.Linear(16, 2)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.relu(self.first(X))), -1)


def net(epochs: int) -> NeuralNetClassifier:
    torch.manual_seed(0)
    return NeuralNetClassifier(Net, max_epochs=epochs, lr=0.1, batch_size=64, verbose=0)


def numbers(fitted: Any) -> list[Any]:
    """The losses and the weights, which have to be the same to the bit."""
    weights = [value.tolist() for value in fitted.module_.state_dict().values()]
    return [fitted.history[:, "train_loss"], fitted.history[:, "valid_acc"], weights]


@pytest.fixture(scope="module")
def right(pair: xpulab.XPUCluster) -> list[Any]:
    """The numbers of a net that two engines of one host have trained."""
    pair.activate()
    return numbers(net(12).fit(X, Y))


@pytest.fixture(scope="module", params=["localhost:1,node1:1", "node1:1,node2:1"])
def spread(hosts: Network, request: pytest.FixtureRequest) -> Iterator[xpulab.XPUCluster]:
    """A cluster over two hosts, with an engine on the notebook's host or with a helper rank there."""
    with xpulab.XPUCluster(hosts=request.param, ssh_config=hosts.ssh_config, timeout=120) as cluster:
        yield cluster
    for host in hosts.hosts:
        host.run("rm", "-rf", f"/tmp/torchinductor_{getpass.getuser()}")  # PyTorch makes it when it is imported
        require_clean(host)


def test_a_net_is_that_of_one_host(spread: xpulab.XPUCluster, right: list[Any]) -> None:
    spread.activate()
    ours = net(12).fit(X, Y)
    assert numbers(ours) == right
    assert {engine.host for engine in ours.report_.engines} == {fact.host for fact in spread.facts}
    assert ours.predict_proba(X).shape == (600, 2)
    rows = spread.scatter(X, counts=[200, 400])
    on_engines = net(12).fit(rows, Y)
    assert numbers(on_engines) == right
    assert (on_engines.predict_proba(rows) == ours.predict_proba(X)).all()


def test_stop_and_resume_on_all_hosts(spread: xpulab.XPUCluster, right: list[Any]) -> None:
    spread.activate()
    ours = net(12)
    presser = interrupted_when(lambda: busy(spread, 3))
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch"):
        ours.fit(X, Y)
    presser.join()
    assert numbers(ours.resume()) == right


def test_a_loop_in_a_cell(spread: xpulab.XPUCluster) -> None:
    found = run_cell(
        spread,
        "import torch, xpulab.torch\n"
        "xpulab.torch.init()\n"
        "total = float(xpulab.torch.allreduce(torch.full((300_000,), rank + 1.0), op='sum')[-1])",
        out=["total"],
    )
    assert found.values["total"] == [3.0, 3.0]


def test_gloo_by_torchruns_variables(spread: xpulab.XPUCluster) -> None:
    """The port is on the address of the first rank's host that leads to the other hosts; groups are made in turn."""
    source = """
import os, torch, torch.distributed as dist
if dist.is_initialized():  # by the test before
    dist.destroy_process_group()
totals = []
for backend in ("", "gloo"):
    dist.init_process_group(*filter(None, [backend]))
    dist.all_reduce(total := torch.ones(1))
    totals.append(int(total))
    dist.destroy_process_group()
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"
found = totals, [os.environ[name] for name in names]
"""
    (first, here), (second, there) = run_cell(spread, source, out=["found"]).values["found"]
    assert first == second == [2, 2]
    assert (here[:5], there[:5]) == (["0", "2", "0", "1", "0"], ["1", "2", "0", "1", "1"])
    assert here[5] == there[5] != "127.0.0.1"
    ((alone, other),) = run_cell(spread, source, ranks=[1], out=["found"]).values["found"]
    assert (alone, other[:5]) == ([1, 1], ["0", "1", "0", "1", "0"])
    assert other[5] not in (here[5], "127.0.0.1")


def test_a_killed_engine_costs_a_restart(
    spread: xpulab.XPUCluster, hosts: Network, right: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that rank 0 keeps is in the notebook's memory, also if rank 0 is on another host."""
    spread.activate()
    monkeypatch.setattr(_net, "_EVERY", 0.0)

    (host,) = [host for host in hosts.hosts if host.name == spread.facts[1].host]

    def kill() -> None:
        until(lambda: busy(spread, 3))
        host.run("kill", "-9", str(spread.facts[1].pid))

    until(lambda: not busy(spread, 3))  # the board of this host may show the call before
    killer = threading.Thread(target=kill)
    killer.start()
    ours = net(12).fit(X, Y)
    killer.join()
    assert numbers(ours) == right
    assert any("started new engines" in note for note in ours.report_.notes)
