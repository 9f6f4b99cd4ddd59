"""``python tests/faults/leaks.py`` measures growth in a long session: notebook, controller and engines."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
import psutil
from leftovers import processes_of

import xpulab
from xpulab.cluster import KMeans

__all__ = ["State", "calls", "handles", "state"]

_X = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)


@dataclass(frozen=True)
class State:
    """The memory and the file descriptors of a process.

    Attributes
    ----------
    memory : int
        Bytes that belong to this process alone.
    descriptors : int
    """

    memory: int
    descriptors: int


def state(cluster: xpulab.XPUCluster) -> dict[str, State]:
    """Return the state of the notebook, of the engines by rank, and of the controller and its children."""
    gc.collect()
    pids = {"notebook": os.getpid(), **{f"rank {fact.rank}": fact.pid for fact in cluster.facts}}
    controllers = sorted(
        p for p, line in processes_of(os.getpid()).items() if "xpulab.deploy.processes.controller" in line
    )
    pids |= {f"controller {number}": pid for number, pid in enumerate(controllers)}
    found = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        found[name] = State(process.memory_full_info().uss, process.num_fds())
    return found


def calls(cluster: xpulab.XPUCluster, n: int) -> None:
    """Run this number of fits and predicts of few rows."""
    for seed in range(n):
        KMeans(4, random_state=seed, max_iter=5).fit(_X).predict(_X)


def handles(cluster: xpulab.XPUCluster, n: int, n_samples: int = 20_000) -> None:
    """Create and delete rows on the engines."""

    def held() -> int:
        return sum(engine.device_bytes or 0 for engine in cluster.status().engines)

    X, before = np.zeros((n_samples, 16), np.float32), held()
    for _ in range(n):
        cluster.scatter(X)
    deadline = time.monotonic() + 10
    while held() > before and time.monotonic() < deadline:
        time.sleep(0.05)  # the last of them is freed by a thread


def main() -> None:
    """Print the growth after the first calls. The exit status is 1 for 5 % of memory, for one descriptor, or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--handles", type=int, default=200)
    parser.add_argument("--first", type=int, default=50)
    arguments = parser.parse_args()
    grown = False
    with xpulab.XPUCluster(2) as cluster:
        for act, n in ((calls, arguments.fits), (handles, arguments.handles)):
            act(cluster, arguments.first)
            before = state(cluster)
            act(cluster, n - arguments.first)
            after = state(cluster)
            print(f"\n{n} {act.__name__}, the first {arguments.first} aside: MiB and descriptors before and after")
            for name, there in before.items():
                now = after[name]
                growth = now.memory / there.memory - 1
                grown |= growth >= 0.05 or now.descriptors > there.descriptors
                print(
                    f"{name:14} {there.memory / 2**20:8.1f} {now.memory / 2**20:8.1f}  {growth:+7.1%}"
                    f"   {there.descriptors:4} {now.descriptors:4}"
                )
    sys.exit(grown)


if __name__ == "__main__":
    main()
