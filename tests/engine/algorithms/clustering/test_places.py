"""Where rows are in the plane of two features, against NumPy and matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.path import Path

from xpulab.engine.algorithms.clustering.places import first_rows, nearest_pixel, rows_inside
from xpulab.engine.engine import Task
from xpulab.kernels.rows import Rows

X = np.random.default_rng(0).normal(size=(3000, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_first_row_of_each_pixel(task: Task, dtype: Any) -> None:
    rows = Rows.upload(task.device, X.astype(dtype))
    found = first_rows(rows, (2, 0), (-1.0, -2.0), (1.0, 2.0), (20, 30))
    expected = np.full((20, 30), -1)
    low, scale = np.array([-1, -2], dtype), np.array([30, 20], dtype) / np.array([2, 4], dtype)
    for number, (x, y) in reversed(list(enumerate((X.astype(dtype)[:, [2, 0]] - low) * scale))):
        if 0 <= x < 30 and 0 <= y < 20:
            expected[int(y), int(x)] = number
    np.testing.assert_array_equal(found, expected)
    assert (found == -1).any()
    assert (first_rows(rows, (0, 0), (50.0, 50.0), (51.0, 51.0), (4, 4)) == -1).all()


def test_a_rank_without_rows_has_none_in_the_picture_and_in_a_shape(task: Task) -> None:
    rows = Rows.upload(task.device, X[:0])
    assert (first_rows(rows, (0, 1), (0.0, 0.0), (1.0, 1.0), (4, 5)) == -1).all()
    assert rows_inside(rows, (0, 1), np.array([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])).shape == (0,)


def test_the_nearest_pixel_with_rows() -> None:
    first = np.full((20, 30), -1)
    first[3, 4], first[18, 29] = 7, 9
    assert nearest_pixel(first, 4.5, 3.5, 12) == (0.0, 3, 4)
    assert nearest_pixel(first, 9.5, 3.5, 5) == (25.0, 3, 4)
    assert nearest_pixel(first, 9.6, 3.5, 5) is None
    assert nearest_pixel(first, 31.0, 20.0, 12) == (1.5**2 + 1.5**2, 18, 29)
    for x, y in ((1e30, 0.0), (-1e30, 5.0), (0.0, 1e30), (-40.0, -40.0)):
        assert nearest_pixel(first, x, y, 12) is None


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_corners", [3, 4, 7, 60])
@pytest.mark.parametrize("size", [0.3, 2.0, 40.0])
def test_rows_inside_of_any_shape(task: Task, dtype: Any, n_corners: int, size: float) -> None:
    """The sides of such a shape cross each other; small ones have no rows in most cells, and large ones all rows."""
    rows, given = Rows.upload(task.device, X.astype(dtype)), X.astype(dtype).astype(np.float64)[:, [1, 2]]
    for seed in range(5):
        corners = np.random.default_rng(seed).normal(0, size, (n_corners, 2))
        turning = np.concatenate([[0], np.cumsum(np.random.default_rng(seed).normal(0, size, n_corners - 1))])
        for shape in (corners, np.column_stack([turning, corners[:, 1]])):
            found = rows_inside(rows, (1, 2), shape)
            # The even-odd rule: the sum of how often the shape's triangles with its first corner contain the row.
            triangles = [shape[[0, i, i + 1]] for i in range(1, n_corners - 1)]
            times = sum(Path(each).contains_points(given).astype(int) for each in triangles)
            np.testing.assert_array_equal(found, times % 2 == 1)


def test_a_shape_without_area_has_no_rows_inside(task: Task) -> None:
    rows = Rows.upload(task.device, np.tile([[0.5, 0.5]], (300, 1)))
    flat = ([(0, 0), (0, 0), (0, 0)], [(0, 0), (1, 0), (2, 0)], [(0, 0), (0, 1), (0, 2)], [(0, 1), (1, 0), (0, 1)])
    for shape in flat:
        assert not rows_inside(rows, (0, 1), np.array(shape, np.float64)).any()
    assert rows_inside(rows, (0, 1), np.array([(0, 0), (1, 0), (1, 1), (0, 1)], np.float64)).all()
