"""Measures the cost of a cluster: start, stop, an empty task, and a fit of a few rows.

python benchmarks/cluster.py -n 2 --repeats 5
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import xpulab
from xpulab.report.rendering import table_text


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    """Measure, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)

    starts, stops, trips, tiny = ([] for _ in range(4))  # type: ignore[var-annotated]
    for _ in range(arguments.repeats):
        cluster = xpulab.XPUCluster(arguments.n, timeout=120)
        starts.append(timed(cluster.start))
        stops.append(timed(cluster.stop))
    with xpulab.XPUCluster(arguments.n, timeout=120) as cluster:
        from xpulab.cluster import KMeans

        small = np.random.default_rng(0).normal(size=(1500, 2))
        KMeans(3, random_state=0).fit(small)
        for _ in range(arguments.repeats):
            trips += [timed(lambda: cluster.call("release", {"handles": []})) for _ in range(10)]
            tiny += [timed(lambda: KMeans(3, random_state=0).fit(small)) for _ in range(10)]
    rows = [
        ("start, until all engines answer", f"{np.median(starts):.2f} s", f"{max(starts):.2f} s"),
        ("stop", f"{np.median(stops):.2f} s", f"{max(stops):.2f} s"),
        ("an empty task on all engines", f"{1e3 * np.median(trips):.1f} ms", f"{1e3 * max(trips):.1f} ms"),
        ("fit of 1,500 x 2, k=3", f"{1e3 * np.median(tiny):.1f} ms", f"{1e3 * max(tiny):.1f} ms"),
    ]
    print(table_text((f"{arguments.n} engines", "median", "most"), rows, "lrr", indent=""))


if __name__ == "__main__":
    main()
