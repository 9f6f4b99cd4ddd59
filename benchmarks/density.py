"""DBSCAN against scikit-learn and the package `dbscan` (Wang, Gu and Shun's multi-threaded C++); HDBSCAN.

    python benchmarks/density.py            # 300,000 x 3 and 50,000 x 20 float32: blobs with noise, one normal cloud
    python benchmarks/density.py --quick    # a few seconds: does it work
    python benchmarks/density.py --hierarchy --repeats 1    # HDBSCAN, beside scikit-learn and `fast_hdbscan`

Each system is a process of its own, bound to the same cores; they take turns. scikit-learn searches with as many jobs
as there are cores. The seconds are those of a fit of a NumPy array. The number of clusters, the share of noise and the
share of rows with scikit-learn's label are printed too; before, clusters are numbered in the order of their first rows.
The labels of HDBSCAN may differ where distances are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from estimators import Worker

SYSTEMS = ("xpulab", "dbscan", "fast_hdbscan", "scikit-learn")
MIN_SAMPLES = 10
HIERARCHY: dict[str, Any] = {"min_samples": 5, "min_cluster_size": 50}
#: Name -> rows, features, blobs (0: one cloud of variance 1), eps.
CASES = {
    "blobs": (300_000, 3, 30, 0.2),
    "cloud": (300_000, 3, 0, 0.1),
    "blobs of 20 features": (50_000, 20, 30, 4.0),
}
QUICK = {"blobs": (3_000, 3, 5, 0.6)}
#: The same for HDBSCAN, which has no eps.
CASES_OF_HIERARCHY = {
    "few blobs": (20_000, 3, 20, 0.0),
    "blobs": (200_000, 3, 20, 0.0),
    "blobs of 20 features": (50_000, 20, 20, 0.0),
}
QUICK_OF_HIERARCHY = {"few blobs": (3_000, 3, 5, 0.0)}


def rows_of(n: int, d: int, blobs: int) -> np.ndarray:
    """A tenth of the rows are noise where there are blobs."""
    rng = np.random.default_rng(0)
    if not blobs:
        return rng.standard_normal((n, d), dtype=np.float32)
    centers = rng.uniform(-10, 10, (blobs, d))
    X = centers[rng.integers(blobs, size=n)] + rng.standard_normal((n, d)) * (0.5 if d < 10 else 1.0)
    noise = rng.random(n) < 0.1
    X[noise] = rng.uniform(-12, 12, (int(noise.sum()), d))
    return X.astype(np.float32)


def numbered(labels: np.ndarray) -> np.ndarray:
    """The labels in the order in which they first occur; -1 stays."""
    found, first, places = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(found), np.int64)
    order[np.argsort(np.where(found < 0, -1, first))] = np.arange(len(found)) - (found[0] < 0)
    return order[places]


def work(system: str, folder: str) -> None:
    """Serve one system: each line on standard input is a fit, whose seconds go to standard output."""
    X, eps = np.load(f"{folder}/X.npy"), float(np.load(f"{folder}/eps.npy"))
    close, fit = prepared(system, eps == 0)
    fit(X[:1000], eps)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        labels = fit(X, eps)
        seconds = time.perf_counter() - began
        np.save(f"{folder}/{system}.npy", labels)
        print(json.dumps({"seconds": seconds}), flush=True)
    close()


def prepared(system: str, hierarchy: bool) -> tuple[Callable[[], Any], Callable[[np.ndarray, float], np.ndarray]]:
    """What ends the system, and a function that returns the labels of rows."""
    if system == "fast_hdbscan":
        import fast_hdbscan

        return (lambda: None), lambda X, eps: fast_hdbscan.HDBSCAN(**HIERARCHY).fit(X).labels_
    if system == "dbscan":
        from dbscan import DBSCAN as function

        return (lambda: None), lambda X, eps: np.asarray(function(X, eps=eps, min_samples=MIN_SAMPLES)[0])
    cores = len(os.sched_getaffinity(0))
    if system == "xpulab":
        import xpulab
        from xpulab.cluster import DBSCAN, HDBSCAN

        close: Callable[[], Any] = xpulab.XPUCluster(cores, timeout=120).start().stop
    else:
        from sklearn.cluster import DBSCAN, HDBSCAN

        def close() -> None:
            """There is nothing to end."""

    if hierarchy:
        return close, lambda X, eps: HDBSCAN(**HIERARCHY, copy=True, n_jobs=cores).fit(X).labels_
    return close, lambda X, eps: DBSCAN(eps=eps, min_samples=MIN_SAMPLES, n_jobs=cores).fit(X).labels_


def measure(name: str, case: tuple[int, int, int, float], systems: list[str], cores: list[int], repeats: int) -> str:
    """One line a system: the median; the first turn does not count."""
    n, d, blobs, eps = case
    what = f"DBSCAN, eps={eps}" if eps else f"HDBSCAN, {HIERARCHY}"
    lines = [f"{name}: {n:,} x {d} float32, {what}: seconds, clusters, noise, the same labels"]
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", rows_of(n, d, blobs))
        np.save(f"{folder}/eps.npy", eps)
        workers, turns = {}, {}
        for system in systems:
            try:
                workers[system] = Worker(__file__, system, folder, cores)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                print(f"{system} is not here: {error}", file=sys.stderr)
        try:
            for _ in range(repeats + 1):
                for system, worker in workers.items():
                    turns.setdefault(system, []).append(worker.ask()["seconds"])
        finally:
            for worker in workers.values():
                worker.close()
        reference = numbered(np.load(f"{folder}/{'scikit-learn' if 'scikit-learn' in workers else systems[0]}.npy"))
        for system, seconds in turns.items():
            labels = numbered(np.load(f"{folder}/{system}.npy"))
            facts = f"{labels.max() + 1:6d} {np.mean(labels < 0):8.5f} {np.mean(labels == reference):9.6f}"
            lines.append(f"  {system:22} {np.median(seconds[1:]):8.3f} {facts}")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--quick", action="store_true", help="few rows, once")
    parser.add_argument("--hierarchy", action="store_true", help="HDBSCAN in place of DBSCAN")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    of_method = (QUICK_OF_HIERARCHY, CASES_OF_HIERARCHY) if arguments.hierarchy else (QUICK, CASES)
    systems = [each for each in arguments.systems if each != ("dbscan" if arguments.hierarchy else "fast_hdbscan")]
    for name, case in of_method[not arguments.quick].items():
        print(measure(name, case, systems, cores, 1 if arguments.quick else arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
