"""Measures the explorer from the use of a control to the PNG, and the same with scikit-learn and NumPy.

Of the row at the pointer and of a lasso it measures the time to the answer; they need no other picture.

python benchmarks/explore.py -n 2 --rows 1e6 1e7
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin

import xpulab
from xpulab.explorer.picture import Picture, colour, encode
from xpulab.explorer.session import Explorer
from xpulab.report.rendering import table_text

K = 8
PARTS = ("trip", "transfer", "kernel", "communicate", "wait", "other", "colour", "PNG")


def groups(n: int) -> np.ndarray:
    """Rows of two features in K groups."""
    rng = np.random.default_rng(0)
    places = rng.normal(0, 4, (K, 2))
    return (places[rng.integers(0, K, n)] + rng.normal(size=(n, 2))).astype(np.float32)


def controls(explorer: Explorer) -> dict[str, Callable[[], None]]:
    """Uses of controls, by name; each call makes another change of this kind."""
    ks: Iterator[int] = cycle([K - 1, K + 1, K])
    features: Iterator[tuple[int, int]] = cycle([(1, 0), (0, 1)])
    places: Iterator[tuple[float, float]] = cycle([(0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 0.5)])
    n = explorer.rows.shape[0]
    points: Iterator[int] = cycle([n // 10, n // 2, n])
    return {
        "another k": lambda: setattr(explorer, "k", next(ks)),
        "first iteration": explorer.step,
        "next iteration": explorer.step,
        "other features": lambda: setattr(explorer, "features", next(features)),
        "a centre is dragged": lambda: explorer.move_center(0, *next(places)),
        "other points": lambda: setattr(explorer, "points", next(points)),
    }


def questions(explorer: Explorer) -> dict[str, Callable[[], object]]:
    """What is asked about the rows of a picture, by name, without another picture; each call asks at another place."""
    low, high = np.array(explorer.picture().low), np.array(explorer.picture().high)
    places: Iterator[np.ndarray] = cycle(low + (high - low) * np.random.default_rng(1).uniform(0.2, 0.8, (16, 2)))
    angles = np.linspace(0, 2 * np.pi, 100, endpoint=False)  # as many corners as a lasso drawn by hand
    circle = np.column_stack([np.cos(angles), np.sin(angles)]) * (high - low) / 5
    return {
        "the row at the pointer": lambda: explorer.row_at(*next(places)),
        "rows inside of a lasso": lambda: explorer.select(circle + next(places)),
    }


def seconds_of(explorer: Explorer, change: Callable[[], None]) -> dict[str, float]:
    """Seconds from a change to its picture: the total, and each part."""
    started = time.perf_counter()
    change()
    answered = time.perf_counter()
    picture = explorer.picture()
    pixels = colour(picture.counts, picture.hues)
    coloured = time.perf_counter()
    encode(pixels)
    ended = time.perf_counter()
    inside = explorer.seconds
    known = {part: inside[part] for part in ("transfer", "kernel", "communicate", "wait")}
    return {
        "all": ended - started,
        "trip": answered - started - inside["task"],
        **known,
        "other": inside["task"] - sum(known.values()),
        "colour": coloured - answered,
        "PNG": ended - coloured,
    }


def by_scikit_learn(X: np.ndarray, explorer: Explorer) -> float:
    """Seconds for the picture of another k in one process. Up to near-ties it is the explorer's picture."""
    explorer.points, explorer.k = len(X), K
    picture = explorer.picture()
    lines, columns = explorer.shape
    axes = zip(explorer.features, picture.low, picture.high, (columns, lines), strict=True)
    started = time.perf_counter()
    kmeans_plusplus(X, K, random_state=explorer.random_state)
    labels = pairwise_distances_argmin(X, explorer.centers)  # may differ: rounding decides ties
    x, y = (np.floor((X[:, f] - low) * (n / (high - low))).astype(np.int64) for f, low, high, n in axes)
    inside = (x >= 0) & (x < columns) & (y >= 0) & (y < lines)
    cells = ((labels * lines + y) * columns + x)[inside]
    counts = np.bincount(cells, minlength=K * lines * columns).reshape(K, lines, columns)
    png = Picture(counts, picture.names, picture.low, picture.high).png
    seconds = time.perf_counter() - started
    differ = np.abs(counts - picture.counts).sum() / 2
    assert differ <= 1e-3 * len(X), f"{differ:.0f} rows are on another pixel, or of another cluster"
    assert len(png) > 0
    return seconds


def measure(explorer: Explorer, X: np.ndarray, repeats: int) -> None:
    """Print the tables for one number of rows. The controls take turns."""
    changes = controls(explorer)
    for change in changes.values():  # compile the kernels
        seconds_of(explorer, change)
    asked = questions(explorer)
    for ask in asked.values():
        ask()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*changes, *asked)}
    plain = []
    for turn in range(repeats):
        for name, change in changes.items():
            found[name].append(seconds_of(explorer, change))
        for name, ask in asked.items():
            started = time.perf_counter()
            ask()
            found[name].append({"all": time.perf_counter() - started})
        if turn % 8 == 0:
            plain.append(by_scikit_learn(X, explorer))
    rows: list[list[Any]] = []
    for name, seconds in found.items():
        every = [1e3 * each["all"] for each in seconds]
        known = PARTS if name in changes else ()
        parts = [f"{1e3 * np.median([each[part] for each in seconds]):.1f}" if part in known else "–" for part in PARTS]
        rows.append([name, f"{np.median(every):.0f}", f"{np.quantile(every, 0.95):.0f}", *parts])
    print(table_text((f"{len(X):,} x 2, ms", "median", "95 %", *PARTS), rows, "l" + "r" * (2 + len(PARTS)), indent=""))
    ratio = np.median(plain) / np.median([each["all"] for each in found["another k"]])
    print(
        f"another k by scikit-learn and NumPy: {1e3 * np.median(plain):.0f} ms, {ratio:.1f} times as long\n", flush=True
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
    with xpulab.XPUCluster(arguments.n, timeout=120) as cluster:
        for n in arguments.rows:
            X = groups(int(n))
            measure(Explorer(cluster.scatter(X), K), X, arguments.repeats)


if __name__ == "__main__":
    main()
