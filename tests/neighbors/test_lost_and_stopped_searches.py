"""After an interrupt of a search the rows are still on the engines; after the loss of an engine they are sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strikes import die_on_rank_1, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.exceptions import EngineLostError, HandleError
from xpulab.neighbors import NearestNeighbors

pytestmark = pytest.mark.cluster

X = np.random.default_rng(0).normal(size=(20_000, 20))


def held(task: Any) -> list[int]:
    """Return the addresses of the rows that the engine keeps."""
    return [each.data.pointer for each in task.engine.handles.values()]


def test_a_search_goes_on_with_new_engines(losable: xpulab.XPUCluster) -> None:
    ours = NearestNeighbors().fit(X)
    expected = ours.kneighbors(X[:300], return_distance=False)
    within = ours.radius_neighbors(X[:3], 2.5, return_distance=False)
    pids = [fact.pid for fact in losable.facts]
    losable.run(strike, 2, die_on_rank_1)
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)
    assert [fact.pid for fact in losable.facts] != pids
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)
    losable.run(strike, 2, die_on_rank_1)
    again = ours.radius_neighbors(X[:3], 2.5, return_distance=False)
    assert [some.tolist() for some in again] == [some.tolist() for some in within]


def test_rows_of_a_handle_are_lost_with_the_engine(losable: xpulab.XPUCluster) -> None:
    ours = NearestNeighbors().fit(losable.scatter(X))
    losable.run(strike, 2, die_on_rank_1)
    with pytest.raises(EngineLostError):
        ours.kneighbors(X[:3])
    losable.restart()
    with pytest.raises(HandleError, match="are gone"):
        ours.kneighbors(X[:3])


def test_a_stopped_search_leaves_the_rows_on_the_engines(losable: xpulab.XPUCluster, tmp_path: Path) -> None:
    ours = NearestNeighbors().fit(X)
    expected = ours.kneighbors(X[:300], return_distance=False)
    there = losable.run(held)
    losable.run(strike, 2, wait_for_stop, str(tmp_path / "waits"))
    with (
        pressed_when(tmp_path / "waits"),
        pytest.raises(KeyboardInterrupt, match=r"NearestNeighbors\.kneighbors was interrupted"),
    ):
        ours.kneighbors(np.vstack([X, X]))
    np.testing.assert_array_equal(ours.kneighbors(X[:300], return_distance=False), expected)
    assert losable.run(held) == there
