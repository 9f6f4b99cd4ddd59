"""The power of two by which rows of very large or small numbers are divided."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpulab

pytestmark = pytest.mark.cluster


def unit(here: Any, rows: np.ndarray, least: float) -> float:
    """On an engine: return the unit of rows of which each rank has every second one."""
    from xpulab.engine.algorithms.clustering.ranges import unit_of
    from xpulab.kernels.rows import Rows

    return unit_of(here.task, Rows.upload(here.device, rows[here.rank :: 2]), least)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_divided_by_a_power_of_two_if_their_squares_leave_the_range(
    pair: xpulab.XPUCluster, dtype: Any
) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 3)).astype(dtype)
    far = np.finfo(dtype).maxexp - 20
    assert pair.run(unit, rows, 0.0) == [1.0, 1.0]
    assert pair.run(unit, np.zeros_like(rows), 0.0) == [1.0, 1.0]
    for exponent in (far, -far):
        (found, same), scaled = pair.run(unit, np.ldexp(rows, exponent), 0.0), np.ldexp(rows, exponent)
        assert found == same
        assert np.frexp(found)[0] == 0.5
        assert 0.25 <= np.abs(scaled).max() / found < 1
    assert pair.run(unit, rows, 2.0**far)[0] == 2.0 ** (far + 1)


def limits(here: Any, dtype: Any) -> list[bool]:
    """On an engine: say which numbers are ordinary."""
    from xpulab.engine.algorithms.clustering.ranges import largest_of, ordinary

    most = largest_of(np.dtype(dtype))
    return [ordinary(size, np.dtype(dtype)) for size in (0.9 * most, 1.1 * most, 1.1 / most, 0.9 / most)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_ordinary_numbers_have_squares_in_the_middle_of_the_range(pair: xpulab.XPUCluster, dtype: str) -> None:
    assert pair.run(limits, dtype)[0] == [True, False, True, False]
