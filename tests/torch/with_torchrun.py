"""A script for torchrun, which test_torchrun.py starts unchanged, also as a cell: it makes groups and destroys them."""

import os
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
found = []
for number, backend in enumerate(["", "gloo", "cpu:gloo", "", "gloo"]):
    if number == (0 if rank == 0 else 3):
        time.sleep(0.5)  # the others wait at the port, first for the rank that serves it, then for the last rank
    dist.init_process_group(*filter(None, [backend]))
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    found.append(int(total))
    dist.destroy_process_group()
dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
                        rank=rank, world_size=size)  # fmt: skip
every = [None] * size
dist.all_gather_object(every, [int(os.environ["LOCAL_RANK"]), *found])
print(every)
dist.destroy_process_group()
