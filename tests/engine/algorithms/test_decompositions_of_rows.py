"""The randomized singular value decomposition, the moments of classes, and quadratic forms, against references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.naive_bayes

from xpulab.engine.algorithms.naive_bayes import gaussian
from xpulab.engine.algorithms.randomized import Range, with_unit_columns
from xpulab.engine.algorithms.wide_rows import WideRows
from xpulab.engine.algorithms.wide_svd import randomized_components
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.engine.registry import TASKS
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6)) * np.logspace(0, -2, 6) + 4


@pytest.mark.parametrize("shape", [(300, 6), (5, 6)], ids=["tall", "wide"])
def test_singular_values_and_vectors_of_centred_rows(
    task: Task, given: Callable[..., Data], shape: tuple[int, int]
) -> None:
    rows, k = X[: shape[0]], 4
    mean = rows.mean(axis=0)
    matrix = Range(task, given(rows).rows, mean)
    singular, right, left = matrix.svd(RNG.normal(size=(min(shape), min(shape))), k, 7, [0, len(rows)])
    expected = np.linalg.svd(rows - mean, full_matrices=False)
    np.testing.assert_allclose(singular, expected[1][:k], rtol=1e-9)
    np.testing.assert_allclose(abs(right), abs(expected[2][:k]), atol=1e-7)
    assert (right[np.arange(k), abs(right).argmax(axis=1)] > 0).all()
    np.testing.assert_allclose(
        (take(left(), np.arange(len(rows))) * singular) @ right, (rows - mean) @ right.T @ right, atol=1e-9
    )


def test_products_with_the_matrix_and_orthonormal_columns(task: Task, given: Callable[..., Data]) -> None:
    mean, by, tall = X.mean(axis=0), RNG.normal(size=(6, 2)), RNG.normal(size=(300, 2))
    matrix = Range(task, given(X).rows, mean)
    np.testing.assert_allclose(take(matrix.times(by), np.arange(300)), (X - mean) @ by, atol=1e-12)
    uploaded = Rows.upload(task.device, tall)
    np.testing.assert_allclose(matrix.transposed_times(uploaded, tall.sum(axis=0)), (X - mean).T @ tall, atol=1e-10)
    basis = take(matrix.orthonormal(Rows.upload(task.device, tall * [1, 1e-5])), np.arange(300))
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-12)


def test_quadratic_forms(ask: Callable[..., Any]) -> None:
    shift, matrix, factors = X.mean(axis=0), RNG.normal(size=(6, 2)), np.array([3.0, -0.5])
    _, found = ask("quadratic_forms", X, shape=(300,), shift=shift, matrix=matrix, factors=factors, constant=1.5)
    np.testing.assert_allclose(found, ((X - shift) @ matrix) ** 2 @ factors + 1.5, rtol=1e-10)


@pytest.mark.parametrize(("n_components", "expected"), [(0, 1), (3, 3), (5, 5), (0.5, 2)], ids=str)
def test_as_many_components_of_few_rows_as_are_asked_for(
    ask: Callable[..., Any], n_components: float, expected: int
) -> None:
    """Of a share of the variance, one more is returned."""
    found, rows = ask("wide_svd", X[:5], n_components=n_components), X[:5] - X[:5].mean(axis=0)
    np.testing.assert_allclose(found["singular"], np.linalg.svd(rows, compute_uv=False), atol=1e-12)
    np.testing.assert_allclose(found["mean"], X[:5].mean(axis=0))
    right = found["right"]
    assert len(right) == expected
    np.testing.assert_allclose(right @ right.T, np.eye(expected), atol=1e-12)
    lengths = np.linalg.norm(rows @ right.T, axis=0)
    np.testing.assert_allclose(lengths, found["singular"][:expected], atol=1e-12)


def test_a_randomized_decomposition_of_few_rows_begins_with_the_matrix_that_is_given(
    task: Task, given: Callable[..., Data]
) -> None:
    """Without iterations, the result depends on the matrix, and is that of the rows themselves."""
    rows, start = RNG.normal(size=(20, 50)), RNG.normal(size=(20, 4))
    away = rows - rows.mean(axis=0)
    found = randomized_components(WideRows.of(task, given(rows), True), start, 3, 0)
    assert found is not None
    singular, right, left = found
    basis = np.linalg.qr(away.T @ start)[0]
    expected = np.linalg.svd(basis.T @ away.T, full_matrices=False)
    np.testing.assert_allclose(singular, expected[1][:3], rtol=1e-10)
    np.testing.assert_allclose(abs(right), abs(basis @ expected[0]).T[:3], atol=1e-10)
    np.testing.assert_allclose(abs(left), abs(expected[2][:3]).T, atol=1e-10)
    assert (right[np.arange(3), abs(right).argmax(axis=1)] > 0).all()


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_rows_whose_squares_are_out_of_range_have_a_triangle(ask: Callable[..., Any], scale: float) -> None:
    found = ask("wide_svd", X[:5] * scale, n_components=2)
    assert "right" not in found
    assert found["r"].shape == (5, 6)


@pytest.mark.parametrize("scale", [1, 1e-3, 1e-6, 0])
def test_long_columns_are_made_orthonormal(scale: float) -> None:
    """Also columns of different sizes, of which two are nearly or quite the same."""
    tall = RNG.normal(size=(40_000, 30)) * np.logspace(0, 1, 30)
    tall[:, 3] = tall[:, 4] + scale * tall[:, 3]
    found = with_unit_columns(tall)
    np.testing.assert_allclose(found.T @ found, np.eye(30), atol=1e-14)
    np.testing.assert_allclose(found @ (found.T @ tall), tall, atol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_and_predictions_of_classes(ask: Callable[..., Any], weighted: bool) -> None:
    assert TASKS["GaussianNB.fit"].__module__ == gaussian.__name__
    y, weights = RNG.integers(0, 3, 300).astype(np.float64), RNG.uniform(0.5, 2, 300) if weighted else None
    rows = X + y[:, None]
    theirs = sklearn.naive_bayes.GaussianNB(var_smoothing=0).fit(rows, y, weights)
    found = ask("GaussianNB.fit", rows, weights=weights, targets=y, known=np.arange(3.0), n_classes=3)
    np.testing.assert_allclose(found["weight"], theirs.class_count_, rtol=1e-12)
    np.testing.assert_allclose(found["mean"], theirs.theta_, rtol=1e-12)
    np.testing.assert_allclose(found["squares"] / found["weight"][:, None], theirs.var_, rtol=1e-9)
    assert found["variance"] == pytest.approx(rows.var(axis=0).max())
    constants = np.log(theirs.class_prior_) - 0.5 * np.log(2 * np.pi * theirs.var_).sum(axis=1)
    how: dict[str, Any] = {"constants": constants, "means": theirs.theta_, "factors": 1 / np.sqrt(theirs.var_)}
    for kind, expected in (
        ("joint", theirs.predict_joint_log_proba(rows)),
        ("log_proba", theirs.predict_log_proba(rows)),
        ("proba", theirs.predict_proba(rows)),
    ):
        _, result = ask("GaussianNB.predict", rows, shape=(300, 3), kind=kind, **how)
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)
    _, labels = ask("GaussianNB.predict", rows, shape=(300,), dtype=np.int64, kind="label", **how)
    np.testing.assert_array_equal(labels, theirs.predict(rows))
