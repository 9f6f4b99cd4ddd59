"""Measures from which size on the engines are faster than scikit-learn, for each estimator that accel knows.

    python benchmarks/accel.py                     # prints the table
    python benchmarks/accel.py --write             # and writes it into the package
    python benchmarks/accel.py --only KMeans Ridge --write
    python benchmarks/accel.py --repeated          # 100 k-means fits of a few hundred rows, with accel on and off
    python benchmarks/accel.py --quick             # a test of a few seconds

The estimators have their default arguments. The rows have 20 columns in float64, and come as a NumPy array.
scikit-learn and the engines take turns, size by size; the figures are the fastest of several calls. The size in the
table is the smallest one from which on the engines were faster at all larger sizes that were measured, too. The
measurement ends where scikit-learn takes longer than the limit. "call" is the first of predict, transform, kneighbors
and mahalanobis that the estimator has, with a model that was fitted to 5,000 rows.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.cluster import KMeans
from sklearn.utils import get_tags
from threadpoolctl import threadpool_limits

import xpulab
from xpulab.acceleration._registry import pairs
from xpulab.acceleration._sizes import FILE

COLUMNS = 20
ROWS = [250, 1_000, 4_000, 16_000, 64_000, 256_000, 1_024_000]
METHODS = ("predict", "transform", "kneighbors", "mahalanobis")
#: Arguments in place of defaults with which there is nothing to compute.
ARGUMENTS: dict[str, dict[str, Any]] = {"DBSCAN": {"eps": 3.0}, "PCA": {"n_components": 5}}


def data_of(estimator: Any, n: int) -> tuple[Any, ...]:
    """Rows in overlapping groups: whole numbers for encoders and counts; classifiers and regressions get a target."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 8, size=n)
    X = rng.normal(size=(n, COLUMNS)) + rng.normal(scale=2, size=(8, COLUMNS))[groups]
    if get_tags(estimator).input_tags.positive_only:
        X = np.abs(X).round()
    if is_classifier(estimator):
        return X, groups % 3
    if hasattr(estimator, "categories"):
        X = X.round().clip(-3, 3)
        return (X, groups.astype(float)) if get_tags(estimator).target_tags.required else (X,)
    line = X[:, 0] - X[:, 1] + rng.normal(size=n)
    if get_tags(estimator).target_tags.positive_only:
        line = np.exp(line / 8)
    return (X, line) if is_regressor(estimator) else (X,)


