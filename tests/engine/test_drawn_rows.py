"""The rows that are drawn for a tree, against scikit-learn's functions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble._forest import _generate_sample_indices
from sklearn.utils.class_weight import compute_sample_weight

from xpulab import XPUCluster

pytestmark = pytest.mark.cluster

DRAWN_BY_WEIGHT = "sample_weight" in inspect.signature(_generate_sample_indices).parameters
N = 40
SHARES = np.random.default_rng(0).integers(0, 4, N).astype(np.float64)


def _on_a_rank(_: Any, *arguments: Any) -> np.ndarray:
    """On an engine: return the weights of all rows for one tree."""
    from xpulab.engine.algorithms.forests.forest import drawn_weights

    return drawn_weights(*arguments)


@pytest.mark.parametrize("shares", [None, SHARES], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("draws", [3, N])
def test_rows_are_drawn_and_weighted_as_scikit_learn_does(
    pair: XPUCluster, draws: int, balanced: bool, outputs: int, shares: np.ndarray | None
) -> None:
    y = np.random.default_rng(1).integers(0, 5, (N, outputs)).astype(np.float64)
    for seed in range(3):
        indices = _generate_sample_indices(seed, N, draws, *([shares] if DRAWN_BY_WEIGHT else []))
        expected = np.bincount(indices, minlength=N).astype(np.float64)
        if shares is not None and not DRAWN_BY_WEIGHT:
            expected *= shares
        if balanced:
            expected *= compute_sample_weight("balanced", y, indices=indices)
        for found in pair.run(_on_a_rank, seed, N, draws, shares, DRAWN_BY_WEIGHT, balanced, y):
            np.testing.assert_array_equal(found, expected)


def test_counts_may_be_multiplied_by_the_weights(pair: XPUCluster) -> None:
    arguments = (False, False, np.zeros((N, 1)))
    counts = pair.run(_on_a_rank, 0, N, N, None, *arguments)[0]
    np.testing.assert_array_equal(pair.run(_on_a_rank, 0, N, N, SHARES, *arguments)[0], counts * SHARES)


@pytest.mark.parametrize("shares", [None, SHARES], ids=["unweighted", "weighted"])
def test_without_a_draw_a_tree_gets_all_rows(pair: XPUCluster, shares: np.ndarray | None) -> None:
    found = pair.run(_on_a_rank, 0, N, None, shares, True, False, np.zeros((N, 1)))[0]
    np.testing.assert_array_equal(found, np.ones(N) if shares is None else shares)
