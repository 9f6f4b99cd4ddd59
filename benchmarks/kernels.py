"""Measures each kernel of an iteration of Lloyd's algorithm on one engine, and the maximum that its cores can reach.

python benchmarks/kernels.py --rows 100000 --features 256 --clusters 127
"""

from __future__ import annotations

import argparse
import re
import time
from collections import defaultdict
from typing import Any

import numpy as np
from kmeans import multiply_add

import xpulab
from xpulab.report.rendering import table_text

#: Part of the compiled kernel's name -> description of the kernel.
KERNELS = {"nearest": "the nearest centre of each row", "moves": "rows that move from sum to sum"}


def profile(task: Any, rows: int, features: int, clusters: int, iterations: int) -> dict[str, list[float]]:
    """On the engine: seconds of each kernel in each iteration, by the device's clock, and of a sum of all elements."""
    from xpulab.kernels.kmeans import dense
    from xpulab.kernels.rows import Rows

    device, seen = task.device, []
    X = np.random.default_rng(0).normal(size=(rows, features)).astype(np.float32)
    block, labels, centers = Rows.upload(device, X), dense.new_labels(device, rows), X[:clusters]
    track = device.track
    device.track = lambda event, arguments: (seen.append((arguments.name, event)), track(event, arguments))
    found = defaultdict(list)
    try:
        for i in range(iterations + 1):
            sums, weights, _ = dense.lloyd_step(block, None, centers, labels)
            centers = (sums / np.maximum(weights, 1)[:, None]).astype(np.float32)
            device.wait()
            for name, event in seen:
                found[re.search("|".join(KERNELS), name)[0]].append(event.seconds())
            seen.clear()
            if i == 0:  # the first iteration compiles the kernels: begin again
                found.clear()
                labels, centers = dense.new_labels(device, rows), X[:clusters]
    finally:
        device.track = track
    for _ in range(5):
        started = time.perf_counter()
        X.sum()
        found["sum"].append(time.perf_counter() - started)
    return dict(found)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--clusters", type=int, default=127)
    parser.add_argument("--iterations", type=int, default=20)
    asked = parser.parse_args()
    with xpulab.XPUCluster(1, timeout=120) as cluster:
        (rate,) = cluster.run(multiply_add, "float32")
        (found,) = cluster.run(profile, asked.rows, asked.features, asked.clusters, asked.iterations)
    products = 2 * asked.rows * asked.features * asked.clusters / rate / 1e6
    size = 4 * asked.rows * asked.features
    read = min(found["sum"])
    print(
        f"{asked.rows:,} x {asked.features} float32, {asked.clusters} clusters, {asked.iterations} iterations, 1 engine"
    )
    print(f"all comparisons take {products:.1f} ms at the {rate:.0f} GFLOP/s of fused multiply-adds that it reaches")
    print(f"numpy.sum of the rows takes {1e3 * read:.1f} ms, {size / read / 1e9:.1f} GB/s\n")
    lines = [
        [what, *(f"{1e3 * number:.1f}" for number in (found[name][0], np.median(found[name]), np.mean(found[name])))]
        for name, what in KERNELS.items()
        if name in found  # if there is memory for the sums of each work-group, the nearest kernel also moves the rows
    ]
    print(table_text(["ms an iteration", "first", "median", "mean"], lines, "lrrr"))


if __name__ == "__main__":
    main()
