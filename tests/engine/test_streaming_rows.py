"""A rank keeps as many of its rows as it is told, and tells its task what it reads again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.engine.streaming import expect_passes, streamed
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.sharing.sources import BlockRows
from xpulab.sources.kinds import opened

X = np.random.default_rng(0).normal(size=(500, 3))


def source(tmp_path: Path, kept: int) -> BlockRows:
    np.save(tmp_path / "x.npy", X)
    return BlockRows((500, 3), X.dtype, [0, 500], opened(tmp_path / "x.npy"), range(3), kept=[kept])


def test_the_task_knows_what_is_read(task: Task, tmp_path: Path) -> None:
    rows = streamed(task, source(tmp_path, 200), None)
    np.testing.assert_allclose(rows.column_sums(), X.sum(axis=0))
    assert task.reading is rows.reading
    assert (rows.reading.kept, rows.reading.rows, rows.reading.passes) == (192, 500, 1)
    assert rows.reading.nbytes == 308 * 24


def test_the_view_shows_the_pass_and_the_wait_counts_as_transfer(task: Task, tmp_path: Path) -> None:
    rows = streamed(task, source(tmp_path, 200), None)
    shown = []
    for _ in range(2):
        shown += [task.engine.record["doing"].decode() for _ in rows.parts()]
    assert set(shown[:2]) == {"pass 1: 40 % of the rows kept, 60 % read again"}
    about = r"40 % of the rows kept, 60 % read again at \d+\.\d\d GB/s, and waited for \d+ % of the time"
    assert re.fullmatch(rf"pass 2: {about}", shown[-1])
    expect_passes(task, 1)
    for passed in range(2, 4):
        said = {task.engine.record["doing"].decode() for _ in rows.parts()}
        of = " of at most 3" if passed == 2 else ""  # one more than was expected
        assert all(re.fullmatch(rf"pass {passed + 1}{of}: {about}", each) for each in said), said
    assert 0 < rows.reading.waited < rows.reading.seconds
    assert task.seconds()["transfer"] == rows.reading.waited


def test_data_in_passes_has_parts_and_not_all_rows_at_once(task: Task, tmp_path: Path) -> None:
    data = Data(task, source(tmp_path, 64))
    assert data.in_passes
    with pytest.raises(NotEnoughMemoryError, match=r"needs all rows at once: X takes 11\.7 KiB"):
        data.rows  # noqa: B018
    assert task.reading is None  # nothing was read for this
    assert sum(part.n_samples for part, _ in data.parts()) == 500
    np.testing.assert_array_equal(data.rows_at(np.array([3, 499])), X[[3, 499]])
    assert data.near() == 64
