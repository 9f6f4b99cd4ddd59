"""Forests against scikit-learn, scikit-learn-intelex, LightGBM and XGBoost.

    python benchmarks/forests.py            # 200,000 x 20 float32, 2 classes, 100 trees
    python benchmarks/forests.py --extra    # extremely randomized trees, which XGBoost does not have
    python benchmarks/forests.py --quick    # a few seconds: does it work

Each system is a process of its own, bound to the same cores; they take turns. All draw the rows of a tree with
replacement where they can, and look at the square root of the columns: LightGBM and XGBoost for each node, of 255 bins,
with leaves as small as a row. Of extremely randomized trees, each has all rows. The seconds are those of a fit of a
NumPy array. The accuracy is that of 50,000 other rows.
"""

from __future__ import annotations

import argparse
import importlib
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

SYSTEMS = ("xpulab", "scikit-learn", "scikit-learn-intelex", "lightgbm", "xgboost")
TREES = 100


def rows_of(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Twenty columns, of which four decide; a noise of half a unit."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 20), dtype=np.float32)
    score = X[:, 0] * X[:, 1] + X[:, 2] - 0.5 * X[:, 3] ** 2 + 0.5 * rng.standard_normal(n)
    return X, score > 0


def prepared(system: str, trees: int, extra: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What ends the system, and what makes a forest that was not fitted."""
    cores = len(os.sched_getaffinity(0))
    arguments: dict[str, Any] = {"n_estimators": trees, "random_state": 0, "n_jobs": cores}
    if system == "lightgbm":
        import lightgbm

        # Its forests need a share of the rows or of the columns.
        return (lambda: None), lambda: lightgbm.LGBMClassifier(
            boosting_type="rf", subsample=0.999 if extra else 0.632, subsample_freq=1, extra_trees=extra,
            feature_fraction_bynode=20**0.5 / 20, num_leaves=131_072, min_child_samples=1, min_child_weight=0,
            verbose=-1, **arguments,
        )  # fmt: skip
    if system == "xgboost":
        import xgboost

        if extra:
            raise RuntimeError("XGBoost has no extremely randomized trees")
        return (lambda: None), lambda: xgboost.XGBRFClassifier(
            max_depth=0, max_leaves=131_072, grow_policy="lossguide", tree_method="hist", min_child_weight=0,
            reg_lambda=0, subsample=0.632, colsample_bynode=20**0.5 / 20, **arguments,
        )  # fmt: skip
    name = "ExtraTreesClassifier" if extra else "RandomForestClassifier"
    package = {"xpulab": "xpulab", "scikit-learn": "sklearn", "scikit-learn-intelex": "sklearnex"}[system]
    kind = getattr(importlib.import_module(f"{package}.ensemble"), name)
    if system == "xpulab":
        import xpulab

        return xpulab.XPUCluster(cores, timeout=120).start().stop, lambda: kind(**arguments)
    return (lambda: None), lambda: kind(**arguments)


def work(system: str, folder: str) -> None:
    """Serve one system: each line on standard input is a fit, whose seconds go to standard output."""
    with np.load(f"{folder}/rows.npz") as rows:
        X, y, Q, q, trees, extra = (rows[name] for name in ("X", "y", "Q", "q", "trees", "extra"))
    close, forest = prepared(system, int(trees), bool(extra))
    forest().set_params(n_estimators=2).fit(X[:1000], y[:1000])
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        fitted = forest().fit(X, y)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        right = float(np.mean(fitted.predict(Q) == q))
        print(json.dumps({"seconds": seconds, "predict": time.perf_counter() - began, "right": right}), flush=True)
    close()


def main() -> None:
    """Measure, and print the table; the medians of the turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--extra", action="store_true", help="extremely randomized trees")
    parser.add_argument("--quick", action="store_true", help="few rows and trees, once")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    n, trees, repeats = (2_000, 10, 1) if arguments.quick else (200_000, TREES, arguments.repeats)
    print(f"{n:,} x 20 float32, {trees} trees: seconds of fit and of predict, accuracy of other rows")
    with tempfile.TemporaryDirectory() as folder:
        (X, y), (Q, q) = rows_of(n, 0), rows_of(50_000, 1)
        np.savez(f"{folder}/rows.npz", X=X, y=y, Q=Q, q=q, trees=trees, extra=arguments.extra)
        workers, turns = {}, {}
        for system in arguments.systems:
            try:
                workers[system] = Worker(__file__, system, folder, cores)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                print(f"{system} is not here: {error}", file=sys.stderr)
        try:
            for _ in range(repeats):
                for system, worker in workers.items():
                    turns.setdefault(system, []).append(worker.ask())
        finally:
            for worker in workers.values():
                worker.close()
    for system, every in turns.items():
        fit, predict, right = (np.median([turn[name] for turn in every]) for name in ("seconds", "predict", "right"))
        print(f"  {system:22} {fit:8.2f} {predict:8.2f} {right:9.4f}")


if __name__ == "__main__":
    main()
