"""Runs scripts of scikit-learn's gallery in one process, and prints as JSON what each printed.

    python run_gallery.py plain script.py ...
    python run_gallery.py accel script.py ...     # with accel on, for data of any size
    python run_gallery.py default script.py ...   # with accel on, with the sizes of its table
    python run_gallery.py plain,accel script.py ...

For each mode, the JSON has what the scripts printed; with accel, also the numbers of calls on the engines and in
scikit-learn.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Of scripts that make hundreds of fits that are alike: what of their text stands for how many, and for fewer.
LESS = {
    "plot_cv_diabetes.py": ("alphas = np.logspace(-4, -0.5, 30)", "alphas = np.logspace(-3, -0.5, 5)"),
    "plot_kmeans_stability_low_dim_dense.py": ("n_runs = 5", "n_runs = 1"),
}


def main(modes: str, scripts: list[str]) -> None:
    """Run the scripts, and print the JSON."""
    import matplotlib

    matplotlib.use("Agg")
    warnings.simplefilter("ignore")
    done = {}
    for mode in modes.split(","):
        with _accelerated(mode) as acceleration:
            done[mode] = {script: _run(script, acceleration) for script in scripts}
    print(json.dumps(done))


def _run(script: str, acceleration: Any) -> dict[str, Any]:
    import matplotlib.pyplot as plt

    before = _counts(acceleration)
    source = Path(script).read_text()
    if less := LESS.get(Path(script).name):
        assert source.count(less[0]) == 1
        source = source.replace(*less)
    printed, begun = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, script, "exec"), {"__name__": "__main__", "__file__": script})
    plt.close("all")
    after = _counts(acceleration)
    return {
        "printed": printed.getvalue(),
        "seconds": time.perf_counter() - begun,
        "engines": after[0] - before[0],
        "scikit-learn": after[1] - before[1],
    }


def _counts(acceleration: Any) -> tuple[int, int]:
    if acceleration is None:
        return 0, 0
    rows = acceleration.status().rows
    return sum(row.engines for row in rows), sum(row.here for row in rows)


@contextlib.contextmanager
def _accelerated(mode: str) -> Iterator[Any]:
    if mode == "plain":
        yield None
        return
    import xpulab

    with xpulab.XPUCluster(1, display="none"), xpulab.accel(least=0 if mode == "accel" else None) as acceleration:
        yield acceleration


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
