"""Mixtures of normal distributions against scikit-learn. scikit-learn-intelex has no GaussianMixture of its own.

    python benchmarks/mixture.py            # 500,000 x 10 float32, 8 components, all types of covariance
    python benchmarks/mixture.py --quick    # a few seconds: does it work

Each system is a process of its own, bound to the same cores; they take turns. All fits begin with the same parameters,
and do the same number of iterations. xpulab is called with a NumPy array, and with rows that are on its engines. The
column "limit" has the seconds in which the cores can do the multiply-adds of an iteration, times the iterations: for
each row and component, d (d + 1) for "full" (a triangular product, and the upper triangle of the products of
differences), and 4 d for variances.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from typing import Any

import numpy as np
from estimators import Worker

SYSTEMS = ("xpulab", "xpulab, rows there", "scikit-learn")
TYPES = ("full", "tied", "diag", "spherical")
COMPONENTS = 8


def rows_of(n: int, d: int) -> np.ndarray:
    """Rows of overlapping components with covariances of their own."""
    rng = np.random.default_rng(0)
    shapes = rng.standard_normal((COMPONENTS, d, d)) / np.sqrt(d) + 0.3 * np.eye(d)
    means = rng.normal(0, 1.5, (COMPONENTS, d))
    X = np.empty((n, d), np.float32)
    for part in np.array_split(np.arange(n), max(1, n // 10_000)):
        z = rng.integers(COMPONENTS, size=len(part))
        X[part] = means[z] + np.einsum("ni,nij->nj", rng.standard_normal((len(part), d)), shapes[z])
    return X


def work(system: str, folder: str) -> None:
    """Run one system: fit for each line on standard input (a type and a number of iterations); print the seconds."""
    warnings.simplefilter("ignore")
    X = np.load(f"{folder}/X.npy")
    given: Any = X
    if system == "scikit-learn":
        from sklearn.mixture import GaussianMixture

        def close() -> None:
            """There is nothing to end."""

    else:
        import xpulab
        from xpulab.mixture import GaussianMixture

        cluster = xpulab.XPUCluster(len(os.sched_getaffinity(0)), timeout=120).start()
        close = cluster.stop
        if system.endswith("there"):
            given = cluster.scatter(X)
    print(json.dumps({"ready": True}), flush=True)
    d, variance = X.shape[1], X.var(axis=0, dtype=np.float64)
    first = {
        "full": np.repeat(np.diag(1 / variance)[None], COMPONENTS, axis=0),
        "tied": np.diag(1 / variance),
        "diag": np.repeat(1 / variance[None], COMPONENTS, axis=0),
        "spherical": np.full(COMPONENTS, d / variance.sum()),
    }
    for line in sys.stdin:
        kind, iterations = line.split()
        model = GaussianMixture(
            COMPONENTS,
            covariance_type=kind,
            weights_init=np.full(COMPONENTS, 1 / COMPONENTS),
            means_init=X[:COMPONENTS],
            precisions_init=first[kind],
            tol=0,
            max_iter=int(iterations),
        )
        began = time.perf_counter()
        model.fit(given)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "bound": float(model.lower_bound_)}), flush=True)
    close()


def measure(
    n: int, d: int, kinds: list[str], iterations: int, systems: list[str], cores: list[int], repeats: int
) -> str:
    """A line for each type of covariance with the medians; the first turn does not count."""
    from kmeans import limit

    from xpulab.report.rendering import table_text

    lines, gflops = [], limit(cores)["float32"]
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", rows_of(n, d))
        workers = {system: Worker(__file__, system, folder, cores) for system in systems}
        try:
            for kind in kinds:
                turns: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
                for _ in range(repeats + 1):
                    for system, worker in workers.items():
                        turns[system].append(worker.ask(f"{kind} {iterations}"))
                medians = {s: float(np.median([turn["seconds"] for turn in every[1:]])) for s, every in turns.items()}
                products = d * (d + 1) if kind in ("full", "tied") else 4 * d
                bound = iterations * 2 * n * COMPONENTS * products / gflops / 1e9
                bounds = [every[0]["bound"] for every in turns.values()]
                ratios = [f"{medians[systems[-1]] / medians[s]:.1f}" for s in systems[:-1]]
                cells = (*(f"{medians[s]:.3f}" for s in systems), f"{bound:.3f}", *ratios, f"{np.ptp(bounds):.0e}")
                lines.append((kind, *cells))
        finally:
            for worker in workers.values():
                worker.close()
    head = ("seconds", *systems, "limit", *(f"x {s}" for s in systems[:-1]), "bounds differ by")
    title = f"{n:,} x {d} float32, {COMPONENTS} components, {iterations} iterations; {gflops:.0f} GFLOP/s"
    return f"{title}\n{table_text(head, lines, 'l' + 'r' * (len(head) - 1), indent='')}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=TYPES)
    parser.add_argument("--shape", default="500000x10", help="rows x columns")
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--quick", action="store_true", help="few rows, once")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    n, d = map(int, ("3000x4" if arguments.quick else arguments.shape).split("x"))
    iterations, repeats = (2, 1) if arguments.quick else (arguments.iterations, arguments.repeats)
    print(measure(n, d, arguments.types, iterations, arguments.systems, cores, repeats), flush=True)


if __name__ == "__main__":
    main()
