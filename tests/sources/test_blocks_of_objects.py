"""What this process computes block by block: arrays and frames of dask, and iterators of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import xpulab
from xpulab.cluster import KMeans
from xpulab.preprocessing import OneHotEncoder
from xpulab.sources import kinds
from xpulab.sources.tables import ArrowTable

X = np.random.default_rng(0).normal(size=(1000, 3))
FRAME = pd.DataFrame(X, columns=list("abc")).assign(word=np.array(["x", "y"])[np.arange(1000) % 2])


#: The frame, whose first 500 rows have no words and no numbers in the first column.
HOLED = FRAME.assign(a=FRAME["a"].where(FRAME.index >= 500), word=FRAME["word"].where(FRAME.index >= 500, None))


class Blocks:
    """A function that returns a new iterator of blocks, and counts its passes and blocks."""

    def __init__(self, *passes: list[Any]) -> None:
        self.passes, self.n_passes, self.n_blocks = passes, 0, 0

    def __call__(self) -> Iterator[Any]:
        self.n_passes += 1
        for block in self.passes[min(self.n_passes, len(self.passes)) - 1]:
            self.n_blocks += 1
            yield block

    def __repr__(self) -> str:
        return "<blocks>"


def dask_array() -> Any:
    return pytest.importorskip("dask.array").from_array(X, chunks=(333, 2))


def dask_frame(frame: pd.DataFrame = FRAME) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=4)


def blocks_of_arrays() -> Any:
    return Blocks([X[:100], X[100:100], X[100:700], X[700:]])


def blocks_of_tables() -> Any:
    return Blocks([pa.table(FRAME[:400]), FRAME[400:].reset_index(drop=True)])


@pytest.mark.parametrize("make", [dask_array, dask_frame, blocks_of_arrays, blocks_of_tables])
def test_blocks_are_rows_of_a_scan(make: Any) -> None:
    scan = xpulab.scan(make())
    if scan.columns is not None:
        assert scan.columns == ["a", "b", "c", "word"]
        np.testing.assert_array_equal(scan["word"][390:410].read(), FRAME["word"][390:410])
        scan = scan[["a", "b", "c"]]
    assert (scan.shape, scan.dtype) == ((1000, 3), np.float64)
    assert "in this process" in repr(scan)
    np.testing.assert_array_equal(scan.read(), X)
    np.testing.assert_array_equal(scan[50:780].read(), X[50:780])
    np.testing.assert_array_equal(scan[np.array([900, 3, 3, 500])], X[[900, 3, 3, 500]])


def test_blocks_without_values_and_of_other_types_are_joined() -> None:
    empty = pa.table({"a": pa.nulls(250), "b": X[250:500, 1], "c": X[250:500, 2], "word": pa.nulls(250)})
    blocks = Blocks([HOLED[:250], empty, HOLED[500:600], FRAME[600:].astype({"b": "f4"})])
    for scan in (xpulab.scan(blocks), xpulab.scan(dask_frame(HOLED.astype({"word": object})))):
        assert [column.numeric for column in scan[["a", "b", "word"]].described] == [np.float64, np.float64, None]
        assert scan["word"].read().tolist() == [None] * 500 + FRAME["word"][500:].tolist()
        found = scan[["a", "b"]].read()
        assert np.isnan(found[:500, 0]).all()
        np.testing.assert_array_equal(found[500:, 0], X[500:, 0])
        np.testing.assert_allclose(found[:, 1], X[:, 1], rtol=1e-6)


@pytest.mark.cluster
@pytest.mark.parametrize("make", [dask_array, dask_frame, blocks_of_tables])
def test_engines_get_the_blocks(on_pair: xpulab.XPUCluster, make: Any) -> None:
    scan = xpulab.scan(make())
    rows = scan if scan.columns is None else scan[["a", "b", "c"]]
    found = KMeans(3, random_state=0, n_init=1).fit(rows)
    np.testing.assert_array_equal(found.labels_, KMeans(3, random_state=0, n_init=1).fit(X).labels_)
    np.testing.assert_array_equal(on_pair.scatter(rows).gather(), X)


@pytest.mark.cluster
def test_arrays_and_frames_of_dask_are_rows_and_tables_block_by_block(on_pair: xpulab.XPUCluster) -> None:
    words, numbers, array = dask_frame(), dask_frame(FRAME[["a", "b", "c"]]), dask_array()
    same = KMeans(3, random_state=0, n_init=1).fit(X)
    for rows in (array, numbers):
        fitted = KMeans(3, random_state=0, n_init=1).fit(rows)
        np.testing.assert_array_equal(fitted.labels_, same.labels_)
        np.testing.assert_array_equal(fitted.predict(rows), same.labels_)
        np.testing.assert_array_equal(on_pair.scatter(rows).gather(), X)
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    table = on_pair.scatter(words)
    assert table["word"].labels(np.array([1.0, 0.0])).tolist() == ["y", "x"]
    np.testing.assert_array_equal(table[["a", "b", "c"]].gather(), X)
    encoder = OneHotEncoder(sparse_output=False).fit(words[["word"]])
    assert encoder.categories_[0].tolist() == ["x", "y"]
    np.testing.assert_array_equal(encoder.transform(words[["word"]])[:4, 0], [1, 0, 1, 0])
    with pytest.raises(TypeError, match="of dask was given; expected an array or a frame"):
        KMeans(3).fit(pytest.importorskip("dask").delayed(np.ones)(3))


@pytest.mark.cluster
def test_large_blocks_are_taken_in_one_pass(on_pair: xpulab.XPUCluster) -> None:
    """Threads that copy at several places would begin a pass for each of them."""
    part = np.random.default_rng(0).normal(size=(250_000, 4))
    blocks = Blocks([part[at : at + 25_000] for at in range(0, 250_000, 25_000)] * 6)
    scan = xpulab.scan(blocks)
    handle = on_pair.scatter(scan)
    assert (blocks.n_passes, blocks.n_blocks) == (2, 120)
    np.testing.assert_array_equal(handle.gather()[-250_000:], part)


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ([X[:600]], r"<blocks> yielded 1,000 rows in its first pass, and 600 in a later one; expected a new iterator"),
        ([X[:600], X[:399]], r"block 1 of <blocks> had 400 rows in the first pass, and has 399 in a later one"),
        ([X[:600], X[600:, :2]], r"block 1 of <blocks> has the columns"),
        ([], r"<blocks> yielded 1,000 rows in its first pass, and 0 in a later one"),
    ],
)
def test_a_later_pass_with_other_rows_is_an_error(later: list[Any], says: str) -> None:
    scan = xpulab.scan(Blocks([X[:600], X[600:]], later))
    with pytest.raises(ValueError, match=says):
        scan.read()


def test_what_are_no_blocks_is_said() -> None:
    with pytest.raises(ValueError, match="<blocks> returned an iterator without blocks"):
        xpulab.scan(Blocks([]))
    with pytest.raises(ValueError, match=r"block 1 of <blocks> has the columns .*, and block 0"):
        xpulab.scan(Blocks([pa.table(FRAME), pa.table(FRAME[["b", "a", "c", "word"]])]))
    with pytest.raises(
        ValueError, match=r"is bool in block 1 of <blocks>, and float64 in block 0 of <blocks>; no dtype"
    ):
        xpulab.scan(Blocks([X, X > 0]))
    with pytest.raises(TypeError, match="returned a int; expected an iterator of blocks"):
        xpulab.scan(lambda: 3)
    with pytest.raises(TypeError, match=r"a generator was given; .*, or a function that returns an iterator"):
        xpulab.scan(block for block in [X])
    array = dask_array()
    with pytest.raises(ValueError, match=r"unknown sizes; type: array\.compute_chunk_sizes"):
        xpulab.scan(array[array[:, 0] > 0])
    with pytest.raises(ValueError, match="expected rows, of 2 dimensions"):
        xpulab.scan(array.reshape(10, 100, 3))


def reader() -> pa.RecordBatchReader:
    """What DuckDB returns, too."""
    return pa.table(FRAME).to_reader(300)


def test_a_stream_is_read_once_and_is_never_taken_for_no_rows() -> None:
    stream = reader()
    scan = xpulab.scan(stream)[["a", "b", "c"]]
    for _ in range(2):  # a later pass has the rows of the first
        np.testing.assert_array_equal(scan.read(), X)
    with pytest.raises(ValueError, match=r"a RecordBatchReader without rows .* read before has no more.*read_all\(\)"):
        xpulab.scan(stream)
    again = xpulab.scan(lambda: iter([pa.table(FRAME[:0]).to_reader(), reader()]))  # a block may have no rows
    np.testing.assert_array_equal(again[["a", "b", "c"]].read(), X)


@pytest.mark.cluster
def test_streams_and_queries_are_refused_with_what_to_type(on_pair: xpulab.XPUCluster) -> None:
    given = {
        r"a RecordBatchReader .*scan\(X\)": reader(),
        r"a LazyFrame .*X\.collect\(\)": pl.LazyFrame({"a": [1.0, 2.0]}),
    }
    for says, rows in given.items():
        for use in (KMeans(2).fit, OneHotEncoder().fit, on_pair.scatter):
            with pytest.raises(TypeError, match=says):
                use(rows)


def test_a_package_adds_a_kind_of_objects() -> None:
    class Cube:
        __cube__ = FRAME

    kinds.register("__cube__", lambda cube: ArrowTable(cube.__cube__))
    assert xpulab.scan(Cube()).columns == ["a", "b", "c", "word"]
