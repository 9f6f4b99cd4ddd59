from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpulab.data import Outgoing, looked_at_later
from xpulab.sharing.memory import BlockPool, SharedBlock
from xpulab.sharing.sources import SharedRows, bounds_of


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_found_while_rows_are_copied(dtype: Any, order: Any, value: float) -> None:
    X = np.asarray(np.random.default_rng(0).random((400_001, 14)), dtype, order=order)
    doubts: list[int] = []
    with Outgoing() as outgoing:

        def send() -> int:
            doubts.clear()
            outgoing.send_rows(X, bounds_of(len(X), 3), lambda: doubts.append(1))
            outgoing.drop()
            return len(doubts)

        assert looked_at_later(X)
        assert send() == 0
        for row in (0, 200_000, 400_000):
            X[row, 13] = value
            assert send() == 1
            X[row, 13] = 1
        X[:] = np.finfo(dtype).max  # the values are finite, and their sum is not
        assert send() == 1


def test_after_an_error_of_the_check_no_block_is_kept() -> None:
    def refuse() -> None:
        raise ValueError("Input X contains NaN.")

    pool = BlockPool()
    with pytest.raises(ValueError, match="contains NaN"), Outgoing(pool) as outgoing:
        outgoing.send_rows(np.full((400_000, 14), np.nan), [0, 200_000, 400_000], refuse)
    assert pool.nbytes == 0


def test_small_arrays_and_other_dtypes_are_checked_before_the_copy() -> None:
    for X in (np.ones((400_000, 14), int), np.ones((10, 2)), [[1.0]], np.ones(6_000_000)):
        assert not looked_at_later(X)


@pytest.mark.parametrize("counts", [None, [0, 700_001, 0], [5, 300_000, 399_996]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_rank_gets_a_block_with_its_rows(order: Any, counts: list[int] | None) -> None:
    X = np.asarray(np.random.default_rng(0).random((700_001, 7)), order=order)
    bounds = bounds_of(len(X), 3, counts)
    pool = BlockPool()
    for _ in range(2):  # the second time in the same memory
        with Outgoing(pool) as outgoing:
            source = outgoing.send_rows(X, bounds)
            assert isinstance(source, SharedRows)
            for path, first, last in zip(source.paths, bounds, bounds[1:], strict=False):
                with SharedBlock.open(path) as block:
                    rows = block.array((last - first, 7), source.dtype)
                    np.testing.assert_array_equal(rows, X[first:last])
            del rows
        assert X.nbytes - 300 < pool.nbytes < X.nbytes + 100  # small blocks are not kept
    pool.clear()


def test_after_an_error_no_block_is_kept_for_the_next_call() -> None:
    pool = BlockPool()

    def fail() -> None:
        with Outgoing(pool) as outgoing:
            outgoing.send(np.ones(1 << 18))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert pool.nbytes == 0


def test_a_kept_block_belongs_to_the_caller() -> None:
    pool = BlockPool()
    with Outgoing(pool) as outgoing:
        outgoing.send(np.ones(1 << 18))
        (block,) = outgoing.keep()
    assert pool.nbytes == 0
    assert block.array((1 << 18,), np.float64).all()
    block.close()
