"""The two values between which each quantile of a column lies, over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpulab

pytestmark = pytest.mark.cluster

FRACTIONS = [0.0, 0.1, 0.5, 0.75, 1.0]


def found(here: Any, rows: np.ndarray, cut: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """On an engine: return the neighbours of the quantiles; rank 0 has the rows up to `cut`."""
    from xpulab.engine.algorithms.quantiles import neighbours
    from xpulab.kernels.rows import Rows

    mine = rows[:cut] if here.rank == 0 else rows[cut:]
    return neighbours(here.task, Rows.upload(here.device, mine), [0.0, 0.1, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_the_neighbours_are_those_of_numpy(pair: xpulab.XPUCluster, dtype: Any, cut: int) -> None:
    rows = np.random.default_rng(0).normal(size=(101, 3)).astype(dtype)
    rows[::7, 1] = np.nan
    rows[:, 2] = np.nan
    for lower, upper, between in pair.run(found, rows, cut):
        assert lower.dtype == upper.dtype == dtype
        assert np.isnan(lower[:, 2]).all()
        low, high = (np.nanquantile(rows[:, :2], FRACTIONS, axis=0, method=method) for method in ("lower", "higher"))
        np.testing.assert_array_equal(lower[:, :2], low)
        exact = np.nanquantile(rows[:, :2].astype(np.float64), FRACTIONS, axis=0)
        np.testing.assert_allclose((lower + between * (upper.astype(np.float64) - lower))[:, :2], exact, rtol=1e-12)
        np.testing.assert_array_equal(np.where(between > 0, upper, lower)[:, :2], high)
