"""The tasks of isolation forests on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xpulab.engine.algorithms.forests import isolation
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import SharedArray

X = np.arange(60.0, dtype=np.float32).reshape(20, 3)


def lent(values: np.ndarray) -> tuple[SharedBlock, SharedArray]:
    block = SharedBlock.create(values.nbytes)
    block.write(values, 0)
    return block, SharedArray(block.path, values.shape, values.dtype)


def test_rows_by_their_numbers(ask: Callable[..., Any]) -> None:
    assert isolation.__doc__
    block, chosen = lent(np.array([0, 7, 19]))
    with block:
        found = ask("isolation.rows", X, chosen=chosen)
    assert found["rows"] == 20
    np.testing.assert_array_equal(found["drawn"].reshape(3, 3), X[[0, 7, 19]])


def test_the_percentile_of_scores(ask: Callable[..., Any]) -> None:
    """A tree with one split: 15 rows have depth 1, and 5 have depth 3."""
    nodes = np.array([[1, 2, 0, 0], [1, 1, 0, 0], [2, 2, 0, 1]], np.int32)
    nodes[0, 3:].view(np.float32)[0] = 44.0
    blocks, sent = zip(*map(lent, (nodes, np.array([0]), np.array([[1.0], [3.0]]))), strict=True)
    forest = dict(zip(("nodes", "roots", "values"), sent, strict=True))
    scores = np.sort(np.r_[np.full(15, -(2**-0.5)), np.full(5, -(2**-1.5))])
    for share in (0.0, 30.0, 76.0, 100.0):
        found = ask("isolation.percentile", X, forest="a forest", sent=forest, unit=2.0, share=share)
        assert found["percentile"] == pytest.approx(np.percentile(scores, share))
    for block in blocks:
        block.close()
