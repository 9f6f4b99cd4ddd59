from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xpulab.data import Outgoing, bounds_of, known_finite
from xpulab.memory import BlockPool, SharedBlock


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_large_array_is_known_to_be_finite_or_not(dtype: Any, order: Any, value: float) -> None:
    X = np.asarray(np.random.default_rng(0).random((400_001, 14)), dtype, order=order)
    assert known_finite(X)
    for row in (0, 200_000, 400_000):
        X[row, 13] = value
        assert not known_finite(X)
        X[row, 13] = 1


def test_what_is_not_known_is_not_said() -> None:
    large = np.full((400_000, 14), np.finfo(np.float32).max, np.float32)
    for X in (large, np.ones((400_000, 14), int), np.ones((10, 2)), [[1.0]], np.ones(6_000_000)):
        assert not known_finite(X)


@pytest.mark.parametrize("counts", [None, [0, 700_001, 0], [5, 300_000, 399_996]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_rank_gets_a_block_with_its_rows(order: Any, counts: list[int] | None) -> None:
    X = np.asarray(np.random.default_rng(0).random((700_001, 7)), order=order)
    bounds = bounds_of(len(X), 3, counts)
    pool = BlockPool()
    for _ in range(2):  # the second time in the same memory
        with Outgoing(pool) as outgoing:
            source = outgoing.send_rows(X, bounds)
            for path, first, last in zip(source["parts"], bounds, bounds[1:], strict=False):
                with SharedBlock.open(path) as block:
                    rows = block.array((last - first, 7), source["dtype"])
                    np.testing.assert_array_equal(rows, X[first:last])
            del rows
        assert X.nbytes - 300 < pool.nbytes < X.nbytes + 100  # what is small is not kept
    pool.clear()


def test_after_an_error_nothing_waits_for_the_next_call() -> None:
    pool = BlockPool()

    def fail() -> None:
        with Outgoing(pool) as outgoing:
            outgoing.send(np.ones(1 << 18))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert pool.nbytes == 0


def test_what_is_kept_is_the_callers() -> None:
    pool = BlockPool()
    with Outgoing(pool) as outgoing:
        outgoing.send(np.ones(1 << 18))
        (block,) = outgoing.keep()
    assert pool.nbytes == 0
    assert block.array((1 << 18,), np.float64).all()
    block.close()
