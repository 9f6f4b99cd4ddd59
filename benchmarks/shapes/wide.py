"""Linear models and PCA of more columns than rows, against scikit-learn's: the same rows and parameters, in turns.

    python benchmarks/shapes/wide.py                       # 60 x 10,000 and 200 x 50,000
    python benchmarks/shapes/wide.py --shapes 60x2000 --dtype float32
    python benchmarks/shapes/wide.py --quick               # a test of a few seconds

Both use all cores of this process. xpulab is called as in a notebook: the cluster is already running, `fit` gets a
NumPy array, and the time includes the transfer. scikit-learn's "newton-cholesky" makes a matrix of columns x columns,
and is left out where that takes more than 256 MiB.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib import import_module
from typing import Any

import numpy as np

import xpulab
from xpulab.report.rendering import table_text

#: Name -> module, class, and arguments.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Ridge": ("linear_model", "Ridge", {}),
    "RidgeCV": ("linear_model", "RidgeCV", {}),
    "LinearRegression": ("linear_model", "LinearRegression", {}),
    "PCA(10)": ("decomposition", "PCA", {"n_components": 10, "random_state": 0}),
    "PCA(), full": ("decomposition", "PCA", {"svd_solver": "full"}),
    "newton-cholesky": ("linear_model", "LogisticRegression", {"solver": "newton-cholesky"}),
}
MOST = 1 << 28  # bytes of scikit-learn's matrix of columns x columns; with 10,000 columns a fit takes minutes


def seconds_of(home: str, case: str, X: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the seconds of a fit, and its coefficients or components."""
    module, name, arguments = CASES[case]
    model = getattr(import_module(f"{home}.{module}"), name)(**arguments)
    given = (X,) if module == "decomposition" else (X, y > 0) if name == "LogisticRegression" else (X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        model.fit(*given)
        seconds = time.perf_counter() - began
    found = model.components_[:10] if module == "decomposition" else model.coef_
    return seconds, np.asarray(found, np.float64)


def compare(shape: str, dtype: str, repeats: int) -> str:
    """Return a table with the medians of both systems, which take turns, and the difference of their results."""
    n, d = map(int, shape.split("x"))
    random = np.random.default_rng(0)
    X = random.normal(size=(n, d)).astype(dtype)
    y = (X[:, :20].sum(axis=1) + random.normal(size=n)).astype(dtype)
    lines = []
    for case in CASES:
        alone = case == "newton-cholesky" and d * d * 8 > MOST
        homes = ["xpulab"] if alone else ["xpulab", "sklearn"]
        times: dict[str, list[float]] = {home: [] for home in homes}
        found = {}
        for turn in range(repeats + 1):
            for home in homes:
                for _ in range(1 if case == "newton-cholesky" else 2):  # threads of the other system may still wait
                    took, found[home] = seconds_of(home, case, X, y)
                if turn:
                    times[home].append(took)
        medians = [1e3 * float(np.median(times[home])) for home in homes]
        if alone:
            lines.append((case, f"{medians[0]:.1f}", "", "", ""))
            continue
        ours, theirs = found["xpulab"], found["sklearn"]
        apart = np.abs(ours - theirs).max() / np.abs(theirs).max()
        lines.append((case, *(f"{each:.1f}" for each in medians), f"{medians[1] / medians[0]:.1f}", f"{apart:.0e}"))
    head = ("ms", "xpulab", "scikit-learn", "x scikit-learn", "difference")
    return f"{n:,} x {d:,} {dtype}\n{table_text(head, lines, 'lrrrr', indent='')}"


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=["60x10000", "200x50000"], help="rows x columns")
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few columns, once")
    options = parser.parse_args()
    with xpulab.XPUCluster(len(os.sched_getaffinity(0)), timeout=120):
        for shape in ["20x300"] if options.quick else options.shapes:
            print(compare(shape, options.dtype, 1 if options.quick else options.repeats), "\n", flush=True)


if __name__ == "__main__":
    main()