def seconds(call: Callable[[], Any]) -> float:
    """The time of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def compared(
    one: Callable[[int], Callable[[], Any]],
    other: Callable[[int], Callable[[], Any]],
    rows: list[int],
    limit: float,
    repeats: int,
) -> list[tuple[int, float, float]]:
    """Rows, and the shortest seconds of two systems, which take turns, until the second takes longer than `limit`."""
    found = []
    for n in rows:
        calls = one(n), other(n)
        calls[0]()  # the first call may compile, or send what stays on the engines
        times = [[seconds(call) for call in calls] for _ in range(repeats)]
        # Other programs only make a call slower.
        found.append((n, min(t[0] for t in times), min(t[1] for t in times)))
        if found[-1][2] > limit:
            break
    return found


def least(measured: list[tuple[int, float, float]]) -> int | None:
    """The number of values from which on the first system was always faster; None if it was slower at the end."""
    size = None
    for n, ours, theirs in reversed(measured):
        if ours >= theirs:
            break
        size = n * COLUMNS
    return size


def sizes_of(theirs: type, ours: type, rows: list[int], limit: float, repeats: int) -> dict[str, Any]:
    """The sizes of one estimator, and the figures from which they follow."""
    arguments = ARGUMENTS.get(theirs.__name__, {})

    def fit(kind: type) -> Callable[[int], Callable[[], Any]]:
        def prepared(n: int) -> Callable[[], Any]:
            data = data_of(kind(**arguments), n)
            if hasattr(kind, "kneighbors"):  # its fit computes nothing by itself
                return lambda: kind(**arguments).fit(*data).kneighbors(data[0])
            return lambda: kind(**arguments).fit(*data)

        return prepared

    fits = compared(fit(ours), fit(theirs), rows, limit, repeats)
    found: dict[str, Any] = {"fit": least(fits), "call": None, "fits": fits}
    method = next((name for name in METHODS if hasattr(ours, name)), None)
    if method is not None:
        some = ours(**arguments).fit(*data_of(ours(**arguments), min(5_000, rows[-1])))
        plain = some.to_sklearn()

        def call(model: Any) -> Callable[[int], Callable[[], Any]]:
            return lambda n: functools.partial(getattr(model, method), data_of(model, n)[0])

        calls = compared(call(some), call(plain), rows, limit, repeats)
        found |= {"call": least(calls), "calls": calls, "method": method}
    return found


def shown(name: str, found: dict[str, Any]) -> str:
    """A row of the table in benchmarks/README.md."""

    def ratio(measured: list[tuple[int, float, float]] | None) -> str:
        return "" if not measured else f"{measured[-1][2] / measured[-1][1]:.1f} at {measured[-1][0]:,} rows"

    cells = ["never" if found[kind] is None else f"{found[kind]:,}" for kind in ("fit", "call")]
    return f"| {name} | {cells[0]} | {ratio(found['fits'])} | {cells[1]} | {ratio(found.get('calls'))} |"


def write(sizes: dict[str, Any]) -> None:
    """Write sizes into the package's table; those of other estimators stay."""
    table = json.loads(FILE.read_text())
    table["machine"] = f"{os.cpu_count()} cores of {platform.processor() or platform.machine()}, {COLUMNS} columns"
    table["sizes"] |= {name: {kind: each[kind] for kind in ("fit", "call")} for name, each in sizes.items()}
    table["sizes"] = dict(sorted(table["sizes"].items()))
    FILE.write_text(json.dumps(table, indent=2) + "\n")


def repeated(rounds: int, n_fits: int) -> None:
    """Many k-means fits of 900 rows, with accel on and off in turns, on one thread."""
    X = data_of(KMeans(), 900)[0][:, :2].copy()

    def fits() -> None:
        for i in range(n_fits):
            KMeans(9, init="random", n_init=1, random_state=i).fit(X)

    fits()
    on, off = [], []
    for _ in range(rounds):
        with xpulab.accel():
            on.append(seconds(fits))
        off.append(seconds(fits))
    ratio = median(a / b for a, b in zip(on, off, strict=True))
    print(f"{n_fits} fits of 900 x 2: {median(on):.3f} s with accel, {median(off):.3f} s without, {ratio:.2f} times")


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1, help="number of engines")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="estimators to measure; all by default")
    parser.add_argument("--limit", type=float, default=0.5, help="seconds of scikit-learn after which sizes end")
    parser.add_argument("--repeats", type=int, default=7, help="calls of each system and size")
    parser.add_argument("--write", action="store_true", help="write the sizes into the package")
    parser.add_argument("--repeated", action="store_true", help="compare 100 fits of a few hundred rows instead")
    parser.add_argument("--quick", action="store_true", help="small sizes, one call each")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, repeats = (ROWS[:2], 1) if arguments.quick else (ROWS, arguments.repeats)
    with xpulab.XPUCluster(arguments.n, display="none"):
        if arguments.repeated:
            with threadpool_limits(1):
                repeated(*((3, 10) if arguments.quick else (15, 100)))
            return
        print("| estimator | fit from | times faster | call from | times faster |\n| --- | ---: | --- | ---: | --- |")
        for theirs, ours in pairs().items():
            if arguments.only and theirs.__name__ not in arguments.only:
                continue
            found = sizes_of(theirs, ours, rows, arguments.limit, repeats)
            print(shown(theirs.__name__, found), flush=True)
            if arguments.write:
                write({theirs.__name__: found})


if __name__ == "__main__":
    main()
