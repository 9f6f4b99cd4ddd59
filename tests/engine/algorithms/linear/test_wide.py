"""Least squares by an equation for each row, on a rank alone; tests/linear_model/test_wide_models.py has the others."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model

from xpulab.engine.algorithms.linear.wide import by_rows, left_out
from xpulab.engine.algorithms.wide_rows import WideRows, few_rows
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task

RNG = np.random.default_rng(0)
X, Y, WEIGHTS = RNG.normal(size=(12, 40)) + 100, RNG.normal(size=(12, 2)), RNG.uniform(0.5, 2, 12)

ways = pytest.mark.parametrize("exact", [False, True], ids=["products", "triangle"])


@pytest.mark.parametrize(
    ("n_samples", "n_features", "in_passes", "expected"),
    [
        (5, 6, False, True),
        (6, 6, False, False),  # the columns' equations are as few
        (5, 6, True, False),  # all rows are needed at once
        (100_000, 200_000, False, False),  # the products of all rows with each other would take 80 GB
    ],
)
def test_fewer_rows_than_columns_in_memory(n_samples: int, n_features: int, in_passes: bool, expected: bool) -> None:
    data: Any = SimpleNamespace(n_samples=n_samples, n_features=n_features, in_passes=in_passes)
    assert few_rows(data) == expected


@ways
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("penalties", [[0.0, 0.0], [3.0, 3.0], [0.5, 3.0], [0.0, 3.0]], ids=str)
def test_coefficients(
    task: Task, given: Callable[..., Data], centre: bool, penalties: list[float], exact: bool
) -> None:
    rows = WideRows.of(task, given(X, WEIGHTS, Y), centre)
    found = by_rows(rows, np.array(penalties), 1e-12, exact)
    assert found is not None
    assert found.exact == exact or not centre  # rows far from zero are nearly parallel
    root = np.sqrt(WEIGHTS)
    for target, penalty in enumerate(penalties):
        y = Y[:, target]
        mean, y_mean = (np.average(each, 0, WEIGHTS) if centre else 0.0 for each in (X, y))
        if penalty:
            theirs = sklearn.linear_model.Ridge(penalty, fit_intercept=centre, solver="svd").fit(X, y, WEIGHTS)
            coef, intercept = theirs.coef_, theirs.intercept_
        else:  # scikit-learn before 1.7 keeps singular values that are nothing but rounding
            coef = np.linalg.lstsq(root[:, None] * (X - mean), root * (y - y_mean), rcond=1e-12)[0]
            intercept = y_mean - np.sum(mean * coef)
        np.testing.assert_allclose(found.coef[:, target], coef, rtol=1e-9, atol=1e-9)
        ours = found.target_mean[target] - found.mean @ found.coef[:, target]
        np.testing.assert_allclose(ours, intercept, rtol=1e-8, atol=1e-8)


@ways
@pytest.mark.parametrize("centre", [False, True])
def test_rows_that_are_left_out(task: Task, given: Callable[..., Data], centre: bool, exact: bool) -> None:
    penalties = np.array([1e-9, 7.0])  # of the smaller, the leverages are 1 up to rounding
    found = left_out(WideRows.of(task, given(X - 100, None, Y), centre), penalties, exact)
    assert found is not None
    for p, penalty in enumerate(penalties):
        for row in (0, 11):
            others = np.arange(12) != row
            model = sklearn.linear_model.Ridge(penalty, fit_intercept=centre, solver="svd")
            model.fit(X[others] - 100, Y[others])
            expected = Y[row] - model.predict(X[row : row + 1] - 100)[0]
            np.testing.assert_allclose(found.residual[row, :, p], expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_numbers_whose_squares_are_out_of_range_are_left_to_other_methods(
    task: Task, given: Callable[..., Data], scale: float
) -> None:
    rows = WideRows.of(task, given(X * scale, None, Y), True)
    assert by_rows(rows, np.zeros(2), 1e-12, False) is None
    assert left_out(rows, np.ones(1), False) is None
