"""Histogram gradient boosting against scikit-learn, LightGBM and XGBoost.

    python benchmarks/boosting.py            # 1,000,000 x 28 float32, 2 classes, 100 trees of 31 leaves
    python benchmarks/boosting.py --categories   # eight of the columns have 3 to 200 categories
    python benchmarks/boosting.py --quick    # a few seconds: does it work

Each system is a process of its own, bound to the same cores; they take turns. All have 255 bins, a learning rate of
0.1, at least 20 rows in a leaf, and no early stopping. The seconds are those of a fit of a NumPy array; the log loss is
that of 200,000 other rows.
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

SYSTEMS = ("xpulab", "scikit-learn", "lightgbm", "xgboost")
TREES = 100
CARDINALITIES = (3, 5, 8, 12, 20, 50, 100, 200)  # of the columns of categories, if there are any


def rows_of(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Twenty-eight columns, as HIGGS has them: 21 measurements, and 7 functions of these."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 28), dtype=np.float32)
    for f in range(7):
        X[:, 21 + f] = np.abs(X[:, f] * X[:, f + 7]) + 0.5 * np.abs(X[:, 21 + f])
    score = X[:, 21] - X[:, 22] + X[:, 0] * X[:, 3] + 0.7 * X[:, 5] - 0.5 * X[:, 9] ** 2 + 0.5
    return X, score + rng.logistic(size=n) > 0


def with_categories(X: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same rows, of which the first columns have numbers of categories, as many as `CARDINALITIES` says."""
    rng, effects = np.random.default_rng(seed + 1000), np.random.default_rng(0)
    score = X[:, 21] - X[:, 22] + X[:, 10] * X[:, 13]
    for f, count in enumerate(CARDINALITIES):
        X[:, f] = np.floor(count * rng.random(len(X)) ** 2)  # some are frequent, and others rare
        effect = effects.normal(size=count)
        score += effect[X[:, f].astype(int)] * (X[:, 20] if f % 2 else 1)
    return X, score + rng.logistic(size=len(X)) > 0


def prepared(system: str, trees: int, categories: list[int]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What ends the system, and what makes an estimator that was not fitted."""
    cores = len(os.sched_getaffinity(0))
    if system == "lightgbm":
        import lightgbm

        class WithCategories(lightgbm.LGBMClassifier):  # type: ignore[misc]  # LightGBM takes them with the rows
            def fit(self, X: np.ndarray, y: np.ndarray) -> Any:
                return super().fit(X, y, categorical_feature=categories or "auto")

        return (lambda: None), lambda: WithCategories(
            n_estimators=trees, num_leaves=31, min_child_samples=20, max_bin=255, n_jobs=cores, verbose=-1
        )
    if system == "xgboost":
        import xgboost

        return (lambda: None), lambda: xgboost.XGBClassifier(
            n_estimators=trees, max_leaves=31, max_depth=0, grow_policy="lossguide", tree_method="hist", max_bin=255,
            learning_rate=0.1, reg_lambda=0, n_jobs=cores, enable_categorical=bool(categories),
            feature_types=["c" if f in categories else "q" for f in range(28)] if categories else None,
        )  # fmt: skip
    arguments: dict[str, Any] = {"max_iter": trees, "early_stopping": False, "categorical_features": categories}
    if system == "xpulab":
        import xpulab
        from xpulab.ensemble import HistGradientBoostingClassifier

        close = xpulab.XPUCluster(cores, timeout=120).start().stop
        return close, lambda: HistGradientBoostingClassifier(**arguments)
    from sklearn.ensemble import HistGradientBoostingClassifier as Theirs

    return (lambda: None), lambda: Theirs(**arguments)


def work(system: str, folder: str) -> None:
    """Serve one system: each line on standard input is a fit, whose seconds go to standard output."""
    from sklearn.metrics import log_loss

    with np.load(f"{folder}/rows.npz") as rows:
        X, y, Q, q, trees, categories = (rows[name] for name in ("X", "y", "Q", "q", "trees", "categories"))
    close, estimator = prepared(system, int(trees), categories.tolist())
    estimator().fit(X[:1000], y[:1000])
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        fitted = estimator().fit(X, y)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        shares = fitted.predict_proba(Q)
        predict = time.perf_counter() - began
        found = {"seconds": seconds, "predict": predict, "loss": float(log_loss(q, shares))}
        print(json.dumps(found), flush=True)
    close()


def main() -> None:
    """Measure, and print the table; the medians of the turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--categories", action="store_true", help="eight of the columns are numbers of categories")
    parser.add_argument("--quick", action="store_true", help="few rows and trees, once")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    n, trees, repeats = (2_000, 5, 1) if arguments.quick else (arguments.rows, TREES, arguments.repeats)
    print(f"{n:,} x 28 float32, {trees} trees: seconds of fit and of predict, log loss of other rows")
    with tempfile.TemporaryDirectory() as folder:
        (X, y), (Q, q) = rows_of(n, 0), rows_of(2_000 if arguments.quick else 200_000, 1)
        if arguments.categories:
            (X, y), (Q, q) = with_categories(X, 0), with_categories(Q, 1)
        categories = np.arange(len(CARDINALITIES) if arguments.categories else 0)
        np.savez(f"{folder}/rows.npz", X=X, y=y, Q=Q, q=q, trees=trees, categories=categories)
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
        fit, predict, loss = (np.median([turn[name] for turn in every]) for name in ("seconds", "predict", "loss"))
        print(f"  {system:22} {fit:8.2f} {predict:8.2f} {loss:10.5f}")


if __name__ == "__main__":
    main()
