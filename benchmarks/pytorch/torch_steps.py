"""Measures training steps in one process of a group; torch_ddp.py runs it in each of its systems.

torchrun --nproc-per-node 2 benchmarks/pytorch/torch_steps.py --steps 20
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class MLP(torch.nn.Sequential):
    """2.1 million parameters."""

    def __init__(self) -> None:
        super().__init__(
            torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1200), torch.nn.ReLU(),
            torch.nn.Linear(1200, 10),
        )  # fmt: skip


class CNN(torch.nn.Sequential):
    """1.2 million parameters."""

    def __init__(self) -> None:
        super().__init__(
            torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(9216, 128), torch.nn.ReLU(),
            torch.nn.Linear(128, 10),
        )  # fmt: skip


#: Name -> class of the network, shape of a row, rows of a batch of one process.
NETWORKS: dict[str, tuple[type, tuple[int, ...], int]] = {"MLP": (MLP, (784,), 128), "CNN": (CNN, (1, 28, 28), 32)}


def measured(steps: int, grouped: bool) -> dict[str, Any]:
    """Return the seconds of each step of each network, and of each all-reduce of 1 MiB."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, (network, shape, rows) in NETWORKS.items():
        torch.manual_seed(0)
        model = network()
        found[f"{name} parameters"] = sum(parameter.numel() for parameter in model.parameters())
        if grouped:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(rows, *shape), torch.randint(0, 10, (rows,))
        seconds = []
        for _ in range(3 + steps):
            started = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        found[name] = seconds[3:]
    if grouped:
        tensor, seconds = torch.ones(1 << 18), []
        for _ in range(10 + 10 * steps):
            started = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - started)
            tensor.fill_(1)
        found["all-reduce"] = seconds[10:]
    return found


def main() -> None:
    """Measure, as a plain process or under torchrun, and print JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cores", type=int, nargs="+", help="one core for each process")
    asked = parser.parse_args()
    rank, grouped = int(os.environ.get("LOCAL_RANK", "0")), "LOCAL_RANK" in os.environ
    if asked.cores:
        os.sched_setaffinity(0, {asked.cores[rank]})
    if grouped:
        dist.init_process_group("gloo")
    found = measured(asked.steps, grouped)
    if rank == 0:
        print(json.dumps(found))
    if grouped:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
