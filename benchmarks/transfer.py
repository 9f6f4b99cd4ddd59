"""Measures the transfer of rows to the engines, in turns with plain copies, and the memory of calls.

python benchmarks/transfer.py -n 2 --mebibytes 1024 --repeats 5
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import xpulab
from xpulab.report.rendering import table_text
from xpulab.sharing.memory import SharedBlock

FEATURES = 14
CHUNK = 1 << 17  # rows that a thread copies at a time


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def plain_copies(X: np.ndarray) -> tuple[float, float]:
    """Seconds of two copies with two threads: into new shared memory, and into the same memory again."""

    def copy(start: int) -> None:
        np.copyto(target[start : start + CHUNK], X[start : start + CHUNK])

    def all_of_it() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(copy, range(0, len(X), CHUNK)))

    with SharedBlock.create(X.nbytes) as block:
        target = block.array(X.shape, X.dtype)
        return timed(all_of_it), timed(all_of_it)


def memory_of(pid: int | str) -> dict[str, int]:
    """Present and peak bytes of a process: its own memory, shared blocks, and files (libraries, rows on disk)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {field: int(fields[field].split()[0]) << 10 for field in ("VmRSS", "VmHWM")}


@contextmanager
def peaks(pids: list[int]) -> Iterator[list[int]]:
    """Peak memory of each process while the body runs, less its memory before."""
    grown: list[int] = []
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # reset the peak
    before = [memory_of(pid) for pid in pids]
    yield grown
    grown += [memory_of(pid)["VmHWM"] - then["VmRSS"] for pid, then in zip(pids, before, strict=True)]


def measure_transfer(cluster: xpulab.XPUCluster, X: np.ndarray, repeats: int) -> dict[str, list[float]]:
    """Seconds of each kind of transfer, in turns."""
    seconds: dict[str, list[float]] = {kind: [] for kind in ("new", "warm", "first", "later", "copied", "copied later")}
    for _ in range(repeats):
        new, warm = plain_copies(X)
        seconds["new"].append(new)
        seconds["warm"].append(warm)
        for readable, kinds in ((True, ("first", "later")), (False, ("copied", "copied later"))):
            cluster.rows.readable = True
            scattered(cluster, X[: len(X) // 4])  # of another size: the engines and this process free what they kept
            cluster.rows.blocks.clear()
            cluster.rows.readable = readable
            for kind in kinds:
                seconds[kind].append(scattered(cluster, X))
    cluster.rows.readable = None
    return seconds


def scattered(cluster: xpulab.XPUCluster, X: np.ndarray) -> float:
    """Seconds of `scatter`. Returns after the engines have freed the rows."""
    seconds = timed(lambda: cluster.scatter(X))
    while cluster.status().engines[0].device_bytes:
        time.sleep(0.01)  # the handle was deleted at once
    time.sleep(0.05)  # the thread that frees the rows then returns their shared memory
    return seconds


def measure_memory(cluster: xpulab.XPUCluster, X: np.ndarray) -> dict[str, list[int]]:
    """Growth of the engines, by rank, and of this process, for each call."""
    from xpulab.cluster import KMeans

    pids = [*(fact.pid for fact in cluster.facts), os.getpid()]
    km = KMeans(127, init=X[:127], n_init=1, max_iter=12, tol=0)
    plusplus = KMeans(127, random_state=0, max_iter=1)
    calls: dict[str, Callable[[], Any]] = {
        "fit, 12 iterations": lambda: km.fit(X),
        "predict": lambda: km.predict(X),
        "k-means++ and an iteration": lambda: plusplus.fit(X),
    }
    found = {}
    km.set_params(max_iter=5).fit(X[:100_000])  # compiles
    plusplus.fit(X[:100_000])
    km.set_params(max_iter=12)
    for name, call in calls.items():
        km.labels_ = plusplus.labels_ = None
        scattered(cluster, X[: len(X) // 4])  # of another size: the engines free what they kept
        cluster.rows.blocks.clear()
        with peaks(pids) as grown:
            call()
        found[name] = grown
    return found


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the array that is sent")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)

    X = np.random.default_rng(0).random(((arguments.mebibytes << 20) // (4 * FEATURES), FEATURES), dtype=np.float32)
    with xpulab.XPUCluster(arguments.n, timeout=120) as cluster:
        cluster.scatter(X[:100_000])  # compiles
        seconds = measure_transfer(cluster, X, arguments.repeats)
        memory = measure_memory(cluster, X)

    def row(name: str, kind: str, beside: str) -> tuple[str, ...]:
        ratio = np.median(np.array(seconds[kind]) / seconds[beside])
        took = np.median(seconds[kind])
        return name, f"{took:.3f} s", f"{X.nbytes / took / 1e9:.2f}", f"{ratio:.2f}"

    size = f"{arguments.mebibytes} MiB"
    rows = [
        row(f"plain copy of {size}, two threads, new shared memory", "new", "new"),
        row("scatter, new memory: read by the engines", "first", "new"),
        row("scatter, new memory: copied into shared memory", "copied", "new"),
        row("plain copy again, the memory being there", "warm", "warm"),
        row("scatter again: read by the engines", "later", "warm"),
        row("scatter again: copied into shared memory", "copied later", "warm"),
    ]
    print(table_text((f"{arguments.n} engines", "median", "GB/s", "x copy"), rows, "lrrr", indent=""))
    shard = X.nbytes / arguments.n
    rows = [
        (name, f"{max(grown[:-1]) / shard:.2f}", "1.3", f"{100 * max(0, grown[-1]) / X.nbytes:.0f} %", "5 %")
        for name, grown in memory.items()
    ]
    print()
    print(table_text(("most memory", "engine / shard", "aim", "notebook / X", "aim"), rows, "lrrrr", indent=""))


if __name__ == "__main__":
    main()
