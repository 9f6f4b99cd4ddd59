"""Measures searches of many fits of few rows, beside scikit-learn with as many processes as engines, in turns.

python benchmarks/scaling/searches.py -n 2 --rows 20000 --columns 20 --candidates 60 --turns 3
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier as ReferenceForest
from sklearn.linear_model import LogisticRegression as ReferenceRegression
from sklearn.model_selection import GridSearchCV

import xpulab
from xpulab.ensemble import RandomForestClassifier
from xpulab.linear_model import LogisticRegression
from xpulab.report.rendering import format_seconds, table_text


def cases(n: int) -> list[tuple[str, Any, Any, dict[str, Any]]]:
    """Return name, estimators of xpulab and of scikit-learn, and a grid of `n` candidates, of each search."""
    depths = np.arange(2, 2 + max(1, n // 4)).tolist()
    forest = {"n_estimators": 20, "random_state": 0}
    grid = {"max_depth": depths, "max_features": [2, 4, 8, 16]}
    return [
        (
            "LogisticRegression",
            LogisticRegression(),
            ReferenceRegression(),
            {"C": np.logspace(-3, 3, n).tolist()},
        ),
        ("RandomForestClassifier, 20 trees", RandomForestClassifier(**forest), ReferenceForest(**forest), grid),
    ]


def main() -> None:
    """Measure, and print a table of the least seconds of each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines, and processes of scikit-learn")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
    X, y = make_classification(arguments.rows, arguments.columns, n_informative=8, random_state=0)

    def searched(estimator: Any, grid: dict[str, Any], n_jobs: int | None = None) -> tuple[float, float]:
        began = time.perf_counter()
        search = GridSearchCV(estimator, grid, cv=arguments.folds, n_jobs=n_jobs, refit=False).fit(X, y)
        return time.perf_counter() - began, float(search.best_score_)

    def side_by_side(estimator: Any, grid: dict[str, Any]) -> tuple[float, float]:
        with joblib.parallel_config("xpulab"):
            return searched(estimator, grid)

    table = []
    with xpulab.XPUCluster(arguments.n, timeout=120, display="none"):
        for name, ours, theirs, grid in cases(arguments.candidates):
            systems: dict[str, Callable[[], tuple[float, float]]] = {
                "side by side": lambda ours=ours, grid=grid: side_by_side(ours, grid),
                "one by one": lambda ours=ours, grid=grid: searched(ours, grid),
                "scikit-learn": lambda theirs=theirs, grid=grid: searched(theirs, grid, arguments.n),
            }
            few = {parameter: values[:1] for parameter, values in grid.items()}
            side_by_side(ours, few), searched(ours, few), searched(theirs, few, arguments.n)  # imports, and kernels
            found: dict[str, list[tuple[float, float]]] = {system: [] for system in systems}
            for _ in range(arguments.turns):
                for system, run in systems.items():
                    found[system].append(run())
            least = {system: min(seconds for seconds, _ in each) for system, each in found.items()}
            scores = {system: each[0][1] for system, each in found.items()}
            ratio = least["scikit-learn"] / least["side by side"]
            table.append(
                [
                    name,
                    *(format_seconds(seconds) for seconds in least.values()),
                    f"{ratio:.2f}",
                    *(f"{score:.4f}" for score in (scores["side by side"], scores["scikit-learn"])),
                ]
            )
    get_reusable_executor().shutdown()  # the processes of scikit-learn
    fits = arguments.candidates * arguments.folds
    print(f"{fits} fits of {arguments.rows:,} x {arguments.columns}, {arguments.n} engines, {arguments.n} processes")
    header = ("estimator", "side by side", "one by one", "scikit-learn", "ratio", "best score", "scikit-learn's")
    print(table_text(header, table, "lrrrrrr"))


if __name__ == "__main__":
    main()
