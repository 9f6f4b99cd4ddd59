"""`MiniBatchKMeans` and `BisectingKMeans` against scikit-learn's: the same rows, parameters and random_state, in turns.

    python benchmarks/minibatch.py               # 2,000,000 x 14 float32; scikit-learn takes minutes
    python benchmarks/minibatch.py --patience 2  # fits that end after fewer steps
    python benchmarks/minibatch.py --quick       # a test of a few seconds

Both use all cores of this process. xpulab is called as in a notebook: the cluster is already running, `fit` gets a
NumPy array, and the time includes the transfer.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np
import sklearn.cluster

import xpulab
import xpulab.cluster


def rows_of(n: int, d: int, groups: int) -> np.ndarray:
    """Overlapping groups."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    X += 2 * rng.standard_normal((groups, d), dtype=np.float32)[rng.integers(0, groups, n)]
    return X


def compare(name: str, X: np.ndarray, repeats: int, **parameters: Any) -> None:
    """Print the seconds, steps and inertia of each system; the first fit of a small part does not count."""
    for turn in range(repeats):
        for system, module in (("xpulab", xpulab.cluster), ("scikit-learn", sklearn.cluster)):
            make = getattr(module, name)
            if turn == 0:
                make(random_state=0, **parameters).fit(X[: len(X) // 100])
            began = time.perf_counter()
            model = make(random_state=turn, **parameters).fit(X)
            seconds = time.perf_counter() - began
            steps = getattr(model, "n_steps_", parameters["n_clusters"] - 1)
            print(f"{name:16} {system:13} {seconds:9.3f} s {steps:6d} steps  inertia {model.inertia_:.6g}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--patience", type=int, default=10, help="max_no_improvement")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    n, k = (5_000, 20) if options.quick else (options.rows, 127)
    X = rows_of(n, 14, k)
    with xpulab.XPUCluster(len(os.sched_getaffinity(0)), timeout=120):
        compare("MiniBatchKMeans", X, options.repeats, n_clusters=k, max_no_improvement=options.patience)
        compare("BisectingKMeans", X, options.repeats, n_clusters=8)


if __name__ == "__main__":
    main()
