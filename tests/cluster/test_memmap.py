"""The engines read memory-mapped rows, which do not pass through the notebook's memory."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import xpulab
from xpulab.cluster import KMeans
from xpulab.data import Outgoing
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import BlockRows
from xpulab.sources.mapped import mapped

pytestmark = pytest.mark.cluster


def on_disk(path: Path, n: int = 3001, dtype: Any = np.float32) -> np.ndarray:
    X = np.random.RandomState(0).normal(size=(n, 14)).astype(dtype)
    np.save(path, X)
    return X


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mapped_file_gives_the_same_results_as_the_array(
    current: xpulab.XPUCluster, tmp_path: Path, dtype: Any
) -> None:
    X = on_disk(tmp_path / "x.npy", dtype=dtype)
    Y = np.load(tmp_path / "x.npy", mmap_mode="r")
    for ours, same in ((Y, X), (Y[100:2000], X[100:2000]), (Y[7:][3:], X[10:])):
        assert mapped(ours) is not None
        a, b = (KMeans(5, random_state=0, max_iter=5).fit(rows) for rows in (ours, same))
        np.testing.assert_array_equal(a.labels_, b.labels_)
        np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
        np.testing.assert_array_equal(a.predict(ours), b.labels_)
        np.testing.assert_array_equal(a.transform(ours), b.transform(same))
        assert a.score(ours) == b.score(same)
    np.testing.assert_array_equal(current.scatter(Y[5:99]).gather(), X[5:99])


def test_arrays_that_are_not_plain_rows_of_a_file_are_sent(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = on_disk(tmp_path / "x.npy")
    mine = np.load(tmp_path / "x.npy", mmap_mode="c")
    mine[0] = 5
    for other in (X, mine, np.load(tmp_path / "x.npy", mmap_mode="r")[::2]):
        assert mapped(other) is None
        np.testing.assert_array_equal(pair.scatter(other).gather(), other)


def test_a_file_in_column_order_is_read(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = np.asfortranarray(on_disk(tmp_path / "x.npy"))
    np.save(tmp_path / "f.npy", X)
    Y = np.load(tmp_path / "f.npy", mmap_mode="r")
    assert mapped(Y) is not None
    assert mapped(Y[:99]) is None
    for handle in (pair.scatter(Y), pair.load_npy(tmp_path / "f.npy"), pair.scatter(Y[:99])):
        np.testing.assert_array_equal(handle.gather(), X[: len(handle)])


def test_the_notebook_s_memory_does_not_grow(
    pair: xpulab.XPUCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.activate()
    X = on_disk(tmp_path / "x.npy", n=2_000_000)  # 112 MB
    size = X.nbytes
    init = X[:8].copy()
    del X
    sent: list[int] = []
    copies = Outgoing._copies

    def watched(self: Outgoing, array: np.ndarray, *rest: Any) -> list[SharedBlock]:
        sent.append(array.nbytes)
        return copies(self, array, *rest)

    monkeypatch.setattr(Outgoing, "_copies", watched)
    km = KMeans(8, init=init, n_init=1, max_iter=3)
    me = psutil.Process(os.getpid())
    before = me.memory_full_info().uss
    km.fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert me.memory_full_info().uss - before - km.labels_.nbytes < 0.05 * size
    assert not sent


def test_a_file_in_column_order_is_not_copied_in_the_notebook(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    pair.activate()
    X = on_disk(tmp_path / "x.npy", n=800_000)  # 45 MB, of which what other threads allocate is little
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    Y = np.load(tmp_path / "f.npy", mmap_mode="r")
    same = KMeans(8, init=X[:8], n_init=1, max_iter=2).fit(X)
    tracemalloc.start()
    try:
        km = KMeans(8, init=X[:8], n_init=1, max_iter=2).fit(Y)
        assert tracemalloc.get_traced_memory()[1] < 0.2 * X.nbytes
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(km.labels_, same.labels_)


def test_a_file_that_was_replaced_is_refused(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    pair.activate()
    X = on_disk(tmp_path / "x.npy")
    np.save(tmp_path / "other.npy", X + 100)
    before = np.load(tmp_path / "x.npy", mmap_mode="r")
    file = mapped(before)
    assert file is not None
    os.replace(tmp_path / "other.npy", tmp_path / "x.npy")
    np.testing.assert_array_equal(before, X)  # the array still maps its original file
    for use in (KMeans(3, random_state=0).fit, pair.scatter):
        with pytest.raises(ValueError, match=r"x\.npy was replaced since X was mapped; map it again"):
            use(before)
    # The file is replaced when the engines are about to read it.
    source = BlockRows.of_all(file, file.dtype, [0, 1500, 3001])
    with pytest.raises(ValueError, match=r"x\.npy was written to or replaced since the call began"):
        pair.call("scatter", {"source": source})
    after = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.testing.assert_array_equal(pair.scatter(after).gather(), X + 100)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(ValueError, match=r"x\.npy was removed since X was mapped"):
        KMeans(3).fit(after)


def test_a_file_that_was_changed_through_the_array_is_read(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    X = on_disk(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", X)
    shared = np.load(tmp_path / "x.npy", mmap_mode="r+")
    shared[5] = 7
    np.testing.assert_array_equal(pair.scatter(shared).gather(), shared)


def test_nan_and_a_file_that_became_shorter_are_refused(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    pair.activate()
    X = on_disk(tmp_path / "x.npy")
    X[2000, 3] = np.nan
    np.save(tmp_path / "bad.npy", X)
    bad = np.load(tmp_path / "bad.npy", mmap_mode="r")
    with pytest.raises(ValueError, match=r"NaN or infinity; the first such row is row 2000"):
        KMeans(3).fit(bad)
    with pytest.raises(ValueError, match="row 2000"):
        pair.scatter(bad)
    short = np.load(tmp_path / "x.npy", mmap_mode="r")
    os.truncate(tmp_path / "x.npy", 5000)
    with pytest.raises(ValueError, match=r"has 5,000 bytes, and the rows of the memory-mapped X end at"):
        KMeans(3).fit(short)
    assert len(KMeans(3, random_state=0).fit(X[:99]).labels_) == 99
