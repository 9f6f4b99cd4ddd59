"""Run in a cell by test_torch_group.py: every collective, compared with the same computed from all ranks' tensors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist

import xpulab.torch

setting = xpulab.torch.init()
rank, size = setting.rank, setting.size
Op = dist.ReduceOp
NUMBERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SHORT = [torch.float16, torch.bfloat16]
REAL = [*SHORT, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [torch.bool, *NUMBERS, *REAL, *COMPLEX]
CASES = [
    *itertools.product([Op.SUM], ALL),
    *itertools.product([Op.PRODUCT], [torch.bool, *NUMBERS, *REAL]),
    *itertools.product([Op.AVG], REAL + COMPLEX),
    *itertools.product([Op.MIN, Op.MAX], [torch.bool, *NUMBERS, *REAL]),
    *itertools.product([Op.BAND, Op.BOR, Op.BXOR], [torch.bool, *NUMBERS]),
]
#: Numbers of a tensor: none, one, few, and so many that each rank reduces a part of them.
SIZES = [0, 1, 7, 20_011]


def of(which: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor of a rank, which every rank can compute."""
    generator = torch.Generator().manual_seed(100 * n + which)
    drawn = torch.randint(0, 2 if dtype is torch.bool else 5, (n,), generator=generator)
    return drawn.to(dtype)


