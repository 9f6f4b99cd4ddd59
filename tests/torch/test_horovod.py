"""Horovod's words: the functions and the optimizer on the ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

CHECKS = """
import torch, xpulab.torch as hvd
mine = torch.arange(4.0) + rank
ranks = range(size)
assert torch.equal(hvd.allreduce(mine), torch.arange(4.0) + sum(ranks) / size)
assert torch.equal(hvd.allreduce(mine, op="sum"), torch.arange(4.0) * size + sum(ranks))
assert torch.equal(hvd.allreduce(mine, op="max"), torch.arange(4.0) + size - 1)
assert torch.equal(mine, torch.arange(4.0) + rank)
rows = torch.full((rank + 1, 2), rank, dtype=torch.int16)
joined = hvd.allgather(rows)
assert torch.equal(joined, torch.cat([torch.full((each + 1, 2), each, dtype=torch.int16) for each in ranks]))
assert hvd.broadcast(mine, root_rank=size - 1)[0] == size - 1 and mine[0] == rank

def built():
    torch.manual_seed(rank)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 2))

net = built()
hvd.broadcast_parameters(net.state_dict())
torch.manual_seed(0)
wanted = torch.nn.Linear(6, 9)
assert torch.equal(net[0].weight, wanted.weight)
net = built()
hvd.broadcast_parameters(net.named_parameters(), root_rank=size - 1)
torch.manual_seed(size - 1)
assert torch.equal(net[0].weight, torch.nn.Linear(6, 9).weight)
print("passed")
"""

STEPS = """
import torch, xpulab.torch as hvd
torch.manual_seed(0)
net = torch.nn.Linear(6, 2)
alone = torch.nn.Linear(6, 2)
alone.load_state_dict(net.state_dict())
x, y = torch.randn(12, 6), torch.randint(0, 2, (12,))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), named_parameters=net.named_parameters())
"""


@pytest.mark.parametrize("n", [1, 3])
def test_the_functions(
    n: int, clusters: Callable[[int], xpulab.XPUCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(clusters(n), CHECKS)
    assert capsys.readouterr().out.endswith("] passed\n")


@pytest.mark.parametrize("clip", [False, True])
def test_the_optimizer_takes_the_steps_of_one_process(pair: xpulab.XPUCluster, clip: bool) -> None:
    source = f"""{STEPS}
one = torch.optim.Adam(alone.parameters())
for _ in range(10):
    for model, rows, opt in [(net, slice(rank, None, size), optimizer), (alone, slice(None), one)]:
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        if {clip}:
            if opt is optimizer:
                opt.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
assert isinstance(optimizer, torch.optim.Adam)
difference = float((net.weight - alone.weight).abs().max())
moved = float((net.weight - hvd.broadcast(net.weight)).abs().max())
"""
    values = run_cell(pair, source, out=["difference", "moved"]).values
    assert max(values["difference"]) < 1e-6
    assert values["moved"] == [0.0, 0.0]


def test_a_parameter_without_a_gradient_on_one_rank_is_named(pair: xpulab.XPUCluster) -> None:
    source = f"{STEPS}\nloss = (net(x) if rank == 0 else x @ net.weight.T).sum()\nloss.backward()\noptimizer.step()"
    with pytest.raises(EngineError, match="no gradient of bias on rank 1; expected one on every rank"):
        run_cell(pair, source)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("hvd.allreduce(x, op='mean')", "received op='mean'; expected one of average, sum"),
        ("hvd.broadcast(x, root_rank=2)", "received root_rank=2; expected a number from 0 to 1"),
        ("hvd.allgather(torch.tensor(1.0))", "without dimensions"),
        ("hvd.allgather(torch.ones(2, 3 + rank))", r"\(2, 3\) of torch.float32 on rank 0; \(2, 4\)"),
        ("hvd.DistributedOptimizer(optimizer, op='max')", "expected 'average' or 'sum'"),
    ],
)
def test_bad_input(pair: xpulab.XPUCluster, call: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        run_cell(pair, f"{STEPS}\n{call}")
