"""The seconds by phase that a task counts; what ranks note of each iteration is what the report of the call has."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.cluster import KMeans
from xpulab.engine.engine import Task
from xpulab.engine.phases import Phases
from xpulab.mixture import GaussianMixture

pytestmark = pytest.mark.cluster


def noted(cluster: xpulab.XPUCluster, report: Any) -> list[np.ndarray]:
    board = cluster.engines.board
    assert board is not None
    begun, ended = report.span
    rings = [board.iterations(rank) for rank in range(cluster.size)]
    return [ring[(ring["ended"] >= begun) & (ring["ended"] <= ended)] for ring in rings]


@pytest.mark.parametrize(
    "estimator", [KMeans(5, n_init=2, max_iter=30, random_state=0), GaussianMixture(3, max_iter=30, random_state=0)]
)
def test_each_iteration_is_noted_with_its_phases(current: xpulab.XPUCluster, estimator: Any) -> None:
    X = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    report = estimator.fit(X).report_
    for engine, ring in zip(report.engines, noted(current, report), strict=True):
        expected = [(each.init, each.number) for each in report.iterations]
        assert list(zip(ring["run"].tolist(), ring["iteration"].tolist(), strict=True)) == expected
        assert set(ring["client"]) == {os.getpid()}
        assert len(set(ring["task"])) == 1
        assert (np.diff(ring["seconds"], axis=0) >= 0).all()
        assert (np.diff(ring["ended"]) > 0).all()
        last = ring[-1]
        assert last["seconds"].sum() <= last["total"] + 1e-3
        assert (last["seconds"] <= np.array([*engine.seconds.values()]) + 1e-6).all()
        assert last["total"] <= engine.total


def test_a_rank_notes_an_iteration_where_the_notebook_reads_it(pair: xpulab.XPUCluster) -> None:
    def note(task: Any) -> int:

        task.task.note_iteration(3, 17)
        return int(task.task.number)

    numbers = pair.run(note)
    board = pair.engines.board
    assert board is not None
    for rank, number in enumerate(numbers):
        entry = board.iterations(rank)[-1]
        assert (entry["task"], entry["run"], entry["iteration"]) == (number, 3, 17)


def test_a_second_belongs_to_one_phase(task: Task) -> None:
    phases: Phases = task
    phases.begin_phases()
    begun = time.perf_counter()
    with phases.on_host():
        time.sleep(0.03)
        phases.device.kernel_seconds += 0.02  # as a kernel that the host's work has started
        within = phases.seconds()["host"]
    elapsed, host = time.perf_counter() - begun, phases.seconds()["host"]
    assert 0 < within <= host <= elapsed - 0.02
    begun = time.perf_counter()
    with phases.transferring():
        time.sleep(0.03)
        phases.device.compile_seconds += 0.02
    elapsed = time.perf_counter() - begun
    assert 0 < phases.seconds()["transfer"] <= elapsed - 0.02
    assert phases.seconds()["host"] == host
    assert (phases.seconds()["kernel"], phases.seconds()["compile"]) == (0.02, 0.02)
