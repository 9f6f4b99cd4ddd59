"""Nearest neighbours by comparing all rows, against faiss-cpu, scikit-learn and scikit-learn-intelex.

    python benchmarks/neighbors.py            # 200,000 x 32 and 50,000 x 256, 5,000 queries, 10 neighbours, float32
    python benchmarks/neighbors.py --quick    # a few seconds: does it work

Each system is a process of its own, bound to the same cores; they take turns. The seconds are those of sending or
indexing the rows and of the search together, and those of the search alone. All have to find the same neighbours, up to
near-ties: the share of those that scikit-learn finds is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from estimators import Worker

SYSTEMS = ("xpulab", "faiss-cpu", "scikit-learn", "scikit-learn-intelex")
K = 10


def work(system: str, folder: str) -> None:
    """Serve one system: each line on standard input is a fit and a search, whose seconds go to standard output."""
    X, Q = np.load(f"{folder}/X.npy"), np.load(f"{folder}/Q.npy")
    close, search = prepared(system, X)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        found = search()
        built = time.perf_counter()
        places = found(Q)
        ended = time.perf_counter()
        np.save(f"{folder}/{system}.npy", places)
        print(json.dumps({"all": ended - began, "search": ended - built}), flush=True)
    close()


def prepared(system: str, X: np.ndarray) -> tuple[Any, Any]:
    """What ends the system, and a function that makes an index of X and returns the search in it."""
    if system == "faiss-cpu":
        import faiss

        def build() -> Any:
            index = faiss.IndexFlatL2(X.shape[1])
            index.add(X)
            return lambda Q: index.search(Q, K)[1]

        return (lambda: None), build
    if system == "xpulab":
        import xpulab
        from xpulab.neighbors import NearestNeighbors

        close = xpulab.XPUCluster(len(os.sched_getaffinity(0)), timeout=120).start().stop
    else:
        if system == "scikit-learn-intelex":
            from sklearnex import patch_sklearn

            patch_sklearn(verbose=False)
        from sklearn.neighbors import NearestNeighbors

        def close() -> None:
            """There is nothing to end."""

    def fit() -> Any:
        fitted = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(X)
        return lambda Q: fitted.kneighbors(Q)[1]

    return close, fit


def measure(n: int, d: int, m: int, systems: list[str], cores: list[int], repeats: int) -> str:
    """One line a system: the medians, and the share of scikit-learn's neighbours; the first turn does not count."""
    rng = np.random.default_rng(0)
    lines = [f"{n:,} x {d} float32, {m:,} queries, {K} neighbours: seconds in all, of the search, the same neighbours"]
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", rng.standard_normal((n, d), dtype=np.float32))
        np.save(f"{folder}/Q.npy", rng.standard_normal((m, d), dtype=np.float32))
        workers = {}
        for system in systems:
            try:
                workers[system] = Worker(__file__, system, folder, cores)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                print(f"{system} is not here: {error}", file=sys.stderr)
        turns: dict[str, list[dict[str, float]]] = {system: [] for system in workers}
        try:
            for _ in range(repeats + 1):
                for system, worker in workers.items():
                    turns[system].append(worker.ask())
        finally:
            for worker in workers.values():
                worker.close()
        reference = np.load(f"{folder}/{'scikit-learn' if 'scikit-learn' in workers else systems[0]}.npy")
        for system, every in turns.items():
            both = [np.median([turn[part] for turn in every[1:]]) for part in ("all", "search")]
            same = np.mean(np.load(f"{folder}/{system}.npy") == reference)
            lines.append(f"  {system:22} {both[0]:8.3f} {both[1]:8.3f} {same:9.6f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--quick", action="store_true", help="few rows, once")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    shapes = [(2_000, 32, 100)] if arguments.quick else [(200_000, 32, 5_000), (50_000, 256, 5_000)]
    for n, d, m in shapes:
        print(measure(n, d, m, arguments.systems, cores, 1 if arguments.quick else arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
