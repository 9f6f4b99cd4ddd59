"""The nearest rows in a tree against those of all rows, compared by NumPy."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from xpulab.kernels.on_cpu.host import compare_with
from xpulab.kernels.on_cpu.tree_search import KINDS, nearest_in
from xpulab.kernels.on_cpu.trees import Tree

Rows = npt.NDArray[np.float64]


def every(rows: Rows, queries: Rows, k: int, kind: str) -> tuple[Rows, npt.NDArray[np.int64]]:
    indices = np.broadcast_to(np.arange(len(rows)), (len(queries), len(rows)))
    compared = compare_with(rows, queries, np.ascontiguousarray(indices), kind)  # type: ignore[arg-type]
    order = np.argsort(compared, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(compared, order, 1), order


def normal(n: int, d: int) -> Rows:
    return np.random.default_rng(n + d).normal(size=(n, d))


def lattice(n: int, d: int) -> Rows:
    return np.random.default_rng(n + d).integers(0, 3, (n, d)).astype(float)


@pytest.mark.parametrize("rows_of", [normal, lattice])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", range(1, 10))
def test_the_nearest_are_those_of_all_rows(rows_of: Callable[[int, int], Rows], kind: str, d: int) -> None:
    rows = rows_of(1200, d)
    queries = np.concatenate([rows[:200], normal(99, d) * 5])
    visits = np.random.default_rng(1).permutation(len(queries))
    found, places = nearest_in(Tree.of(rows.copy()), queries, visits, 7, kind, lambda done: None)
    compared, order = every(rows, queries, 7, kind)
    np.testing.assert_array_equal(found, compared)
    np.testing.assert_array_equal(places, order)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (48, 48), (49, 10), (97, 97), (500, 128)])
def test_few_rows_and_many_neighbours(n: int, k: int) -> None:
    rows, queries = normal(n, 3), normal(20, 3)
    found, places = nearest_in(Tree.of(rows.copy()), queries, np.arange(20), k, "squares", lambda done: None)
    compared, order = every(rows, queries, k, "squares")
    np.testing.assert_array_equal(found, compared)
    np.testing.assert_array_equal(places, order)


def test_no_queries_and_equal_rows() -> None:
    tree = Tree.of(np.ones((300, 2)))
    found, places = nearest_in(tree, np.empty((0, 2)), np.arange(0), 3, "squares", lambda done: None)
    assert found.shape == places.shape == (0, 3)
    found, places = nearest_in(tree, np.ones((2, 2)), np.arange(2), 3, "squares", lambda done: None)
    np.testing.assert_array_equal(found, np.zeros((2, 3)))
    np.testing.assert_array_equal(places, [[0, 1, 2], [0, 1, 2]])


def test_a_search_ends_where_it_looks() -> None:
    looks = []

    def look(done: int) -> None:
        looks.append(done)
        if len(looks) == 2:
            raise KeyboardInterrupt

    rows, m = normal(200, 2), 4 * 4096 * len(os.sched_getaffinity(0)) + 1
    with pytest.raises(KeyboardInterrupt):
        nearest_in(Tree.of(rows), normal(m, 2), np.arange(m), 1, "squares", look)
    assert looks[0] == 0 < looks[1] < m
