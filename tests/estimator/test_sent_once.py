"""An array that several methods or several steps of a pipeline use is sent to the engines once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import sklearn.cluster
from constants import constants_here

import xpulab
from xpulab.cluster import KMeans
from xpulab.data import Outgoing
from xpulab.estimator.sending import Packing
from xpulab.estimator.sent_once import SentOnce
from xpulab.sharing.memory import SharedBlock

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("n", [40, 60_000])
@pytest.mark.parametrize("kind", [np.asarray, list])
def test_fit_transform_sends_once(on_pair: xpulab.XPUCluster, written: list[int], n: int, kind: Any) -> None:
    X, before = np.random.default_rng(0).normal(size=(n, 5)), set(on_pair.handles())
    distances = KMeans(3, random_state=0).fit_transform(kind(X) if n < 100 else X)
    assert sum(written) == X.nbytes
    expected = sklearn.cluster.KMeans(3, random_state=0).fit_transform(X)
    np.testing.assert_allclose(distances, expected, rtol=1e-8)
    deadline = time.monotonic() + 120  # a thread frees the rows
    while set(on_pair.handles()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(on_pair.handles()) <= before  # those that other tests hold


def test_memory_has_room_for_rows_that_are_there(on_pair: xpulab.XPUCluster, written: list[int]) -> None:
    X = np.random.default_rng(0).normal(size=(60_000, 5))
    others = sum(each.nbytes for each in on_pair.handles().values())  # of tests before
    on_pair.memory = f"{2 * X.nbytes + others}B"
    try:
        with constants_here("xpulab.deploy.tasks.rows", LEAST=0), constants_here("xpulab.estimator.parts", LEAST=0):
            KMeans(3, random_state=0).fit_transform(X)
    finally:
        on_pair.memory = None
    assert sum(written) == X.nbytes


def test_engines_read_a_result_in_its_shared_memory(on_pair: xpulab.XPUCluster, written: list[int]) -> None:
    X = np.random.default_rng(0).normal(size=(60_000, 5))
    distances = KMeans(8, random_state=0, max_iter=5).fit_transform(X)
    del written[:]
    ours = KMeans(3, random_state=0).fit(distances)
    part = KMeans(3, random_state=0).fit(distances[10_000:])
    assert written == []
    np.testing.assert_array_equal(ours.labels_, KMeans(3, random_state=0).fit(distances.copy()).labels_)
    np.testing.assert_array_equal(part.labels_, KMeans(3, random_state=0).fit(distances[10_000:].copy()).labels_)


def test_a_result_that_was_changed(on_pair: xpulab.XPUCluster) -> None:
    X = np.random.default_rng(0).normal(size=(60_000, 5))
    distances = KMeans(8, random_state=0, max_iter=5).fit_transform(X)
    distances *= -2
    ours = KMeans(3, random_state=0).fit(distances)
    np.testing.assert_array_equal(ours.labels_, KMeans(3, random_state=0).fit(distances.copy()).labels_)
    distances[41, 2] = np.nan
    with pytest.raises(ValueError, match="row 41"):
        ours.fit(distances)
    assert on_pair.running


def test_many_results_take_few_descriptors(on_pair: xpulab.XPUCluster) -> None:
    import os

    km = KMeans(8, random_state=0, max_iter=2).fit(np.random.default_rng(0).normal(size=(20_000, 5)))
    X = np.random.default_rng(1).normal(size=(20_000, 5))
    results = [km.transform(X) for _ in range(12)]
    before = len(os.listdir("/proc/self/fd"))
    results += [km.transform(X) for _ in range(12)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    np.testing.assert_array_equal(results[0], results[-1])


def test_rows_that_are_sent_again_are_in_new_blocks(
    on_pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When Python deletes the handle of lost rows, it must not free the blocks of the rows that were sent again."""
    made_handle, given = on_pair.made_handle, []

    def recording(shape: Any, dtype: Any, bounds: Any, blocks: list[SharedBlock]) -> xpulab.ShardedArray:
        given.append(blocks)
        return made_handle(shape, dtype, bounds, blocks=blocks)

    monkeypatch.setattr(on_pair, "made_handle", recording)
    X, km = np.random.default_rng(0).normal(size=(60_000, 5)), KMeans(3)
    held = SentOnce(X)
    held.checked = X
    packing = Packing(km, on_pair, X, held=held)
    with Outgoing(on_pair.rows.blocks) as outgoing:
        packing(outgoing)
        outgoing.drop()
        on_pair.rows.handles_here.clear()  # as after a restart
        packing(outgoing)
    assert [len(blocks) for blocks in given] == [0, 2]