def expected(op: Any, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the reduction of the tensors of all ranks."""
    exact = {torch.float16: torch.float64, torch.bfloat16: torch.float64}.get(dtype, dtype)
    every = torch.stack([of(each, n, dtype) for each in range(size)])
    if op in (Op.BAND, Op.BOR, Op.BXOR):
        function = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op]
        total = every[0].clone()
        for each in every[1:]:
            total = function(total, each)
        return total
    if dtype is torch.bool:
        return every.any(0) if op in (Op.SUM, Op.MAX) else every.all(0)
    if op in (Op.MIN, Op.MAX):
        return every.amin(0) if op == Op.MIN else every.amax(0)
    every = every.to(exact)
    total = every.prod(0, dtype=exact) if op == Op.PRODUCT else every.sum(0, dtype=exact)
    return (total / size if op == Op.AVG else total).to(dtype)


def same(got: torch.Tensor, wanted: torch.Tensor, what: Any) -> None:
    assert got.dtype is wanted.dtype, what
    torch.testing.assert_close(got, wanted, msg=str(what))


for (op, dtype), n in itertools.product(CASES, SIZES):
    tensor = of(rank, n, dtype)
    dist.all_reduce(tensor, op)
    same(tensor, expected(op, n, dtype), ("all_reduce", op, dtype, n))
for dtype, large in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):  # adding 1 to it in this dtype changes nothing
    tensor = torch.tensor([1.0 if rank else large], dtype=dtype)
    dist.all_reduce(tensor)
    assert tensor.item() == torch.tensor(large + size - 1).to(dtype).item()
print("passed all_reduce")

for op, dtype in [(Op.SUM, torch.float32), (Op.AVG, torch.bfloat16), (Op.MAX, torch.int64), (Op.SUM, torch.bool)]:
    for n, root in itertools.product(SIZES, {0, size - 1}):
        tensor = of(rank, n, dtype)
        dist.reduce(tensor, root, op)
        same(tensor, expected(op, n, dtype) if rank == root else of(rank, n, dtype), ("reduce", op, dtype, n, root))
    for n in SIZES:
        whole, mine = of(rank, n * size, dtype), torch.zeros(n, dtype=dtype)
        wanted = expected(op, n * size, dtype)[rank * n : (rank + 1) * n]
        dist.reduce_scatter_tensor(mine, whole, op)
        same(mine, wanted, ("reduce_scatter_tensor", op, dtype, n))
        mine.zero_()
        dist.reduce_scatter(mine, list(whole.view(size, n)), op)
        same(mine, wanted, ("reduce_scatter", op, dtype, n))
print("passed reduce and reduce_scatter")

for dtype, n in itertools.product(ALL, SIZES):
    for root in {0, size - 1}:
        tensor = of(rank, n, dtype)
        dist.broadcast(tensor, root)
        same(tensor, of(root, n, dtype), ("broadcast", dtype, n, root))
        found = [torch.zeros(n, dtype=dtype) for _ in range(size)]
        dist.gather(of(rank, n, dtype), found if rank == root else None, root)
        for each, got in enumerate(found):
            wanted = of(each, n, dtype) if rank == root else torch.zeros(n, dtype=dtype)
            same(got, wanted, ("gather", dtype, n, root))
        got = torch.zeros(n, dtype=dtype)
        dist.scatter(got, [of(each + 50, n, dtype) for each in range(size)] if rank == root else None, root)
        same(got, of(rank + 50, n, dtype), ("scatter", dtype, n, root))
    found = [torch.zeros(n, dtype=dtype) for _ in range(size)]
    dist.all_gather(found, of(rank, n, dtype))
    for each, got in enumerate(found):
        same(got, of(each, n, dtype), ("all_gather", dtype, n))
    whole = torch.zeros(n * size, dtype=dtype)
    dist.all_gather_into_tensor(whole, of(rank, n, dtype))
    same(whole, torch.cat([of(each, n, dtype) for each in range(size)]), ("all_gather_into_tensor", dtype, n))
    found = [torch.zeros(n + rank, dtype=dtype) for _ in range(size)]
    dist.all_to_all(found, [of(10 * rank + each, n + each, dtype) for each in range(size)])
    for each, got in enumerate(found):
        same(got, of(10 * each + rank, n + rank, dtype), ("all_to_all", dtype, n))
    rows = of(rank, 2 * size * n, dtype).view(size * n, 2)
    got = torch.zeros_like(rows)
    dist.all_to_all_single(got, rows)
    theirs = [of(each, 2 * size * n, dtype).view(size, n, 2)[rank] for each in range(size)]
    same(got, torch.cat(theirs), ("all_to_all_single", dtype, n))
splits = [each + 1 for each in range(size)]
got = torch.zeros(size * (rank + 1))
dist.all_to_all_single(got, torch.arange(sum(splits)) + 100.0 * rank, [rank + 1] * size, splits)
first = sum(splits[:rank])
same(got, torch.cat([torch.arange(first, first + rank + 1) + 100.0 * each for each in range(size)]), "splits")
print("passed broadcast, gather, scatter and all_to_all")

parts = [of(rank, 3, torch.float32), of(rank, 20_011, torch.float32).view(1, -1)]
works = [dist.all_reduce_coalesced([parts[0], parts[1]], async_op=True)]
with dist.distributed_c10d._coalescing_manager():
    more = [of(rank, 5, torch.float32), of(rank, 9, torch.float32)]
    for each in more:
        dist.all_reduce(each)
for work in works:
    work.wait()
for tensor in [*parts, *more]:
    same(tensor.reshape(-1), expected(Op.SUM, tensor.numel(), torch.float32), "coalesced")
tensor = of(rank, 12, torch.float32).view(3, 4).t()
assert size == 0 or not tensor.is_contiguous()
dist.all_reduce(tensor)
same(tensor, expected(Op.SUM, 12, torch.float32).view(3, 4).t(), "transposed")
tensor = torch.zeros(6, 5)[:, 1:3]
dist.broadcast(tensor.fill_(rank + 1.0), 0)
same(tensor, torch.ones(6, 2), "a part of a tensor")
scalar = torch.tensor(float(rank))
dist.all_reduce(scalar)
same(scalar, torch.tensor(float(sum(range(size)))), "no dimension")
print("passed other shapes")

many = [of(rank, n, torch.float32) for n in (1, 20_011, 7, 50_000, 3)]
works = [dist.all_reduce(each, async_op=True) for each in many]
futures = [work.get_future() for work in works[:2]]
dist.barrier()
assert all(work.is_completed() and work.is_success() for work in works)
assert torch.equal(futures[1].wait()[0], many[1])
for tensor in many:
    same(tensor, expected(Op.SUM, tensor.numel(), torch.float32), "asynchronous")
objects: list[Any] = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": each} for each in range(size)]
shared = [{"from": rank}]
dist.broadcast_object_list(shared, size - 1)
assert shared == [{"from": size - 1}]
print("passed asynchronous calls and objects")

right, left = (rank + 1) % size, (rank - 1) % size
if size > 1:
    for n in SIZES:
        got = torch.zeros(n)
        sent = dist.isend(of(rank, n, torch.float32), right, tag=n)
        assert dist.recv(got, left, tag=n) == left
        sent.wait()
        same(got, of(left, n, torch.float32), ("send", n))
    both = [
        dist.P2POp(dist.isend, of(rank, 9, torch.bfloat16), right),
        dist.P2POp(dist.irecv, short := torch.zeros(9, dtype=torch.bfloat16), left),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    same(short, of(left, 9, torch.bfloat16), "batch_isend_irecv")
    if rank == 0:
        got = torch.zeros(1)
        assert sorted(dist.recv(got) for _ in range(size - 1)) == list(range(1, size))
    else:
        dist.send(torch.ones(1), 0)
    evens = dist.new_group(list(range(0, size, 2)))
    if rank % 2 == 0:
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=evens)
        assert tensor.item() == sum(range(0, size, 2))
        dist.broadcast(tensor.fill_(rank), (size - 1) // 2 * 2, group=evens)
        assert tensor.item() == (size - 1) // 2 * 2
print("passed messages and groups")

for op, dtype in [(Op.AVG, torch.int32), (Op.BAND, torch.float32), (Op.AVG, torch.bool)]:
    with pytest.raises(TypeError, match="expected one of SUM"):
        dist.all_reduce(torch.ones(2, dtype=dtype), op)
with pytest.raises(TypeError, match="expected a dense tensor"):
    dist.all_reduce(torch.eye(3).to_sparse())
print("passed refusals")
