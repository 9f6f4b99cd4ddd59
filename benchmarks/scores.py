"""Compares the scores of clusterings with scikit-learn: the same labels of the same rows.

    python benchmarks/scores.py            # 50,000 x 20 float32, 10 clusters
    python benchmarks/scores.py --quick    # a test of a few seconds

Each system runs in its own process, bound to the same cores. They take turns. xpulab is called with a NumPy array; the
time includes the transfer. The limit of silhouette_score is the time in which the cores can subtract, multiply and add
for all pairs of rows and all columns: two instructions for each, at the rate of fused multiply-adds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time

import numpy as np
from estimators import Worker

SYSTEMS = ("xpulab", "scikit-learn")
SCORES = ("silhouette_score", "davies_bouldin_score", "calinski_harabasz_score")


def work(system: str, folder: str) -> None:
    """Run one system: for each name on standard input, compute this score once, and print seconds and the score."""
    X, labels = np.load(f"{folder}/X.npy"), np.load(f"{folder}/labels.npy")
    close = None
    if system == "xpulab":
        import xpulab
        from xpulab import metrics

        close = xpulab.XPUCluster(len(os.sched_getaffinity(0)), timeout=120).start().stop
    else:
        from sklearn import metrics  # type: ignore[no-redef]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        score = getattr(metrics, line.strip())
        began = time.perf_counter()
        value = score(X, labels)
        print(json.dumps({"seconds": time.perf_counter() - began, "score": value}), flush=True)
    if close is not None:
        close()


def measure(n: int, d: int, k: int, cores: list[int], repeats: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the median of the seconds of each score and system, without the first turn, and the score."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, k, n)
    X = (3 * rng.standard_normal((k, d))[labels] + 3 * rng.standard_normal((n, d))).astype(np.float32)
    found: dict[str, dict[str, tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", X)
        np.save(f"{folder}/labels.npy", labels)
        workers = {system: Worker(__file__, system, folder, cores) for system in SYSTEMS}
        try:
            for score in SCORES:
                turns = [{system: worker.ask(score) for system, worker in workers.items()} for _ in range(repeats + 1)]
                found[score] = {
                    system: (
                        float(np.median([turn[system]["seconds"] for turn in turns[1:]])),
                        turns[0][system]["score"],
                    )
                    for system in SYSTEMS
                }
        finally:
            for worker in workers.values():
                worker.close()
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="few rows, once")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    from kmeans import limit

    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    n, d, k = 2_000 if arguments.quick else arguments.rows, arguments.features, arguments.clusters
    found = measure(n, d, k, cores, 1 if arguments.quick else arguments.repeats)
    gflops = limit(cores)["float32"]
    print(f"{n:,} x {d} float32, {k} clusters: seconds and score of xpulab, of scikit-learn, and x scikit-learn")
    for score, by_system in found.items():
        (ours, mine), (theirs, other) = (by_system[system] for system in SYSTEMS)
        print(f"  {score:24} {ours:8.3f} {mine:14.8g} {theirs:8.3f} {other:14.8g} {theirs / ours:7.1f}")
    print(f"  limit of silhouette_score: {4e-9 * n * n * d / gflops:.3f} s, at {gflops:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
