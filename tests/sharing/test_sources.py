"""Columns of all ranks' rows, read where the rows are."""

from __future__ import annotations

import numpy as np
import pytest

from xpulab.data import Outgoing
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.process_memory import ProcessMemory
from xpulab.sharing.sources import HandleRows, ProcessRows, ResultRows, SharedArray, SharedRows

X = np.random.default_rng(0).normal(size=(7, 20))
BOUNDS = [0, 0, 3, 7]


@pytest.mark.parametrize(("first", "last"), [(0, 20), (3, 4), (5, 17), (20, 20)])
def test_columns_of_rows_in_memory(first: int, last: int) -> None:
    with Outgoing() as outgoing, SharedBlock.create(X.nbytes) as block:
        block.write(X, 0)
        shared = outgoing.send_rows(X, BOUNDS)
        result = ResultRows(X.shape, X.dtype, BOUNDS, SharedArray(block.path, X.shape, X.dtype))
        own = ProcessRows(X.shape, X.dtype, BOUNDS, ProcessMemory.of(X))
        assert isinstance(shared, SharedRows)
        for source in (shared, result, own):
            found = source.read_columns(first, last)
            assert found.flags.c_contiguous
            assert found.flags.writeable
            np.testing.assert_array_equal(found, X[:, first:last])


def test_rows_that_are_elsewhere_have_no_columns_to_read() -> None:
    assert HandleRows(X.shape, X.dtype, BOUNDS, "a handle").read_columns(0, 1) is None
