"""Measures texts on their way to clusters, sparse up to TruncatedSVD, then Normalizer and KMeans, against scikit-learn.

Documents are made up, with words whose frequencies fall as in Zipf's law. scikit-learn's TfidfVectorizer makes the rows
once. The pipeline after it runs with xpulab's and with scikit-learn's classes, in turns, each in a process of its own,
on the same cores. The memory is the peak of a system's process above what it had with the rows loaded, and for xpulab
also the peak of all engines, with their programs.

python benchmarks/sparse/texts.py -n 2 --documents 100000
python benchmarks/sparse/texts.py --quick
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.cluster
import sklearn.decomposition
import sklearn.preprocessing
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import TruncatedSVD
from xpulab.preprocessing import Normalizer
from xpulab.report.rendering import format_size, table_text

COMPONENTS, CLUSTERS, TOPICS, WORDS = 50, 20, 20, 100_000


def documents(n: int) -> list[str]:
    """Return made-up documents of about 100 words, a third of which are those of a topic."""
    drawn = np.random.default_rng(0)
    names = np.array([f"word{i}" for i in range(WORDS)])
    found = []
    for topic in drawn.integers(0, TOPICS, n):
        common = drawn.zipf(1.2, 70) % WORDS
        own = (topic * 997 + 50 + drawn.zipf(1.4, 35) % 900) % WORDS
        found.append(" ".join(names[np.concatenate([common, own])]))
    return found


def peak(pid: str = "self") -> int:
    """Return the most bytes that a process has had in memory so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def fitted(system: str, path: str, n: int) -> dict[str, Any]:
    """Fit the pipeline of a system, and return seconds, bytes, and how good the result is."""
    X = sparse.load_npz(path)
    if system == "scikit-learn":
        parts = sklearn.decomposition.TruncatedSVD, sklearn.preprocessing.Normalizer, sklearn.cluster.KMeans
    else:
        parts = TruncatedSVD, Normalizer, KMeans
    svd, normalizer, kmeans = parts
    steps = svd(COMPONENTS, random_state=0), normalizer(copy=False), kmeans(CLUSTERS, n_init=1, random_state=0)
    pipeline, engines = make_pipeline(*steps), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = None if system == "scikit-learn" else xpulab.XPUCluster(n).start()
    # The first fit of few rows loads libraries, and lets the driver finish kernels.
    make_pipeline(*(type(step)(**step.get_params()) for step in steps)).fit(X[: 40 * CLUSTERS])
    before = peak()
    rows = cluster.scatter(X) if cluster is not None and system.endswith("engines") else X
    started = time.perf_counter()
    pipeline.fit(rows)
    seconds = time.perf_counter() - started
    if cluster is not None:
        engines = sum(peak(str(fact.pid)) for fact in cluster.facts)
        cluster.stop()
    return {
        "seconds": seconds,
        "here": peak() - before,
        "engines": engines,
        "explained": float(steps[0].explained_variance_ratio_.sum()),
        "inertia": float(steps[2].inertia_),
    }


def main() -> None:
    """Make the documents, run the systems in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=2, help="number of engines")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2,000 documents, one round")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # a system and a file: run in a process of its own
    given = parser.parse_args()
    if given.one:
        print(json.dumps(fitted(*given.one, given.n)))
        return
    n, rounds = (2_000, 1) if given.quick else (given.documents, given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        X = TfidfVectorizer(dtype=np.float32).fit_transform(documents(n))
        path = str(Path(folder) / "rows.npz")
        sparse.save_npz(path, X, compressed=False)
        print(
            f"{X.shape[0]:,} documents of {X.shape[1]:,} words, {X.nnz:,} stored values of float32: "
            f"{format_size(12 * X.nnz)}; dense {format_size(4 * X.shape[0] * X.shape[1])}; made in "
            f"{time.perf_counter() - started:.0f} s"
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(rounds):
            for system in ("scikit-learn", "xpulab", "xpulab, rows on the engines"):
                command = [sys.executable, __file__, "-n", str(given.n), "--one", system, path]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.setdefault(system, []).append(json.loads(said.splitlines()[-1]))
    lines = [["", "seconds", "memory here", "memory of the engines", "explained", "inertia"]]
    for system, every in found.items():
        best = min(every, key=lambda each: each["seconds"])
        sizes = [format_size(max(each[name] for each in every)) for name in ("here", "engines")]
        lines.append([system, f"{best['seconds']:.2f}", *sizes, f"{best['explained']:.5f}", f"{best['inertia']:.2f}"])
    print(table_text(lines[0], lines[1:], "lrrrrr"))


if __name__ == "__main__":
    main()
