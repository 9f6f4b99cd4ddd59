"""Measures the start and the stop of a cluster; `small_calls.py` measures calls on one that runs.

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

    starts, stops = [], []
    for _ in range(arguments.repeats):
        cluster = xpulab.XPUCluster(arguments.n, timeout=120)
        starts.append(timed(cluster.start))
        stops.append(timed(cluster.stop))
    rows = [
        ("start, until all engines answer", f"{np.median(starts):.2f} s", f"{max(starts):.2f} s"),
        ("stop", f"{np.median(stops):.2f} s", f"{max(stops):.2f} s"),
    ]
    print(table_text((f"{arguments.n} engines", "median", "most"), rows, "lrr", indent=""))


if __name__ == "__main__":
    main()
