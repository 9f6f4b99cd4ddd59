"""The bins of all values that a rank makes of some columns at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xpulab.engine.algorithms.forests.bins import bins_by_columns, edges_of
from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.kernels.on_cpu.forests import Edges
from xpulab.sharing.sources import BlockRows
from xpulab.sources.kinds import opened

X = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)


def source(path: Path, rows: np.ndarray) -> BlockRows:
    np.save(path, rows)
    return BlockRows(rows.shape, rows.dtype, [0, len(rows)], opened(path), range(3), kept=[0])


def test_bins_of_columns_are_those_of_all_rows(task: Task, tmp_path: Path) -> None:
    rows = source(tmp_path / "x.npy", X)
    bins = np.empty(X.shape, np.uint8)
    edges = bins_by_columns(task, Data(task, rows), rows, bins)
    right = Edges.between(edges_of(task, X.copy(), [0, 500]))
    np.testing.assert_array_equal(edges.values, right.values)
    np.testing.assert_array_equal(bins, right.bins(X))
    assert task.reading is not None
    assert (task.reading.kept, task.reading.passes, task.reading.nbytes) == (0, 3, X.nbytes)


def test_infinity_is_an_error_that_says_where(task: Task, tmp_path: Path) -> None:
    wrong = X.copy()
    wrong[77, 2] = np.inf
    rows = source(tmp_path / "x.npy", wrong)
    with pytest.raises(ValueError, match="row 77"):
        bins_by_columns(task, Data(task, rows), rows, np.empty(X.shape, np.uint8))
