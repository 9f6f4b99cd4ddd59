"""Compares the estimators of one or a few passes over the rows with scikit-learn and scikit-learn-intelex.

    python benchmarks/estimators.py                           # 1,000,000 x 50 and 200,000 x 300
    python benchmarks/estimators.py --only PCA LinearRegression
    python benchmarks/estimators.py --only LogisticRegression --shapes 500000x50
    python benchmarks/estimators.py --quick                   # a test of a few seconds

Each system runs in its own process, bound to the same cores. The systems take turns, estimator by estimator. xpulab is
called with a NumPy array, and with rows that are on its engines. The column "limit" has the time in which the cores can
read the rows once, or do the multiply-adds of the textbook's algorithm, whichever is longer. For models that iterate it
is this time for each iteration of xpulab's fit.
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
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SYSTEMS = ("xpulab", "xpulab, rows there", "scikit-learn", "scikit-learn-intelex")
#: Name -> module, class, arguments, and number of multiply-adds for n rows with d features.
CASES: dict[str, tuple[str, str, dict[str, Any], Callable[[int, int], float]]] = {
    "StandardScaler": ("preprocessing", "StandardScaler", {}, lambda n, d: 2 * n * d),
    "MinMaxScaler": ("preprocessing", "MinMaxScaler", {}, lambda n, d: 0),
    "RobustScaler": ("preprocessing", "RobustScaler", {}, lambda n, d: 0),
    "EmpiricalCovariance": ("covariance", "EmpiricalCovariance", {}, lambda n, d: n * d * d / 2),
    "PCA(10)": ("decomposition", "PCA", {"n_components": 10}, lambda n, d: n * d * d / 2),
    "PCA(10), full": ("decomposition", "PCA", {"n_components": 10, "svd_solver": "full"}, lambda n, d: n * d * d),
    "TruncatedSVD(10)": (
        "decomposition", "TruncatedSVD", {"n_components": 10, "random_state": 0}, lambda n, d: 12 * n * d * 20,
    ),
    "LinearRegression": ("linear_model", "LinearRegression", {}, lambda n, d: n * d * d / 2),
    "Ridge": ("linear_model", "Ridge", {}, lambda n, d: n * d * d / 2),
    "Lasso(0.1)": ("linear_model", "Lasso", {"alpha": 0.1}, lambda n, d: n * d * d / 2),
    "LogisticRegression, 2 classes": ("linear_model", "LogisticRegression", {}, lambda n, d: 2 * n * d),
    "LogisticRegression, 5 classes": ("linear_model", "LogisticRegression", {}, lambda n, d: 10 * n * d),
    "LogisticRegression, l1": (
        "linear_model", "LogisticRegression", {"solver": "saga", "l1_ratio": 1.0}, lambda n, d: n * d * d / 2,
    ),
    "RidgeClassifier": ("linear_model", "RidgeClassifier", {}, lambda n, d: n * d * d / 2),
    "RidgeClassifierCV": ("linear_model", "RidgeClassifierCV", {}, lambda n, d: n * d * d),
    "LinearDiscriminantAnalysis": (
        "discriminant_analysis", "LinearDiscriminantAnalysis", {}, lambda n, d: n * d * d / 2,
    ),
    "PoissonRegressor": ("linear_model", "PoissonRegressor", {"alpha": 1e-4}, lambda n, d: 2 * n * d),
    "GammaRegressor": ("linear_model", "GammaRegressor", {"alpha": 1e-4}, lambda n, d: 2 * n * d),
    "TweedieRegressor": ("linear_model", "TweedieRegressor", {"power": 1.5, "alpha": 1e-4}, lambda n, d: 2 * n * d),
    "SGDClassifier": ("linear_model", "SGDClassifier", {"random_state": 0}, lambda n, d: 2 * n * d),
    "SGDClassifier, log_loss": (
        "linear_model", "SGDClassifier", {"loss": "log_loss", "random_state": 0}, lambda n, d: 2 * n * d,
    ),
    "HuberRegressor": ("linear_model", "HuberRegressor", {}, lambda n, d: 2 * n * d),
    "LinearSVC": ("svm", "LinearSVC", {}, lambda n, d: 2 * n * d),
    "LinearSVR": ("svm", "LinearSVR", {}, lambda n, d: 2 * n * d),
}  # fmt: skip
#: Classifiers -> number of classes; regressors of positive numbers; and others of which scikit-learn's take long. They
#: are measured only if they are asked for.
CLASSES = {
    "LogisticRegression, 2 classes": 2, "LogisticRegression, 5 classes": 5, "LogisticRegression, l1": 2,
    "RidgeClassifier": 5, "RidgeClassifierCV": 5, "LinearDiscriminantAnalysis": 5,
    "SGDClassifier": 2, "SGDClassifier, log_loss": 2, "LinearSVC": 2,
}  # fmt: skip
POSITIVE = ("PoissonRegressor", "GammaRegressor", "TweedieRegressor")
ASKED_FOR = (*CLASSES, *POSITIVE, "HuberRegressor", "LinearSVR")


def rows_of(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated columns with different means, and a target that depends on some of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d), dtype=np.float32)
    X[:, 1:] += X[:, :-1] / 2
    X += np.linspace(-3, 3, d, dtype=np.float32)
    weights = np.where(np.arange(d) % 5 == 0, 1, 0).astype(np.float32)
    return X, X @ weights + rng.standard_normal(n, dtype=np.float32)


def labels_of(X: np.ndarray, n_classes: int) -> np.ndarray:
    """Classes that depend on all columns, and overlap."""
    rng = np.random.default_rng(1)
    scores = X @ rng.standard_normal((X.shape[1], n_classes), dtype=np.float32) / 4
    return np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)


def amounts_of(X: np.ndarray) -> np.ndarray:
    """Positive numbers whose mean depends on all columns."""
    rng = np.random.default_rng(2)
    scores = X @ rng.standard_normal(X.shape[1], dtype=np.float32) / X.shape[1] / 2
    return (np.exp(scores) * rng.gamma(2, 0.5, len(X))).astype(np.float32) + np.float32(1e-3)


def work(system: str, folder: str) -> None:
    """Run one system: for each name on standard input, fit this estimator once, and print seconds and iterations."""
    warnings.simplefilter("ignore")
    X, y = np.load(f"{folder}/X.npy"), np.load(f"{folder}/y.npy")
    given: Any = X
    home, close = "sklearn", lambda: None
    if system == "scikit-learn-intelex":
        from sklearnex import patch_sklearn

        patch_sklearn(verbose=False)
    elif system != "scikit-learn":
        import xpulab

        cluster = xpulab.XPUCluster(len(os.sched_getaffinity(0)), timeout=120).start()
        home, close = "xpulab", cluster.stop
        if system.endswith("there"):
            given = cluster.scatter(X)
    print(json.dumps({"ready": True}), flush=True)
    labels, amounts = cache(lambda n_classes: labels_of(X, n_classes)), cache(lambda: amounts_of(X))
    for line in sys.stdin:
        case = line.strip()
        module, name, arguments, _ = CASES[case]
        estimator = getattr(importlib.import_module(f"{home}.{module}"), name)(**arguments)
        target = labels(CLASSES[case]) if case in CLASSES else amounts() if case in POSITIVE else y
        target = target if module in ("linear_model", "svm", "discriminant_analysis") else None
        began = time.perf_counter()
        estimator.fit(given, target)
        seconds = time.perf_counter() - began
        n_iter = getattr(estimator, "n_iter_", None) if case in ASKED_FOR else None
        print(json.dumps({"seconds": seconds, "passes": 1 if n_iter is None else int(np.ravel(n_iter)[0])}), flush=True)
    close()


class Worker:
    """The process of one system: a benchmark's script, which answers each line with a line of JSON."""

    def __init__(self, script: str, system: str, folder: str, cores: list[int]) -> None:
        from kmeans import python_for

        environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        environment |= {f"{name}_NUM_THREADS": str(len(cores)) for name in ("OMP", "MKL", "OPENBLAS")}
        self._process = subprocess.Popen(
            [python_for(system), script, "--worker", system, folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the process ended; its last output is above")

    def ask(self, line: str = "") -> dict[str, Any]:
        """The answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process and its child processes."""
        self._process.communicate(timeout=60)


def measure(
    n: int, d: int, names: list[str], systems: list[str], cores: list[int], repeats: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, int]]:
    """Seconds of each system for each estimator, in turns, without the first turn; and the first system's passes.

    In a turn a system fits twice, and the second fit counts: in the first one, threads of the system before may still
    wait for work and hold the cores, and freed memory may be that of the machine again.
    """
    seconds: dict[str, dict[str, list[float]]] = {}
    passes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        X, y = rows_of(n, d)
        np.save(f"{folder}/X.npy", X)
        np.save(f"{folder}/y.npy", y)
        del X, y
        workers = {}
        for system in systems:
            try:
                workers[system] = Worker(__file__, system, folder, cores)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                print(f"{system} cannot be used: {error}", file=sys.stderr)
        try:
            for case in names:
                times: dict[str, list[float]] = {system: [] for system in workers}
                for _ in range(repeats + 1):
                    for system, worker in workers.items():
                        worker.ask(case)
                        answer = worker.ask(case)
                        times[system].append(answer["seconds"])
                        passes.setdefault(case, answer["passes"])
                seconds[case] = {system: every[1:] for system, every in times.items()}
        finally:
            for worker in workers.values():
                worker.close()
    return seconds, passes


def limits(n: int, d: int, cores: list[int]) -> tuple[float, float]:
    """Seconds to read the rows once on these cores, and GFLOP/s of float32 multiply-adds."""
    from kmeans import limit

    import xpulab

    with xpulab.XPUCluster(len(cores), timeout=120) as cluster:
        reading = max(cluster.run(_read, n * d // len(cores)))
    return reading, limit(cores)["float32"]


def _read(task: Any, size: int) -> float:
    import time

    import numpy as np

    numbers = np.ones(size, np.float32)
    best = np.inf
    for _ in range(5):
        task.comm.allgather(0)
        began = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - began)
    return best


def table(
    n: int,
    d: int,
    seconds: dict[str, dict[str, list[float]]],
    passes: dict[str, int],
    reading: float,
    gflops: float,
) -> str:
    """A line for each estimator, and a line with the geometric means of the ratios to the fastest other system."""
    from xpulab.report.rendering import table_text

    lines, ratios = [], []
    for case, times in seconds.items():
        medians = {system: float(np.median(every)) for system, every in times.items()}
        peers = {system: value for system, value in medians.items() if not system.startswith("xpulab")}
        fastest = min(peers, key=lambda system: peers[system])
        bound = passes[case] * max(reading, 2 * CASES[case][3](n, d) / gflops / 1e9)
        ours = [medians[system] for system in SYSTEMS[:2]]
        ratios.append([peers[fastest] / value for value in ours])
        shown = [f"{1e3 * medians[system]:.1f}" if system in medians else "" for system in SYSTEMS]
        lines.append((case, *shown, f"{1e3 * bound:.1f}", fastest, *(f"{ratio:.1f}" for ratio in ratios[-1])))
    means = np.exp(np.log(ratios).mean(axis=0))
    lines.append(("geometric mean", "", "", "", "", "", "", *(f"{mean:.1f}" for mean in means)))
    head = ("ms", *SYSTEMS, "limit", "fastest peer", "x, NumPy in", "x, rows there")
    return f"{n:,} x {d} float32\n{table_text(head, lines, 'lrrrrrlrr', indent='')}"


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    once = [case for case in CASES if case not in ASKED_FOR]
    parser.add_argument("--only", nargs="*", default=once, help="estimators, by the beginning of their names")
    parser.add_argument("--shapes", nargs="*", default=["1000000x50", "200000x300"], help="rows x columns")
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--quick", action="store_true", help="few rows, once")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
        return
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    names = [case for case in CASES if any(case.startswith(word) for word in arguments.only)]
    for shape in ["2000x20"] if arguments.quick else arguments.shapes:
        n, d = map(int, shape.split("x"))
        found = measure(n, d, names, arguments.systems, cores, 1 if arguments.quick else arguments.repeats)
        print(table(n, d, *found, *limits(n, d, cores)), "\n", flush=True)


if __name__ == "__main__":
    main()
