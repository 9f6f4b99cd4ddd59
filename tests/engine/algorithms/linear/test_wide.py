"""When the equations of the rows are solved; tests/linear_model/test_linear.py compares the coefficients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xpulab.engine.algorithms.linear.wide import few_enough


@pytest.mark.parametrize(
    ("n_samples", "n_features", "penalties", "in_passes", "expected"),
    [
        (5, 6, [1.0, 2.0], False, True),
        (6, 6, [1.0], False, False),  # the columns' equations are as few
        (5, 6, [1.0, 0.0], False, False),  # without a penalty, the shortest of many solutions is asked for
        (5, 6, [1.0], True, False),  # all rows are needed at once
        (100_000, 200_000, [1.0], False, False),  # the products of all rows with each other would take 80 GB
    ],
)
def test_fewer_rows_than_columns_and_a_penalty_for_each_target(
    n_samples: int, n_features: int, penalties: list[float], in_passes: bool, expected: bool
) -> None:
    data: Any = SimpleNamespace(n_samples=n_samples, n_features=n_features, in_passes=in_passes)
    assert few_enough(data, np.array(penalties)) == expected
