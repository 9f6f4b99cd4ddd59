"""Measures how many engines one CPU should have: the same calls with one engine on all cores, with two, and so on.

python benchmarks/scaling/engines.py --engines 1,2 --rows 1000000
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import PCA
from xpulab.linear_model import LinearRegression
from xpulab.preprocessing import StandardScaler
from xpulab.report.rendering import format_seconds, format_size, table_text


def calls(cluster: xpulab.XPUCluster, rows: int) -> dict[str, Callable[[], Any]]:
    """The calls to measure, by name: k-means on few and many rows, passes over NumPy arrays and rows on the engines."""
    rng = np.random.default_rng(0)
    narrow = rng.standard_normal((rows, 14), dtype=np.float32)
    wide = rng.standard_normal((rows // 2, 50), dtype=np.float32)
    few, there = narrow[:1500, :2].copy(), cluster.scatter(wide)

    def k_means(X: np.ndarray, k: int) -> Any:
        return KMeans(k, init=X[:k], n_init=1, max_iter=20, tol=0).fit(X)

    return {
        f"k-means, {rows:,} x 14, k=127": lambda: k_means(narrow, 127),
        f"k-means, {rows:,} x 14, k=8": lambda: k_means(narrow, 8),
        f"k-means, {len(few):,} x 2, k=3": lambda: k_means(few, 3),
        f"StandardScaler, {len(wide):,} x 50": lambda: StandardScaler().fit(wide),
        f"PCA(10), {len(wide):,} x 50": lambda: PCA(10).fit(wide),
        f"PCA(10), {len(wide):,} x 50, rows there": lambda: PCA(10).fit(there),
        f"LinearRegression, {len(wide):,} x 50": lambda: LinearRegression().fit(wide, wide[:, 0]),
    }


def measured(n: int, rows: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, of the start, and bytes of the cluster's processes."""
    started = time.perf_counter()
    with xpulab.XPUCluster(n, display="none") as cluster:
        found = {"start": [time.perf_counter() - started]}
        for name, call in calls(cluster, rows).items():
            call()  # during the first call the driver may finish kernels
            found[name] = []
            for _ in range(repeats):
                began = time.perf_counter()
                call()
                found[name].append(time.perf_counter() - began)
        processes = psutil.Process().children(recursive=True)
        found["memory"] = [float(sum(process.memory_info().rss for process in processes))]
    return found


def main() -> None:
    """Measure in turns, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="1,2", help="numbers of engines")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
    numbers = [int(n) for n in asked.engines.split(",")]
    turns = [{n: measured(n, asked.rows, asked.repeats) for n in numbers} for _ in range(asked.turns)]
    lines = []
    for name in turns[0][numbers[0]]:
        medians = [float(np.median(np.concatenate([turn[n][name] for turn in turns]))) for n in numbers]
        lines.append([name, *((format_size if name == "memory" else format_seconds)(m) for m in medians)])
    print(table_text(["median", *(f"{n} engine{'s' * (n > 1)}" for n in numbers)], lines, "l" + "r" * len(numbers)))


if __name__ == "__main__":
    main()
