"""Measures a pass of k-means over a Parquet file of which the engines keep all rows, some, or none, against its limit.

The limit of a pass is the larger of two times: reading the bytes of the rows that are not kept, and decoding these by
pyarrow before computing, because both use the cores of a CPU. Rows that are kept have bounds, which save comparisons in
later passes; all others are compared with all centres, as in the first pass in memory.

With ``--peers`` it also compares fits that keep no row with what others make of the same file, in the same run:
scikit-learn's `partial_fit` of a row group at a time, polars' streaming where it has the same sums, and dask-ml if it
is installed. scikit-learn reads a Zarr array, whose chunks are those that Zarr chooses, a block of rows at a time.

python benchmarks/streaming.py -n 2 --rows 8000000
python benchmarks/streaming.py --quick --peers
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.cluster
import sklearn.decomposition
import sklearn.preprocessing
import zarr

import xpulab
from xpulab.cluster import KMeans
from xpulab.decomposition import IncrementalPCA
from xpulab.preprocessing import StandardScaler
from xpulab.report.rendering import table_text
from xpulab.scanning import Scan

COLUMNS = 14
GROUP = 1 << 17  # rows of a row group


def write(path: Path, n: int, compression: str) -> None:
    """Write made-up rows, a row group at a time."""
    drawn = np.random.default_rng(0)
    names = [f"c{column}" for column in range(COLUMNS)]
    schema = pa.schema([(name, pa.float32()) for name in names])
    with pq.ParquetWriter(path, schema, compression=compression, use_dictionary=False) as file:
        for first in range(0, n, GROUP):
            shape = COLUMNS, min(GROUP, n - first)
            columns = drawn.normal(size=shape).astype(np.float32) + drawn.integers(0, 40, shape[1]).astype(np.float32)
            file.write_table(pa.table(list(columns), schema=schema))


def seconds_to_read(path: Path) -> float:
    """Return the seconds in which the file's bytes are read."""
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(8 << 20):
            pass
    return time.perf_counter() - started


def seconds_to_decode(path: Path) -> float:
    """Return the seconds in which pyarrow decodes the file, row group by row group."""
    started = time.perf_counter()
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            file.read_row_group(group, use_threads=True)
    return time.perf_counter() - started


def seconds_of_passes(rows: Scan, k: int, passes: int) -> tuple[float, float, KMeans]:
    """Return the seconds of a first iteration from given centres, the median of later ones, and the second such fit."""
    for _ in range(2):
        model = KMeans(k, init=rows.head(k), n_init=1, max_iter=passes, tol=0).fit(rows)
    seconds = [each.seconds for each in model.report_.iterations]
    return min(seconds[:2]), float(np.median(seconds[2:])), model


def by_row_groups(path: Path, estimator: Any) -> None:
    """Fit an estimator of scikit-learn in one pass, a row group at a time."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=True)
            estimator.partial_fit(np.column_stack([column.to_numpy() for column in table.columns]))


def sums_by_polars(path: Path) -> None:
    """Compute mean and variance of each column by polars' streaming engine."""
    pl.scan_parquet(path).select(pl.all().mean().name.suffix("_mean"), pl.all().var()).collect(engine="streaming")


def write_zarr(path: Path, rows: Scan) -> None:
    """Write the rows as a Zarr array with the chunks and the compression that Zarr chooses."""
    stored = zarr.open_array(str(path), mode="w", shape=rows.shape, dtype=np.float32)
    step = stored.chunks[0]
    for first in range(0, len(rows), step):
        stored[first : first + step] = rows[first : first + step].read()


def by_blocks_of_zarr(path: Path, estimator: Any) -> None:
    """Fit an estimator of scikit-learn in one pass over a Zarr array, a block of rows at a time."""
    stored: Any = zarr.open_array(str(path), mode="r")
    for first in range(0, stored.shape[0], GROUP):
        estimator.partial_fit(stored[first : first + GROUP])


def by_dask_ml(path: Path, name: str, k: int, start: np.ndarray) -> None:
    """Fit an estimator of dask-ml to the file, whose row groups are dask's partitions."""
    import dask.dataframe
    from dask_ml import cluster, preprocessing

    X = dask.dataframe.read_parquet(path, split_row_groups=True).to_dask_array(lengths=True)
    if name == "KMeans":
        cluster.KMeans(k, init=start, max_iter=1, tol=0).fit(X)
    else:
        preprocessing.StandardScaler().fit(X)


