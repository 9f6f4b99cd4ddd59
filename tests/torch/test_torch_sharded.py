"""Models in shards on the process group ``xpulab``: FSDP, fully_shard, DeviceMesh, DTensor, with gloo's results."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError

SHARDED = Path(__file__).with_name("sharded.py").read_text()

pytestmark = pytest.mark.cluster


@pytest.fixture(params=[2, 3])
def engines(request: pytest.FixtureRequest, clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    """A running cluster of 2 and 3 engines."""
    if request.param == 2:
        pair: xpulab.XPUCluster = request.getfixturevalue("pair")
        return pair
    return clusters(request.param)


def test_models_in_shards_are_those_of_gloo(engines: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run_cell(engines, SHARDED)
    printed = [line for line in capsys.readouterr().out.splitlines() if "the same:" in line]
    names = re.findall(r'^    "(.*)": lambda', SHARDED, re.MULTILINE)
    assert len(names) == 10
    assert printed == [f"[0-{engines.size - 1}] the same: {name}" for name in names]


def test_a_group_has_the_name_that_pytorch_gives_it(pair: xpulab.XPUCluster) -> None:
    source = """
import torch.distributed as dist, xpulab.torch
xpulab.torch.init()
groups = [dist.group.WORLD, dist.new_group([0, 1], group_desc="mine")]
names = [group.group_name for group in groups]
found = len(set(names)) == 2 and all(dist.distributed_c10d._resolve_process_group(name) is group
                                     for name, group in zip(names, groups)), groups[1].group_desc
"""
    assert run_cell(pair, source, out=["found"]).values["found"] == [(True, "mine")] * 2


def test_a_reduced_tensor_can_still_be_freed(pair: xpulab.XPUCluster) -> None:
    """The kind of fault is memory that a collective has seen and that can never be freed or resized after it."""
    source = """
import torch, torch.distributed as dist, xpulab.torch
xpulab.torch.init()
sizes = []
for n in (0, 3, 300_000):
    tensor, whole = torch.ones(n), torch.ones(2 * n)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.all_gather_into_tensor(whole, tensor)
    dist.reduce_scatter_tensor(tensor, whole)
    for each in (tensor, whole):
        each.untyped_storage().resize_(0)
        sizes.append(each.untyped_storage().size())
"""
    assert run_cell(pair, source, out=["sizes"]).values["sizes"] == [[0] * 6] * 2


def test_monitored_barrier_and_sparse_tensors_are_refused_in_words(pair: xpulab.XPUCluster) -> None:
    begin = "import torch, torch.distributed as dist, xpulab.torch\nxpulab.torch.init()\n"
    with pytest.raises(EngineError, match="monitored_barrier is only implemented for GLOO backend"):
        run_cell(pair, f"{begin}dist.monitored_barrier()")
    with pytest.raises(EngineError, match="expected a dense tensor"):
        run_cell(pair, f"{begin}dist.all_reduce(torch.eye(3).to_sparse())")
