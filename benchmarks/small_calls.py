"""Measures calls of few rows on running engines, beside scikit-learn in the same process, in turns.

python benchmarks/small_calls.py -n 2 --repeats 200
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from sklearn.cluster import KMeans as ReferenceKMeans
from sklearn.linear_model import Ridge as ReferenceRidge
from sklearn.preprocessing import StandardScaler as ReferenceScaler
from traitlets.config import Config

import xpulab
from xpulab.cluster import KMeans
from xpulab.linear_model import Ridge
from xpulab.magics import XPUMagics
from xpulab.preprocessing import StandardScaler
from xpulab.report.rendering import table_text

Call = Callable[[], Any]


def medians(calls: list[Call | None], repeats: int) -> list[float | None]:
    """Return the median seconds of each call; all of them are called in turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 5):
        for call, taken in zip(calls, seconds, strict=True):
            if call is None:
                continue
            started = time.perf_counter()
            call()
            if turn >= 5:  # the first ones compile, import and fill caches
                taken.append(time.perf_counter() - started)
    return [float(np.median(taken)) if taken else None for taken in seconds]


def main() -> None:
    """Measure, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines")
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)

    drawn = np.random.default_rng(0)
    X = drawn.normal(size=(1500, 2))
    y = X @ [1.0, 2.0]
    without_history = Config()
    without_history.HistoryManager.enabled = False
    magics = XPUMagics(InteractiveShell(config=without_history))
    with xpulab.XPUCluster(arguments.n, timeout=120, display="none") as cluster:
        rows, targets = cluster.scatter(X), cluster.scatter(y)
        few, fitted = cluster.scatter(X[:1000]), KMeans(3, n_init=1, random_state=0).fit(X)
        reference = ReferenceKMeans(3, n_init=1, random_state=0).fit(X)
        pairs: list[tuple[str, Call, Call | None]] = [
            ("an empty task", lambda: cluster.call("release", {"handles": []}), None),
            ("%%xpu, x = 1", lambda: magics.xpu("", "x = 1"), None),
            (
                "Ridge().fit, 1,500 x 2 on the engines",
                lambda: Ridge().fit(rows, targets),
                lambda: ReferenceRidge().fit(X, y),
            ),
            ("Ridge().fit, 1,500 x 2", lambda: Ridge().fit(X, y), lambda: ReferenceRidge().fit(X, y)),
            ("StandardScaler().fit, 1,500 x 2", lambda: StandardScaler().fit(X), lambda: ReferenceScaler().fit(X)),
            (
                "KMeans(3, n_init=1).fit, 1,500 x 2",
                lambda: KMeans(3, n_init=1, random_state=0).fit(X),
                lambda: ReferenceKMeans(3, n_init=1, random_state=0).fit(X),
            ),
            (
                "KMeans(3, n_init=10).fit, 1,500 x 2",
                lambda: KMeans(3, n_init=10, random_state=0).fit(X),
                lambda: ReferenceKMeans(3, n_init=10, random_state=0).fit(X),
            ),
            (
                "KMeans.predict, 1,000 x 2 on the engines",
                lambda: fitted.predict(few),
                lambda: reference.predict(X[:1000]),
            ),
        ]
        table = []
        for name, ours, theirs in pairs:
            mine, other = medians([ours, theirs], arguments.repeats)
            assert mine is not None
            times = ("", "") if other is None else (f"{1e3 * other:.2f} ms", f"{mine / other:.1f}")
            table.append((name, f"{1e3 * mine:.2f} ms", *times))
    print(table_text((f"{arguments.n} engines", "xpulab", "scikit-learn", "ratio"), table, "lrrr", indent=""))


if __name__ == "__main__":
    main()
