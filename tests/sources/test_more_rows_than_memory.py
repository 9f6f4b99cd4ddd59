"""A fit of 3 GB of rows, by a notebook and two engines that the Linux kernel ends if they take 1 GB together."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import xpulab
from xpulab.cluster import KMeans

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("XPULAB_HOSTS"), reason="XPULAB_HOSTS is not set, with which a test makes a control group"
    ),
]

GROUP, GROUPS, COLUMNS, COPIES, K = 1 << 17, 18, 14, 24, 8
LIMIT = 1_000_000_000
PROGRAM = """
import sys
import numpy as np, psutil, xpulab
from xpulab.cluster import KMeans
centers = np.load("centers.npy")
with xpulab.XPUCluster(2, display="none"):
    rows = xpulab.scan("days/*.parquet")
    model = KMeans(len(centers), init=centers, n_init=1, max_iter=2, tol=0).fit(rows)
    np.savez("found.npz", centers=model.cluster_centers_, inertia=model.inertia_, bytes=rows.nbytes)
    print(*model.report_.notes)
    model.predict(rows, out="labels.npy")
    np.testing.assert_array_equal(np.load("labels.npy", mmap_mode="r")[: 1 << 20], model.labels_[: 1 << 20])
"""


@contextlib.contextmanager
def _limited(nbytes: int) -> Iterator[Path]:
    """Open a context with a control group of processes that takes at most so many bytes of memory."""
    top, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if not top.is_dir():
        top, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = top / f"xpulab-tests-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(nbytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"this machine lets nobody limit memory: {error}")
    try:
        yield group
    finally:
        group.rmdir()


def _write(path: Path) -> None:
    drawn = np.random.default_rng(0)
    schema = pa.schema([(f"c{column}", pa.float32()) for column in range(COLUMNS)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
        for _ in range(GROUPS):
            middles = 5 * drawn.integers(0, K, GROUP).astype(np.float32)
            rows = drawn.standard_normal((COLUMNS, GROUP), np.float32) + middles
            file.write_table(pa.table(list(rows), schema=schema))


def test_three_gigabytes_are_fitted_and_labelled_within_one(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    _write(tmp_path / "part.parquet")
    centers = np.outer(5 * np.arange(K) + 1, np.ones(COLUMNS)).astype(np.float32)
    np.save(tmp_path / "centers.npy", centers)
    (tmp_path / "days").mkdir()
    for copy in range(COPIES):  # the same rows by so many names
        os.link(tmp_path / "part.parquet", tmp_path / f"days/{copy:02}.parquet")
    with _limited(LIMIT) as group:
        program = subprocess.run(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" -c "$1"', sys.executable, PROGRAM],
            cwd=tmp_path, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert program.returncode == 0, program.stderr
    assert "were read again in" in program.stdout
    assert "is in a file without a name" in program.stdout  # the labels
    found = np.load(tmp_path / "found.npz")
    assert found["bytes"] > 3 * LIMIT
    once = KMeans(K, init=centers, n_init=1, max_iter=2, tol=0).fit(xpulab.scan(tmp_path / "part.parquet"))
    np.testing.assert_allclose(found["centers"], once.cluster_centers_, rtol=1e-5)
    np.testing.assert_allclose(found["inertia"], COPIES * once.inertia_, rtol=1e-6)
