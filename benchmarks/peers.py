"""Runs one system in one process: fits k-means on rows from a file, and prints a line of JSON for each fit.

kmeans.py starts it in the system's environment. It imports only NumPy and the system. Each line on standard input
starts a fit, so that the systems can take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Fit = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, int]]


def scikit_learn(algorithm: str) -> Fit:
    """scikit-learn in this process, with its OpenMP threads."""
    from sklearn.cluster import KMeans

    def fit(X: np.ndarray, start: np.ndarray, iterations: int) -> tuple[np.ndarray, int]:
        km = KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=0, algorithm=algorithm).fit(X)
        return km.cluster_centers_, km.n_iter_

    return fit


def scikit_learn_intelex() -> Fit:
    """scikit-learn-intelex: Intel's oneDAL behind scikit-learn's estimator."""
    from sklearnex import patch_sklearn

    patch_sklearn(verbose=False)
    return scikit_learn("lloyd")


def daal4py() -> Fit:
    """daal4py, which calls oneDAL directly."""
    import daal4py as d4p

    def fit(X: np.ndarray, start: np.ndarray, iterations: int) -> tuple[np.ndarray, int]:
        kind = "float" if X.dtype == np.float32 else "double"
        result = d4p.kmeans(len(start), iterations, fptype=kind, accuracyThreshold=0).compute(X, start)
        return result.centroids, int(result.nIterations[0, 0])

    return fit


def faiss() -> Fit:
    """Meta's faiss, built for CPUs. It uses all rows, instead of a sample, which is its default."""
    import faiss as module

    module.omp_set_num_threads(len(os.sched_getaffinity(0)))

    def fit(X: np.ndarray, start: np.ndarray, iterations: int) -> tuple[np.ndarray, int]:
        km = module.Kmeans(X.shape[1], len(start), niter=iterations, nredo=1, max_points_per_centroid=len(X))
        km.train(X, init_centroids=start)
        return km.centroids, iterations

    return fit


def dask_ml() -> Fit:
    """dask-ml's KMeans, with one chunk per thread."""
    import dask
    import dask.array as da
    from dask_ml.cluster import KMeans

    threads = len(os.sched_getaffinity(0))
    dask.config.set(scheduler="threads", num_workers=threads)

    def fit(X: np.ndarray, start: np.ndarray, iterations: int) -> tuple[np.ndarray, int]:
        rows = da.from_array(X, chunks=(-(-len(X) // threads), X.shape[1]))
        km = KMeans(len(start), init=start, max_iter=iterations, tol=0).fit(rows)
        return np.asarray(km.cluster_centers_), int(km.n_iter_)

    return fit


def pytorch() -> Fit:
    """Lloyd's algorithm in PyTorch, which has no k-means, in chunks whose distances fit into the cache."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def fit(X: np.ndarray, start: np.ndarray, iterations: int) -> tuple[np.ndarray, int]:
        rows, centers = torch.from_numpy(X), torch.from_numpy(start.copy())
        step = max(1024, (1 << 20) // len(start))
        for _ in range(iterations):
            sums, counts = torch.zeros_like(centers), torch.zeros(len(centers), dtype=rows.dtype)
            norms = (centers * centers).sum(1)
            for part in rows.split(step):
                label = torch.addmm(norms, part, centers.T, alpha=-2).argmin(1)
                sums.index_add_(0, label, part)
                counts += torch.bincount(label, minlength=len(centers))
            centers = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centers)
        return centers.numpy(), iterations

    return fit


def xpulab(sharded: bool) -> Fit:
    """xpulab as in a notebook: the cluster is running, and `fit` gets a NumPy array, or rows on the engines."""
    import xpulab as package
    from xpulab.cluster import KMeans

    cluster = package.XPUCluster(len(os.sched_getaffinity(0)), timeout=120).start()
    handles: dict[int, Any] = {}

    def fit(X: np.ndarray, start: np.ndarray, iterations: int) -> tuple[np.ndarray, int]:
        km = KMeans(len(start), init=start, n_init=1, max_iter=iterations, tol=0)
        km.fit(handles[id(X)] if sharded else X)
        return km.cluster_centers_, km.n_iter_

    def prepare(X: np.ndarray) -> None:
        if sharded:
            handles[id(X)] = cluster.scatter(X)

    fit.prepare = prepare  # type: ignore[attr-defined]
    fit.close = cluster.stop  # type: ignore[attr-defined]
    return fit


SYSTEMS: dict[str, Callable[[], Fit]] = {
    "xpulab": lambda: xpulab(False),
    "xpulab-resident": lambda: xpulab(True),
    "scikit-learn": lambda: scikit_learn("lloyd"),
    "scikit-learn-elkan": lambda: scikit_learn("elkan"),
    "scikit-learn-intelex": scikit_learn_intelex,
    "daal4py": daal4py,
    "faiss-cpu": faiss,
    "dask-ml": dask_ml,
    "pytorch": pytorch,
}


def main() -> None:
    """Load the rows, warm up, and then run a fit for each line of standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    X, start = np.load(arguments.rows), np.load(arguments.start)
    fit = SYSTEMS[arguments.system]()
    getattr(fit, "prepare", lambda X: None)(X)
    fit(X[: max(20_000, len(start))].copy(), start, 2) if not hasattr(fit, "prepare") else fit(X, start, 2)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        centers, iterations = fit(X, start, arguments.iterations)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "iterations": iterations, "inertia": inertia(X, centers)}), flush=True)
    getattr(fit, "close", lambda: None)()


def inertia(X: np.ndarray, centers: np.ndarray) -> float:
    """Inertia of at most 100,000 of the rows in float64, by which the results of all systems are compared."""
    rows, c = X[:: max(1, len(X) // 100_000)].astype(np.float64), np.asarray(centers, np.float64)
    total = 0.0
    for part in np.array_split(rows, max(1, len(rows) * len(c) // 4_000_000)):
        total += float(((part**2).sum(1) + ((c**2).sum(1) - 2 * part @ c.T).min(1)).sum())
    return total


if __name__ == "__main__":
    main()
