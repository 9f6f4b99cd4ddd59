"""An index of rows in parts has the rows of the whole one, in their order, and reads again what is not kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xpulab.engine.algorithms.indices import IndexInParts, index_of, parts_of, rows_at_a_time, targets_of
from xpulab.engine.engine import Task
from xpulab.exceptions import HandleError
from xpulab.kernels.neighbors import Index
from xpulab.sharing.sources import BlockRows
from xpulab.sources.kinds import opened

X = np.random.default_rng(0).normal(size=(500, 3))


def source(tmp_path: Path, rows: np.ndarray, kept: int | None) -> BlockRows:
    np.save(tmp_path / "x.npy", rows)
    keeps = None if kept is None else [kept]
    return BlockRows(rows.shape, rows.dtype, [0, 500], opened(tmp_path / "x.npy"), range(rows.shape[1]), kept=keeps)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("kept", [200, 0, None])
def test_parts_have_all_rows(task: Task, tmp_path: Path, metric: str, kept: int | None) -> None:
    index = index_of(task, "it", metric, 2.0, {"source": source(tmp_path, X, kept)})
    assert isinstance(index, Index if kept is None else IndexInParts)
    found, firsts = [], []
    for first, part in parts_of(task, index):
        assert isinstance(part, Index)
        found.append(task.device.fetch(part.data, stop=part.n_samples * 3).reshape(-1, 3))
        firsts.append(first)
    expected = X / np.linalg.norm(X, axis=1)[:, None] if metric == "cosine" else X
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-15)
    assert firsts == {200: [0, 192], 0: [0, 0], None: [0]}[kept]
    assert [rows_at_a_time(index, number, 500) for number in (0, 1)] == [500, 500]
    assert index_of(task, "it", metric, 2.0, None) is index
    with pytest.raises(HandleError, match=r"gone from the engines; type: fit\(X\) again"):
        index_of(task, "another", metric, 2.0, None)


def test_rows_whose_squares_overflow_are_divided(task: Task, tmp_path: Path) -> None:
    large = (X * 1e25).astype(np.float32)
    whole, parts = (index_of(task, "it", "euclidean", 2.0, {"source": source(tmp_path, large, n)}) for n in (None, 64))
    assert parts.unit == whole.unit > 1
    (_, kept), (_, rest) = parts_of(task, parts)
    assert kept.unit == rest.unit == parts.unit


def test_targets_of_files_are_read_for_each_part(task: Task, tmp_path: Path) -> None:
    with targets_of(task, source(tmp_path, X[:, :1], None)) as values, targets_of(task, None) as none:
        np.testing.assert_array_equal(values(100, 5), X[100:105, :1])
        assert none(0, 4).shape == (4, 0)
