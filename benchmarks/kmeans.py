"""Compares k-means with other systems: with the same rows, initial centres and cores, in one process each, in turns.

    python benchmarks/kmeans.py                       # the shape of the published oneAPI k-means benchmark
    python benchmarks/kmeans.py --rows 50000000       # its full size
    python benchmarks/kmeans.py --sweep               # other numbers of clusters, features, and float64
    python benchmarks/kmeans.py --details             # k-means++, predict, a small fit, one engine against two
    python benchmarks/kmeans.py --quick               # a test of a few seconds

``--systems xpulab,xpulab@/path/to/python,xpulab@/path/to/python:/another/clone`` compares xpulab with itself on another
Python, or with another clone. Systems that cannot share xpulab's environment get their own environments, which the
first run makes in the user's cache folder. If a system cannot be installed, its note gives the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from xpulab.report.rendering import table_text

HERE = Path(__file__).parent
#: System -> the packages of its own environment; other systems use xpulab's environment.
ENVIRONMENTS = {
    "scikit-learn-intelex": ("scikit-learn-intelex",),
    "daal4py": ("scikit-learn-intelex",),
    "dbscan": ("dbscan",),
    "fast_hdbscan": ("fast-hdbscan==0.3.4", "scikit-learn"),
    "faiss-cpu": ("faiss-cpu",),
    "dask-ml": ("dask-ml", "dask[array,dataframe]"),
    "pytorch": ("torch", "numpy"),
}
SYSTEMS = (
    "xpulab", "xpulab-resident", "scikit-learn", "scikit-learn-elkan", "faiss-cpu",
    "scikit-learn-intelex", "daal4py", "dask-ml", "pytorch",
)  # fmt: skip


@dataclass
class Case:
    """One problem, and the measurements of the systems."""

    rows: int
    features: int
    clusters: int
    iterations: int
    dtype: str
    data: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    inertia: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The problem on one line."""
        return (
            f"{self.rows:,} x {self.features} {self.dtype}, {self.clusters} clusters, {self.iterations} iterations, "
            f"{self.data} data"
        )


def rows_of(case: Case) -> np.ndarray:
    """Rows without structure (`normal` and `uniform`, which let no method skip work), or overlapping groups."""
    rng = np.random.default_rng(0)
    shape = (case.rows, case.features)
    if case.data == "uniform":
        return rng.random(shape, dtype=case.dtype)
    X = rng.standard_normal(shape, dtype=case.dtype)
    if case.data == "mixture":
        X += (
            2
            * rng.standard_normal((case.clusters, case.features), dtype=case.dtype)[
                rng.integers(0, case.clusters, case.rows)
            ]
        )
    return X


