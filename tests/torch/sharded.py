"""Run in a cell by test_torch_sharded.py: models in shards, which gloo and the process group ``xpulab`` train alike."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import xpulab.torch

rank, size = (setting := xpulab.torch.init()).rank, setting.size
Values = list[torch.Tensor]


def model(width: int = 301) -> torch.nn.Sequential:
    """Return a model. The default width, in a large and a small parameter, divides by no number of ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(60, width), torch.nn.Tanh(), torch.nn.Linear(width, 5))


def trained(net: Any) -> None:
    """Train for some steps, on other rows on each rank."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    rows = torch.randn(8 * size, 60, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        optimizer.zero_grad()
        net(rows[rank::size]).pow(2).mean().backward()
        if isinstance(net, FullyShardedDataParallel):
            net.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def whole(net: torch.nn.Module) -> Values:
    """Return the whole parameters of a model in shards of fully_shard."""
    return [each.full_tensor().detach() if isinstance(each, DTensor) else each.detach() for each in net.parameters()]


def fsdp(strategy: ShardingStrategy) -> Values:
    net = FullyShardedDataParallel(
        model(), sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True
    )
    trained(net)
    with FullyShardedDataParallel.summon_full_params(net):
        return [each.detach().clone() for each in net.parameters()]


def with_fully_shard(mesh: Any, saves: bool = False, **options: Any) -> Values:
    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh, **options)
    trained(net)
    values = whole(net)
    if saves:
        _save_and_load(net)
        assert all(torch.equal(before, after) for before, after in zip(values, whole(net), strict=True))
    return values


def _save_and_load(net: torch.nn.Module) -> None:
    """Write a checkpoint of all ranks, forget the parameters, and read the checkpoint."""
    with tempfile.TemporaryDirectory() as mine:
        dist.broadcast_object_list(path := [mine], 0)
        checkpoint.save(state := net.state_dict(), checkpoint_id=path[0])
        with torch.no_grad():
            for each in net.parameters():
                each.zero_()
        checkpoint.load(state, checkpoint_id=path[0])
        net.load_state_dict(state)
        dist.barrier()


def in_columns_and_rows(mesh: Any) -> Values:
    """Compute with a layer in columns and the next one in rows, as one process does."""
    net, alone = model(300), model(300)
    rows = torch.randn(7, 60, generator=torch.Generator().manual_seed(2))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    net(rows).pow(2).sum().backward()
    alone(rows).pow(2).sum().backward()
    gradients = [each.grad.full_tensor() if isinstance(each.grad, DTensor) else each.grad for each in net.parameters()]
    for ours, theirs in zip(gradients, alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-4)
    return gradients


def dtensors(mesh: Any) -> Values:
    """Move a matrix between all layouts; compute with it."""
    random = torch.Generator().manual_seed(3)
    a, b = torch.randn(7, 5, generator=random), torch.randn(5, 4, generator=random)
    layouts = [Shard(0), Shard(1), Replicate()]
    found = []
    for before in layouts:
        placed = distribute_tensor(a, mesh, [before])
        for after in layouts:
            moved = placed.redistribute(mesh, [after])
            torch.testing.assert_close(moved.full_tensor(), a)
            found.append(moved.to_local())
        product = placed @ distribute_tensor(b, mesh, [Replicate()])
        torch.testing.assert_close(product.full_tensor(), a @ b)
        found += [product.sum().full_tensor(), product.std().full_tensor()]
    parts = DTensor.from_local(a * (rank + 1), mesh, [Partial()])
    torch.testing.assert_close(parts.full_tensor(), a * sum(range(1, size + 1)))
    return [*found, parts.redistribute(mesh, [Shard(0)]).to_local()]


def functional(mesh: Any) -> Values:
    """Compute with the collectives that return new tensors."""
    mine = torch.arange(4.0 * size).view(size, 4) + rank
    return [
        all_reduce(mine, "sum", mesh),
        all_gather_tensor(mine, 0, mesh),
        reduce_scatter_tensor(mine, "sum", 0, mesh),
    ]


def mesh(*shape: int) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[: len(shape)])


COMPUTED: dict[str, Callable[[], Values]] = {
    "DTensor": lambda: dtensors(mesh(size)),
    "functional collectives": lambda: functional(mesh(size)),
    "parallel layers": lambda: in_columns_and_rows(mesh(size)),
    "FSDP": lambda: fsdp(ShardingStrategy.FULL_SHARD),
    "FSDP in gradients": lambda: fsdp(ShardingStrategy.SHARD_GRAD_OP),
    "FSDP in no shards": lambda: fsdp(ShardingStrategy.NO_SHARD),
    "fully_shard": lambda: with_fully_shard(mesh(size), saves=True),
    "fully_shard of groups": lambda: with_fully_shard(mesh(size, 1)),
    "fully_shard in groups": lambda: with_fully_shard(mesh(1, size)),
    "fully_shard in bfloat16": lambda: with_fully_shard(
        mesh(size), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    ),
}

warnings.simplefilter("ignore", FutureWarning)  # later releases of PyTorch have other names for these functions
results = {}
for backend in ("gloo", "xpulab"):
    xpulab.torch.init(backend)
    results[backend] = {name: [each + 0 for each in compute()] for name, compute in COMPUTED.items()}
xpulab.torch.init()
for name, ours in results["xpulab"].items():
    theirs = results["gloo"][name]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    print("the same:", name)
