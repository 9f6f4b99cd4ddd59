"""Moments, products, projections, scaled and selected rows, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xpulab.engine.algorithms import lengths, passes, statistics
from xpulab.engine.algorithms.selection import selected
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.engine.registry import TASKS
from xpulab.kernels.row_passes import take

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 4)) * [1, 1e-3, 100, 1] + [0, 5, -3, 1e4]
Y = RNG.normal(size=(500, 2)) + 3
WEIGHTS = RNG.integers(0, 4, 500).astype(np.float64)


def test_the_tasks_are_in_their_modules() -> None:
    assert TASKS["squared_lengths"].__module__ == lengths.__name__
    assert TASKS["moments_of_weighted"].__module__ == statistics.__name__


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-4), (np.float64, 1e-11)])
def test_moments(task: Task, given: Callable[..., Data], dtype: Any, rtol: float, weighted: bool) -> None:
    rows = X.astype(dtype)
    rows[7, 1] = np.nan
    found = passes.moments(task, given(rows, WEIGHTS if weighted else None).rows)
    exact, w = rows.astype(np.float64), np.where(np.isnan(rows), 0, (WEIGHTS if weighted else np.ones(500))[:, None])
    mean = np.nansum(w * exact, axis=0) / w.sum(axis=0)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6 if dtype == np.float32 else 1e-13)
    np.testing.assert_allclose(found.squares, np.nansum(w * (exact - mean) ** 2, axis=0), rtol=rtol)
    np.testing.assert_allclose(found.weight, w.sum(axis=0))
    np.testing.assert_array_equal(found.minimum, np.nanmin(exact, axis=0))
    np.testing.assert_array_equal(found.maximum, np.nanmax(exact, axis=0))


def test_moments_of_columns_whose_squares_leave_float32(task: Task, given: Callable[..., Data]) -> None:
    rows = (RNG.normal(size=(300, 2)) * [1e30, 1e-30]).astype(np.float32)
    found = passes.moments(task, given(rows).rows)
    np.testing.assert_allclose(found.squares, 300 * rows.astype(np.float64).var(axis=0), rtol=1e-5)


def test_a_rough_mean_is_near(task: Task, given: Callable[..., Data]) -> None:
    found = passes.rough_mean(task, given(X).rows)
    assert (abs(found - X.mean(axis=0)) < X.std(axis=0)).all()
    assert not passes.may_be_precise(task, np.dtype(np.float64))


@pytest.mark.parametrize("centre", [False, True])
def test_products_with_targets(task: Task, given: Callable[..., Data], centre: bool) -> None:
    found = passes.products(task, given(X, WEIGHTS, Y), centre)
    mean, target_mean = (np.average(each, axis=0, weights=WEIGHTS) * centre for each in (X, Y))
    away, right = X - mean, Y - target_mean
    assert found.weight == WEIGHTS.sum()
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    for ours, expected in (
        (found.gram, (away.T * WEIGHTS) @ away),
        (found.cross, (away.T * WEIGHTS) @ right),
        (found.target_gram, (right.T * WEIGHTS) @ right),
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-6)
    assert not found.lost


def test_moments_of_rows_times_their_weights(ask: Callable[..., Any]) -> None:
    found = ask("moments_of_weighted", X, weights=WEIGHTS)["moments"]
    np.testing.assert_allclose(found.mean, (X * WEIGHTS[:, None]).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.squares / 500, (X * WEIGHTS[:, None]).var(axis=0), rtol=1e-11)


def test_squared_lengths(ask: Callable[..., Any]) -> None:
    matrix, shift, offset = RNG.normal(size=(4, 3)), X.mean(axis=0), np.array([1.0, 0.0, -2.0])
    _, found = ask("squared_lengths", X, shape=(500,), matrix=matrix, shift=shift, offset=offset)
    np.testing.assert_allclose(found, np.square((X - shift) @ matrix + offset).sum(axis=1), rtol=1e-10)


def test_scaled_and_normalised_rows(ask: Callable[..., Any]) -> None:
    steps: dict[str, Any] = {"shift": X.mean(axis=0), "scale": X.std(axis=0), "factor": np.full(4, 2.0)}
    _, found = ask("scale", X, shape=X.shape, clip=(-1.0, 3.0), **steps)
    np.testing.assert_allclose(found, np.clip(2 * (X - X.mean(axis=0)) / X.std(axis=0), -1, 3), atol=1e-12)
    _, found = ask("normalise", X, shape=X.shape, norm="l1")
    np.testing.assert_allclose(found, X / abs(X).sum(axis=1, keepdims=True), rtol=1e-14)


def test_rows_are_selected_in_any_order(task: Task, given: Callable[..., Data]) -> None:
    chosen = np.array([499, 0, 7, 7, 250])
    made = selected(task, given(X).rows, [0, 500], chosen, [0, 5])
    np.testing.assert_array_equal(take(made, np.arange(5)), X[chosen])