def compared_with_peers(path: Path, rows: Scan, k: int, rounds: int) -> list[list[str]]:
    """Return a line for each peer: the least seconds of several rounds, in which both take turns."""
    start, cut = rows.head(k), path.with_suffix(".zarr")
    write_zarr(cut, rows)
    chunks = xpulab.scan(cut)
    theirs = sklearn.cluster.MiniBatchKMeans(k, init=start, n_init=1, batch_size=GROUP)
    pairs: list[tuple[str, str, Callable[[], object], Callable[[], object]]] = [
        (
            "KMeans, max_iter=1", "scikit-learn's MiniBatchKMeans, a pass",
            lambda: KMeans(k, init=start, n_init=1, max_iter=1, tol=0).fit(rows), lambda: by_row_groups(path, theirs),
        ),
        (
            "IncrementalPCA", "scikit-learn's IncrementalPCA", lambda: IncrementalPCA(2, batch_size=GROUP).fit(rows),
            lambda: by_row_groups(path, sklearn.decomposition.IncrementalPCA(2)),
        ),
        (
            "StandardScaler", "scikit-learn's StandardScaler", lambda: StandardScaler().fit(rows),
            lambda: by_row_groups(path, sklearn.preprocessing.StandardScaler()),
        ),
        ("StandardScaler", "polars' streaming: mean and var", lambda: StandardScaler().fit(rows),
         lambda: sums_by_polars(path)),
        ("StandardScaler, Zarr", "scikit-learn's StandardScaler, Zarr", lambda: StandardScaler().fit(chunks),
         lambda: by_blocks_of_zarr(cut, sklearn.preprocessing.StandardScaler())),
    ]  # fmt: skip
    if importlib.util.find_spec("dask_ml"):
        pairs += [
            ("KMeans, max_iter=1", "dask-ml's KMeans, max_iter=1",
             lambda: KMeans(k, init=start, n_init=1, max_iter=1, tol=0).fit(rows),
             lambda: by_dask_ml(path, "KMeans", k, start)),
            ("StandardScaler", "dask-ml's StandardScaler", lambda: StandardScaler().fit(rows),
             lambda: by_dask_ml(path, "StandardScaler", k, start)),
        ]  # fmt: skip
    lines = []
    for name, peer, *calls in pairs:
        taken: list[list[float]] = [[], []]
        for _ in range(rounds):
            for seconds, call in zip(taken, calls, strict=True):
                started = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - started)
        mine, other = (min(seconds) for seconds in taken)
        lines.append([name, f"{mine:.3f}", peer, f"{other:.3f}", f"{other / mine:.2f}"])
    return lines


def main() -> None:
    """Measure, and print a table with a line for each budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="engines")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("-k", type=int, default=127, help="centres")
    parser.add_argument("--passes", type=int, default=8, help="iterations, of which the first two do not count")
    parser.add_argument("--compression", default="none", help="none, snappy or zstd")
    parser.add_argument("--peers", action="store_true", help="compare with scikit-learn, polars, Zarr and dask-ml, too")
    parser.add_argument("--quick", action="store_true", help="few rows and passes, to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.k, arguments.passes = 300_000, 8, 4
    warnings.simplefilter("ignore", xpulab.exceptions.OversubscribedWarning)
    with tempfile.TemporaryDirectory() as folder, xpulab.XPUCluster(arguments.n, display="none") as cluster:
        path = Path(folder) / "rows.parquet"
        write(path, arguments.rows, arguments.compression)
        rows = xpulab.scan(path)
        reading, decoding = (min(measure(path) for _ in range(3)) for measure in (seconds_to_read, seconds_to_decode))
        table, comparing, bounded = [], 0.0, 0.0
        for share in (1.0, 0.4, 0.0):
            cluster.memory = None if share == 1 else int(share * rows.nbytes * (1 + 1 / 30 + 12 / (4 * COLUMNS)))
            first, taken, model = seconds_of_passes(rows, arguments.k, arguments.passes)
            comparing, bounded = comparing or first, bounded or taken
            left = 1 - share
            limit = max(left * reading, left * (decoding + comparing) + share * bounded)
            notes = [note for note in model.report_.notes if "were kept" in note]
            table.append([
                f"{100 * share:.0f} %", f"{taken:.3f}", f"{limit:.3f}", f"{taken / limit:.2f}",
                f"{rows.nbytes / taken / 1e9:.2f}", "; ".join(notes) or "all rows were kept",
            ])  # fmt: skip
        cluster.memory = 0
        beside = compared_with_peers(path, rows, arguments.k, 2 if arguments.quick else 4) if arguments.peers else []
        cluster.memory = None
    print(f"{arguments.rows:,} x {COLUMNS} float32 in Parquet ({arguments.compression}), k={arguments.k}, ", end="")
    print(f"{arguments.n} engines on {os.cpu_count()} cores")
    print(f"the whole file: read in {reading:.3f} s (from the system's cache), decoded in {decoding:.3f} s")
    print(table_text(["kept", "s a pass", "limit", "ratio", "GB/s", "report"], table, "rrrrrl"))
    if beside:
        print("\nno row is kept; least of several rounds in turns:")
        print(table_text(["here", "s", "peer", "s", "peer / here"], beside, "lrlrr"))


if __name__ == "__main__":
    main()
