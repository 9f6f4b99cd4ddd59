"""The nearest of a rank's rows, and those within a limit, against all distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from xpulab.engine.algorithms import neighbors  # noqa: F401 -- registers the task
from xpulab.engine.dataset import Data
from xpulab.engine.registry import TASKS
from xpulab.kernels.exact_neighbors import Metric, nearest_of, within_of
from xpulab.kernels.neighbors import Index, normalised
from xpulab.sharing.memory import SharedBlock
from xpulab.sharing.sources import SharedArray, Target

RNG = np.random.default_rng(0)
NAMES = {"euclidean": "sqeuclidean", "manhattan": "cityblock", "chebyshev": "chebyshev", "cosine": "cosine"}


def rows_and_queries(dtype: Any, d: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    X, Q = (RNG.normal(size=(n, d)).astype(dtype) for n in (400, 30))
    return (normalised(X), normalised(Q).astype(np.float64)) if name == "cosine" else (X, Q.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [3, 40])  # with many columns, products find the candidates
@pytest.mark.parametrize("name", NAMES)
def test_the_nearest_rows(given: Callable[..., Data], name: str, d: int, dtype: Any) -> None:
    X, Q = rows_and_queries(dtype, d, name)
    index = Index.of(given(X).rows, directions=name == "cosine")
    expected = cdist(Q, X.astype(np.float64), NAMES[name])
    compared, places, _ = nearest_of(index, Q, 7, Metric(name, 2.0), True)
    np.testing.assert_array_equal(places, np.argsort(expected, axis=1, kind="stable")[:, :7])
    rtol = 1e-5 if dtype == np.float32 and name == "cosine" else 1e-10
    np.testing.assert_allclose(compared, np.sort(expected, axis=1)[:, :7], rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("step", [0.1, 1.0])  # distances of tenths are rounded, and those of integers are exact
@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("name", ["euclidean", "manhattan", "chebyshev", "minkowski"])
def test_many_rows_are_about_as_near(given: Callable[..., Data], name: str, d: int, step: float) -> None:
    X, Q = (np.random.default_rng(0).integers(-5, 5, (n, d)) * step for n in (5000, 50))
    index, metric = Index.of(given(X.astype(np.float32)).rows), Metric(name, 3.0)
    every = metric.compare(index, Q, np.tile(np.arange(len(X)), (len(Q), 1)))
    compared, places, _ = nearest_of(index, Q, 7, metric, True)
    np.testing.assert_array_equal(places, np.argsort(every, axis=1, kind="stable")[:, :7])
    np.testing.assert_array_equal(compared, np.sort(every, axis=1)[:, :7])


def test_more_neighbours_than_rows(given: Callable[..., Data]) -> None:
    X, Q = rows_and_queries(np.float64, 3, "euclidean")
    compared, places, _ = nearest_of(Index.of(given(X[:2]).rows), Q, 4, Metric("euclidean", 2.0), True)
    assert (places[:, 2:] == -1).all()
    assert np.isinf(compared[:, 2:]).all()
    assert set(places[:, :2].ravel().tolist()) == {0, 1}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_rows_within_a_limit(given: Callable[..., Data], name: str, dtype: Any) -> None:
    X, Q = rows_and_queries(dtype, 3, name)
    index = Index.of(given(X).rows, directions=name == "cosine")
    expected = cdist(Q, X.astype(np.float64), NAMES[name])
    limit = float(np.median(expected)) / 3
    counts, compared, places = within_of(index, Q, limit, Metric(name, 2.0))
    np.testing.assert_array_equal(counts, (expected <= limit).sum(axis=1))
    queries = np.repeat(np.arange(30), counts)
    assert (expected[queries, places] <= limit).all()
    np.testing.assert_allclose(compared, expected[queries, places], atol=1e-6)


def test_rows_are_no_neighbours_of_themselves(task: Any, sent: Callable[..., Any]) -> None:
    X, _ = rows_and_queries(np.float64, 3, "euclidean")
    X[9] = X[3]  # of two equal rows, each is the other's neighbour
    X[20:30] = X[20]  # of ten, one may not find itself among the three nearest
    with SharedBlock.create(X.nbytes) as given, SharedBlock.create(400 * 32) as block:
        given.write(X, 0)
        targets = [Target(block.path, (400, 2), np.dtype(dtype), at) for dtype, at in (("f8", 0), ("i8", 400 * 16))]
        queries = SharedArray(given.path, X.shape, X.dtype)
        TASKS["neighbors.nearest"](
            task, index="mine", metric=("euclidean", 2.0), bounds=[0, 400], queries=queries, shares=[0, 400], k=2,
            own=0, compared=targets[0], places=targets[1], rows={"source": sent(X)},
        )  # fmt: skip
        compared, places = (target.open().copy() for target in targets)
    expected = cdist(X, X, "sqeuclidean")
    np.fill_diagonal(expected, np.inf)
    np.testing.assert_allclose(compared, np.sort(expected, axis=1)[:, :2], rtol=1e-10, atol=1e-12)
    assert (places[3, 0], places[9, 0]) == (9, 3)
    assert (places != np.arange(400)[:, None]).all()