def python_for(system: str) -> str:
    """The Python interpreter of a system's environment, which is made if it does not exist."""
    if "@" in system:
        return system.partition("@")[2].partition(":")[0]
    packages = ENVIRONMENTS.get(system)
    if packages is None:
        return sys.executable
    home = Path(platformdirs.user_cache_dir("xpulab")) / "peers" / packages[0]
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        print(f"making an environment for {system}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, capture_output=True, text=True)
        (home / "complete").touch()
    return str(python)


class System:
    """The process of one system, which fits on request."""

    def __init__(self, name: str, cores: list[int], files: dict[str, str], iterations: int) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        for variable in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
            environment[f"{variable}_NUM_THREADS"] = str(len(cores))
        clone = name.partition("@")[2].partition(":")[2]
        if clone:
            environment["PYTHONPATH"] = clone  # for this process; its engines start in the current folder
        self.process = subprocess.Popen(
            [
                python_for(name), str(HERE / "peers.py"), "--system", name.partition("@")[0], "--rows", files["rows"],
                "--start", files["start"], "--iterations", str(iterations),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            cwd=clone or None, preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer in the output of the process."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        assert self.process.stderr is not None
        raise RuntimeError((self.process.stderr.read().strip().splitlines() or ["the process ended"])[-1])

    def fit(self) -> dict[str, Any]:
        """Run one fit."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End the process and its child processes."""
        self.process.communicate(timeout=60)


def measure(case: Case, systems: list[str], cores: list[int], repeats: int) -> Case:
    """Measure the systems in turns. While one computes, the others are loaded, but idle."""
    X = rows_of(case)
    with tempfile.TemporaryDirectory() as folder:
        files = {"rows": f"{folder}/rows.npy", "start": f"{folder}/start.npy"}
        np.save(files["rows"], X)
        np.save(files["start"], X[np.random.default_rng(1).choice(case.rows, case.clusters, replace=False)])
        del X
        running: dict[str, System] = {}
        for name in systems:
            try:
                running[name] = System(name, cores, files, case.iterations)
            except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
                output = getattr(error, "stderr", None) or str(error)
                case.notes[name] = f"not here: {output.strip().splitlines()[-1]}"
        try:
            for _ in range(repeats):
                for name, system in running.items():
                    said = system.fit()
                    case.seconds.setdefault(name, []).append(said["seconds"])
                    case.inertia[name] = said["inertia"]
                    if said["iterations"] != case.iterations:
                        case.notes[name] = f"stopped after {said['iterations']} iterations"
        finally:
            for system in running.values():
                system.close()
    return case


def limit(cores: list[int]) -> dict[str, float]:
    """GFLOP/s of fused multiply-adds on these cores, in float32 and float64, with one engine on each core."""
    import xpulab

    with xpulab.XPUCluster(len(cores), timeout=120) as cluster:
        return {dtype: sum(cluster.run(multiply_add, dtype)) for dtype in ("float32", "float64")}


def multiply_add(task: Any, dtype: str) -> float:
    import numpy as np
    from dpctl.program import create_program_from_source

    chains, steps, groups, size, queue = 12, 20_000, 64, 16, task.device.queue
    number = {"float32": "float", "float64": "double"}[dtype]
    source = f"""
        __kernel void chain(__global {number} *out, {number} a, {number} b) {{
            {number} x[{chains}], total = 0;
            // Of each work-item another number: what is the same for all, the compiler computes once.
            for (int j = 0; j < {chains}; j++) x[j] = a * j + get_global_id(0);
            for (int i = 0; i < {steps}; i++)
                for (int j = 0; j < {chains}; j++) x[j] = fma(x[j], b, a);
            for (int j = 0; j < {chains}; j++) total += x[j];
            out[get_global_id(0)] = total;
        }}"""
    kernel = create_program_from_source(queue, source).get_sycl_kernel("chain")
    out, ctype = task.device.empty(groups * size, dtype), np.ctypeslib.as_ctypes_type(np.dtype(dtype))
    best = np.inf
    for _ in range(5):
        task.comm.allgather(0)
        event = queue.submit(kernel, [out.memory, ctype(0.1), ctype(0.5)], [groups * size], [size])
        event.wait()
        best = min(best, (event.profiling_info_end - event.profiling_info_start) * 1e-9)
    return 2 * groups * size * chains * steps / best / 1e9


def table(case: Case, limits: dict[str, float]) -> str:
    """A table with a line for each system."""
    ours = np.median(case.seconds["xpulab"]) if "xpulab" in case.seconds else np.nan
    least = min(case.inertia.values(), default=0.0)
    lines = []
    for name, seconds in sorted(case.seconds.items(), key=lambda item: np.median(item[1])):
        median = float(np.median(seconds))
        rate = case.rows * case.iterations / median / 1e6
        flops = 2 * rate * 1e6 * case.features * case.clusters / 1e9
        note = case.notes.get(name, "")
        if case.inertia[name] > least * (1 + 1e-3):
            note = f"{note} inertia {case.inertia[name] / least - 1:.1e} above the least".strip()
        lines.append(
            (
                name,
                f"{median:.3g}",
                f"{min(seconds):.3g} to {max(seconds):.3g}",
                f"{median / ours:.2f}",
                f"{rate:.1f}",
                f"{flops / limits[case.dtype]:.0%}",
                note,
            )
        )
    lines += [(name, "", "", "", "", "", note) for name, note in case.notes.items() if name not in case.seconds]
    head = ("system", "seconds", "range", "x xpulab", "M rows x iter. / s", "of FMA limit", "")
    return f"{case.title}\n{table_text(head, lines, 'lrrrrrl', indent='')}"


def picture(cases: list[Case], path: Path) -> None:
    """Draw the seconds relative to xpulab's, with a group of bars for each case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in SYSTEMS if any(name in case.seconds for case in cases)]
    figure, every = plt.subplots(
        len(cases), figsize=(9, (0.8 + 0.3 * len(names)) * len(cases)), layout="constrained", squeeze=False
    )
    for case, axes in zip(cases, every[:, 0], strict=True):
        ours = np.median(case.seconds.get("xpulab", [np.nan]))
        ratios = {name: float(np.median(case.seconds[name]) / ours) for name in names[::-1] if name in case.seconds}
        colours = ["tab:blue" if name.startswith("xpulab") else "tab:gray" for name in ratios]
        bars = axes.barh(list(ratios), list(ratios.values()), color=colours)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.margins(x=0.1)
        axes.set_title(case.title, fontsize="medium")
    every[-1, 0].set_xlabel("seconds / those of xpulab, called as in a notebook, transfer included")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call, after one call that is not measured."""
    call()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def shares(rows: np.ndarray, k: int, iterations: int, repeats: int) -> list[tuple[str, float]]:
    """The share of the time that is not spent in kernels, for an iteration and for a whole fit: medians of fits.

    The share is that of the engine with the larger share. The time of an iteration is the difference between a fit and
    a fit of a tenth of the iterations, divided by the difference of their iterations.
    """
    from xpulab.cluster import KMeans

    def seconds(iterations: int) -> np.ndarray:
        km = KMeans(k, init=rows[:k], n_init=1, max_iter=iterations, tol=0)
        return np.array([(one.seconds["kernel"], one.total) for one in km.fit(rows).report_.engines])

    lengths = iterations, max(1, iterations // 10)
    fits = np.array([[seconds(length) for length in lengths] for _ in range(repeats + 1)])[
        1:
    ]  # the first fit loads the kernels
    kernel, total = np.moveaxis(fits[:, 0] - fits[:, 1], -1, 0)
    return [
        ("an iteration", float(np.median(1 - (kernel / total).min(axis=-1)))),
        ("a whole fit", float(np.median(1 - (fits[:, 0, :, 0] / fits[:, 0, :, 1]).min(axis=-1)))),
    ]


def details(case: Case, cores: list[int], repeats: int) -> str:
    """Calls other than a fit from given centres, compared with scikit-learn; and one engine compared with all."""
    import sklearn.cluster

    import xpulab
    from xpulab.cluster import KMeans

    os.sched_setaffinity(0, cores)
    X, k = rows_of(case), case.clusters
    small = np.random.default_rng(0).normal(size=(1500, 2))
    few = X[: 20_000 * len(cores)]
    start = X[:k].copy()
    lines: list[tuple[str, ...]] = []

    def line(what: str, ours: float, theirs: float | None = None, note: str = "") -> None:
        shown = ("", "") if theirs is None else (f"{theirs:.4g}", f"{theirs / ours:.2f}")
        lines.append((what, f"{ours:.4g}", *shown, note))

    plain = sklearn.cluster.KMeans(k, init=start, n_init=1, max_iter=1).fit(X[:20_000])
    theirs = {
        "++": timed(lambda: sklearn.cluster.kmeans_plusplus(X, k, random_state=0), 1),
        "predict": timed(lambda: plain.predict(X), repeats),
        "small": timed(lambda: sklearn.cluster.KMeans(3, random_state=0).fit(small), 10 * repeats),
    }
    with xpulab.XPUCluster(len(cores), timeout=120) as cluster:
        rows = cluster.scatter(X)
        km = KMeans(k, init=start, n_init=1, max_iter=1).fit(rows)

        def one(init: Any) -> float:
            return timed(lambda: KMeans(k, init=init, n_init=1, max_iter=1, random_state=0).fit(rows), repeats)

        line(
            "k-means++ alone",
            one("k-means++") - one(start),
            theirs["++"],
            "a fit of one iteration with it, less one without",
        )
        line("predict, rows on the engines", timed(lambda: km.predict(rows), repeats), theirs["predict"])
        line("predict, NumPy in, labels out", timed(lambda: km.predict(X), repeats), theirs["predict"])
        line(
            "fit of 1,500 x 2, k=3", timed(lambda: KMeans(3, random_state=0).fit(small), 10 * repeats), theirs["small"]
        )
        long = KMeans(k, init=start, n_init=1, max_iter=case.iterations, tol=0)
        every = timed(lambda: long.fit(rows), repeats)
        for what, share in shares(few, k, case.iterations, 5 * repeats):
            lines.append((f"20,000 rows per engine: share of {what} that is no kernel", f"{share:.0%}", "", "", ""))
    os.sched_setaffinity(0, cores[:1])
    with xpulab.XPUCluster(1, timeout=120) as cluster:
        rows = cluster.scatter(X)
        alone = timed(lambda: long.fit(rows), 1)
    os.sched_setaffinity(0, cores)
    line(f"fit, {len(cores)} engines; beside it 1 engine on 1 core", every, alone)
    return table_text(("", "seconds", "scikit-learn", "ratio", ""), lines, "lrrrl", indent="")


def sweep(arguments: argparse.Namespace) -> list[Case]:
    """Cases with about the same amount of work."""
    shapes = [
        (2_000_000, 2, 8, "float32"), (2_000_000, 14, 8, "float32"), (2_000_000, 2, 127, "float32"),
        (1_000_000, 14, 1000, "float32"), (500_000, 64, 127, "float32"), (200_000, 64, 1000, "float32"),
        (200_000, 256, 127, "float32"), (100_000, 256, 1000, "float32"), (200_000, 256, 8, "float32"),
        (2_000_000, 14, 127, "float64"),
    ]  # fmt: skip
    return [Case(n, d, k, arguments.iterations, dtype, arguments.data) for n, d, k, dtype in shapes]


def main() -> None:
    """Measure, print the tables, and write the results and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=14)
    parser.add_argument("--clusters", type=int, default=127)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--data", choices=["normal", "uniform", "mixture"], default="normal")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--systems", default=",".join(name for name in SYSTEMS if name != "xpulab-resident"))
    parser.add_argument("--sweep", action="store_true", help="other shapes")
    parser.add_argument("--details", action="store_true", help="k-means++, predict, a small fit, scaling")
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 5 iterations, once")
    parser.add_argument("--out", type=Path, help="folder for the figures as JSON, and the picture")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.iterations, arguments.repeats = 20_000, 5, 1
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    cases = sweep(arguments) if arguments.sweep else [
        Case(
            arguments.rows, arguments.features, arguments.clusters, arguments.iterations, arguments.dtype,
            arguments.data,
        )
    ]  # fmt: skip
    if arguments.details:
        print(f"{cases[0].title}\n{details(cases[0], cores, arguments.repeats)}")
        return
    limits = limit(cores)
    print(
        ", ".join(f"{dtype}: {rate:.0f} GFLOP/s" for dtype, rate in limits.items()),
        "is the limit of",
        len(cores),
        "cores",
    )
    for case in cases:
        measure(case, arguments.systems.split(","), cores, arguments.repeats)
        print(f"\n{table(case, limits)}", flush=True)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        kept = {"limits": limits, "cores": len(cores), "cases": [vars(case) for case in cases]}
        (arguments.out / "kmeans.json").write_text(json.dumps(kept, indent=1))
        picture(cases, arguments.out / "kmeans.png")


if __name__ == "__main__":
    main()
