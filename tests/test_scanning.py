"""What a scan tells of its files, and how columns and rows are chosen from it; nothing is computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import xpulab
from xpulab.scanning import Scan
from xpulab.sources.source import Column, Fill, RowSource

TABLE = pd.DataFrame({"a": np.arange(50.0), "b": np.arange(50) % 7, "<s>": ["x"] * 50})


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    TABLE.to_parquet(tmp_path / "one.parquet", row_group_size=20)
    TABLE.to_parquet(tmp_path / "two.parquet", row_group_size=20)
    return xpulab.scan(tmp_path / "*.parquet")


def test_it_tells_columns_dtypes_rows_files_and_size_and_reads_nothing(scan: Scan) -> None:
    assert xpulab.scan(scan.files, columns=["b"]).columns == ["b"]
    for path in scan.files:  # what it tells needs no rows
        Path(path).unlink()
    assert (scan.shape, len(scan), scan.ndim, scan.columns) == ((100, 3), 100, 2, ["a", "b", "<s>"])
    assert list(scan.dtypes.values())[:2] == ["float64", "int64"]
    assert scan.dtype == object
    assert scan[["a", "b"]].dtype == np.float64
    assert scan[["a", "b"]].nbytes == 1600
    for said in ("shape=(100, 3)", "a: float64", "b: int64", "2 files of", "one.parquet and others"):
        assert said in repr(scan)
    page = scan._repr_html_()
    assert "100 rows, 3 columns" in page
    assert "&lt;s&gt;" in page
    assert "<s>" not in page
    assert [Path(path).name for path in scan.files] == ["one.parquet", "two.parquet"]


def test_columns_and_rows_are_chosen_as_in_a_frame(scan: Scan) -> None:
    frame = pd.concat([TABLE, TABLE], ignore_index=True)
    for chosen, expected in (
        (scan[["b", "a"]], frame[["b", "a"]]),
        (scan["b"], frame["b"]),
        (scan[["a", "b"]][30:-30], frame[["a", "b"]][30:-30]),
        (scan[90:][["a"]][:-3], frame[["a"]][90:-3]),
        (scan["<s>"], frame["<s>"]),
        (scan[9:3][["a"]], frame[["a"]][9:3]),
    ):
        assert chosen.shape == expected.shape
        np.testing.assert_array_equal(chosen.read(), expected.to_numpy())
    numbers = np.array([77, 3, -1, 3])
    np.testing.assert_array_equal(scan[["a", "b"]][5:][numbers], frame[["a", "b"]][5:].to_numpy()[numbers])
    np.testing.assert_array_equal(scan["a"].head(3), [0, 1, 2])
    np.testing.assert_array_equal(np.asarray(scan["b"]), frame["b"])


def test_what_cannot_be_chosen_or_read_is_said(scan: Scan, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no column 'c'; the columns are a, b, <s>"):
        scan["c"]
    for key in (3, slice(None, None, 2), "a"):
        with pytest.raises(IndexError, match="expected"):
            scan["a"][key]
    for call in (np.asarray, FunctionTransformer(np.log1p).fit_transform):
        with pytest.raises(TypeError, match=r"whose rows were not read; .* pass X\.read\(\), or cluster\.scatter\(X\)"):
            call(scan)
    with pytest.raises(TypeError, match=r"pass X\.read\(\)"):
        StandardScaler().fit(scan[["a", "b"]])
    with pytest.raises(ValueError, match=r"No numbers in X: column '<s>' .*OneHotEncoder"):
        scan.require_numbers()
    np.save(tmp_path / "x.npy", np.ones((5, 2), "f4"))
    with pytest.raises(TypeError, match=r"a csr_array was given; pass it to the estimator itself, or c\.scatter\(X\)"):
        xpulab.scan(scipy.sparse.csr_array(np.eye(3)))
    unnamed = xpulab.scan(tmp_path / "x.npy")
    assert (unnamed.columns, unnamed.dtype) == (None, np.float32)
    with pytest.raises(KeyError, match="no names"):
        unnamed["a"]


class Blocks(RowSource):
    def __init__(self, blocks: list[int]) -> None:
        self.borders = blocks

    n_rows = property(lambda self: self.borders[-1])
    columns = (Column("a", "float64", np.dtype("f8")),)
    blocks = property(lambda self: self.borders)

    def reading(self, start: int, stop: int, columns: object) -> Fill:  # type: ignore[override]
        raise AssertionError("nothing is read")


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 7), st.floats(0, 1), st.floats(0, 1))
def test_the_bounds_of_ranks_are_borders_of_blocks_where_this_moves_few_rows(
    sizes: list[int], size: int, one: float, other: float
) -> None:
    source = Blocks([0, *np.cumsum(sizes, dtype=int).tolist()])
    first, last = sorted(int(share * source.n_rows) for share in (one, other))
    bounds = Scan(source, bounds=(first, last)).bounds_for(size)
    n = last - first
    assert (bounds[0], bounds[-1], len(bounds)) == (0, n, size + 1)
    assert bounds == sorted(bounds)
    for rank, bound in enumerate(bounds):
        even = n * rank // size
        near = min((abs(block - first - even) for block in source.blocks if first <= block <= last), default=n)
        if near <= 0.09 * n / size:
            assert abs(bound - even) <= 0.1 * n / size
            assert bound + first in (*source.blocks, first, last)


def test_columns_and_rows_that_are_not_there_are_refused_in_words() -> None:
    table = xpulab.scan(TABLE[["a"]][:3])
    with pytest.raises(IndexError, match=r"no column was asked of Scan.*; expected names, X\[\['a', 'b'\]\]"):
        table[[]]
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=rf"row {wrong} was asked of Scan.*; expected numbers below 3"):
            table[np.array([0, wrong])]
    assert table[np.array([-1, 0])].tolist() == [[2.0], [0.0]]


def test_a_column_may_have_an_empty_name() -> None:
    scan = xpulab.scan(pl.DataFrame({"": [1.0, 2.0], "b": [3.0, 4.0]}))
    assert scan[""].columns == [""]
    np.testing.assert_array_equal(scan[["b", ""]].read(), [[3, 1], [4, 2]])
    with pytest.raises(IndexError, match="no column was asked"):
        scan[[]]
