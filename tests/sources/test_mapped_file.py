"""A mapped file as a source of rows: any rows and columns of it, into arrays of any layout."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xpulab.sources.mapped import MappedFile, mapped

X = np.random.default_rng(0).normal(size=(257, 5))


def opened(folder: Path, order: str, dtype: str = "float64") -> MappedFile:
    np.save(folder / "X.npy", np.asarray(X, dtype, order=order))  # type: ignore[call-overload]
    found = mapped(np.load(folder / "X.npy", mmap_mode="r"))
    assert found is not None
    return found


@given(
    bounds=st.lists(st.integers(0, len(X)), min_size=2, max_size=2),
    columns=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    blocks=st.integers(1, 4),
    order=st.sampled_from("CF"),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_and_columns_are_read_in_c_order_by_columns_and_in_blocks(
    tmp_path: Path, bounds: list[int], columns: list[int], blocks: int, order: str, dtype: str
) -> None:
    start, stop = sorted(bounds)
    source = pickle.loads(pickle.dumps(opened(tmp_path, order, dtype)))
    expected = X.astype(dtype)[start:stop, columns]
    n, d = expected.shape
    with source.reading(start, stop, columns) as fill:
        rows, by_columns = np.empty((n, d)), np.empty((d, n)).T
        fill(0, rows)
        fill(0, by_columns)
        size = n // blocks
        in_blocks = np.empty((blocks, d, size))
        fill(n - blocks * size, in_blocks.transpose(0, 2, 1))
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(by_columns, expected)
    last = expected[n - blocks * size :].reshape(blocks, size, d)
    np.testing.assert_array_equal(in_blocks.transpose(0, 2, 1), last)


def test_it_says_what_it_has_and_that_the_file_has_changed(tmp_path: Path) -> None:
    source = opened(tmp_path, "C", "float32")
    assert (source.n_rows, len(source.columns), source.blocks) == (257, 5, (0, 257))
    assert source.columns[0].numeric == np.float32
    assert source.files == (str(tmp_path / "X.npy"),)
    os.utime(tmp_path / "X.npy", ns=(1, 1))
    with pytest.raises(ValueError, match="was written to or replaced"), source.reading(0, 9, range(5)):
        pass
    with source.on_this_host().reading(0, 9, range(5)) as fill:
        fill(0, rows := np.empty((9, 5)))
    np.testing.assert_array_equal(rows, X[:9].astype("f4"))
