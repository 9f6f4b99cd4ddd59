"""k-means|| draws rows by their distances, and the same rows however they come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.clustering.scalable import Chosen, scalable_start
from xpulab.engine.engine import Task
from xpulab.kernels.rows import Fill, Rows
from xpulab.kernels.streamed import StreamedRows

N, D = 3000, 2
PLACES = np.array([[0, 0], [30, 0], [0, 30], [30, 30], [60, 60]])
ROWS = (PLACES[np.arange(N) % 5] + np.random.default_rng(0).normal(size=(N, D))).astype(np.float32)


@contextlib.contextmanager
def reading() -> Iterator[Fill]:
    def fill(first: int, part: np.ndarray) -> None:
        n = int(np.prod(part.shape[:-1]))
        part[...] = ROWS[first : first + n].reshape(part.shape)

    yield fill


def start(task: Task, n_kept: int | None, weights: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """The centres for rows of which so many are kept; None for rows in memory."""
    if n_kept is None:
        rows: Rows | StreamedRows = Rows.upload(task.device, ROWS, weights)
    else:
        rows = StreamedRows.read(task.device, (N, D), n_kept, np.float32, reading, weights, piece_bytes=512 * 4 * D)
    problem = Problem(task, rows, [0, N], weights)
    assert problem.in_passes == (n_kept is not None)
    begun = Chosen((ROWS[:1] - problem.shift).astype(np.float32), np.inf, (1,))
    found = scalable_start(problem, begun, 5, np.random.RandomState(seed), lambda chosen: None)
    return found + problem.shift


@pytest.mark.parametrize("seed", range(5))
def test_a_centre_is_drawn_in_every_cluster(task: Task, seed: int) -> None:
    nearest = np.linalg.norm(start(task, 0, seed=seed)[:, None] - PLACES, axis=2).argmin(axis=1)
    assert sorted(nearest) == [0, 1, 2, 3, 4]


def test_it_depends_neither_on_the_rows_that_are_kept_nor_on_the_parts(task: Task) -> None:
    weights = np.random.default_rng(1).random(N)
    for given in (None, weights):
        first = start(task, None, given)
        for n_kept in (0, 64, 1500, N):
            np.testing.assert_allclose(start(task, n_kept, given), first, rtol=1e-6)
    assert len({start(task, 0, seed=seed).tobytes() for seed in range(5)}) == 5


def test_rows_without_weight_are_never_drawn(task: Task) -> None:
    weights = (np.arange(N) % 5 != 4).astype(float)
    assert not (np.abs(start(task, 640, weights) - PLACES[4]) < 10).all(axis=1).any()
