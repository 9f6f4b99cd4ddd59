"""MiniBatchKMeans and BisectingKMeans of files of which the engines keep some rows or none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from constants import constants
from strikes import meetings, pressed_when, strike, wait_for_stop

import xpulab
from xpulab.cluster import BisectingKMeans, MiniBatchKMeans
from xpulab.scanning import Scan

pytestmark = pytest.mark.cluster

N, D, K = 5_003, 5, 9
ROWS = np.random.default_rng(0).normal(size=(N, D)) + np.random.default_rng(1).integers(0, 5, (N, 1)) * 4
WEIGHTS = np.random.default_rng(2).integers(0, 3, N) * 0.5
BUDGETS: dict[str, str | float] = {"40 %": f"{int(0.4 * N * (8 * D + 20))}B", "nothing": 0}

FORTY_STEPS: dict[str, Any] = {
    "batch_size": 500, "max_iter": 4, "max_no_improvement": None, "random_state": 0, "reassignment_ratio": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    path = tmp_path_factory.mktemp("rows") / "x.parquet"
    pq.write_table(pa.table({f"c{f}": ROWS[:, f] for f in range(D)}), path, row_group_size=1337)
    return xpulab.scan(path)


@pytest.fixture(params=[1, 3], ids=["1-engine", "3-engines"])
def engines(request: pytest.FixtureRequest, clusters: Callable[[int], xpulab.XPUCluster]) -> xpulab.XPUCluster:
    return clusters(request.param).activate()


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest, engines: xpulab.XPUCluster) -> Iterator[str]:
    """Give the engines memory for these rows, and have parts of 1,000 rows, and batches of one pass of 5,000 rows."""
    engines.memory = BUDGETS[request.param]
    with (
        constants(engines, "xpulab.kernels.streamed", PIECE_BYTES=1000 * 8 * D),
        constants(engines, "xpulab.engine.algorithms.clustering.problem", PIECE_BYTES=1000 * 8 * D),
        constants(engines, "xpulab.engine.algorithms.clustering.batches", GATHERED=5000 * 8 * D),
    ):
        yield request.param
    engines.memory = None


@functools.cache
def in_memory(kind: Any, weighted: bool = False, **parameters: Any) -> Any:
    """Return the fit of these rows with room for all of them, which any number of engines gives."""
    cluster = xpulab.current_cluster()
    memory, cluster.memory = cluster.memory, None
    try:
        return kind(**parameters).fit(ROWS, sample_weight=WEIGHTS if weighted else None)
    finally:
        cluster.memory = memory


def passes(estimator: Any) -> int:
    notes = "\n".join(estimator.report_.notes)
    return int(notes[notes.index("again in ") + 9 :].split(" ")[0])


@pytest.mark.fraction(2)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_batches_have_the_rows_that_are_drawn_in_memory(budget: str, rows: Scan, weights: np.ndarray | None) -> None:
    arguments: dict[str, Any] = {"n_clusters": K, **FORTY_STEPS, "n_init": 2}
    ours = MiniBatchKMeans(**arguments).fit(rows, sample_weight=weights)
    same = in_memory(MiniBatchKMeans, weights is not None, **arguments)
    assert ours.n_steps_ == same.n_steps_ == 40
    np.testing.assert_allclose(ours.cluster_centers_, same.cluster_centers_, rtol=1e-8)
    np.testing.assert_array_equal(ours.labels_, same.labels_)
    assert 4 <= passes(ours) <= 8


def test_centres_move_to_rows_of_batches(clusters: Callable[[int], xpulab.XPUCluster], rows: Scan) -> None:
    init = np.vstack([ROWS[: K - 2], np.full((2, D), 100.0)])
    arguments: dict[str, Any] = {"batch_size": 500, "random_state": 0, "init": init, "n_init": 1}
    clusters(1).activate()
    same = MiniBatchKMeans(K, **arguments).fit(ROWS)
    found = []
    for n in (1, 3):
        cluster = clusters(n).activate()
        for budget in BUDGETS.values():
            cluster.memory = budget
            found.append(MiniBatchKMeans(K, **arguments).fit(rows))
        cluster.memory = None
    for each in found:
        np.testing.assert_allclose(each.cluster_centers_, found[0].cluster_centers_, rtol=1e-8)
        assert each.inertia_ < 1.1 * same.inertia_
    assert np.abs(found[0].cluster_centers_).max() < 50


def test_batches_stop_and_go_on(losable: xpulab.XPUCluster, rows: Scan, tmp_path: Path) -> None:
    arguments = FORTY_STEPS
    whole = MiniBatchKMeans(K, **arguments).fit(ROWS)
    losable.memory = 0
    try:
        stopped = MiniBatchKMeans(K, **arguments)
        losable.run(strike, 1, wait_for_stop, str(tmp_path / "waits"), iterations=13)
        with pressed_when(tmp_path / "waits"), pytest.raises(KeyboardInterrupt):
            stopped.fit(rows)
        losable.run(meetings)
        assert 0 < stopped.n_steps_ < whole.n_steps_
        stopped.resume()
    finally:
        losable.memory = None
    assert stopped.n_steps_ == whole.n_steps_
    np.testing.assert_allclose(stopped.cluster_centers_, whole.cluster_centers_, rtol=1e-8)


@pytest.mark.fraction(2)
@pytest.mark.parametrize(("weights", "strategy"), [(None, "biggest_inertia"), (WEIGHTS, "largest_cluster")])
def test_a_tree_is_that_of_rows_in_memory(budget: str, rows: Scan, weights: np.ndarray | None, strategy: str) -> None:
    arguments: dict[str, Any] = {"n_clusters": 5, "random_state": 0, "bisecting_strategy": strategy, "n_init": 2}
    ours = BisectingKMeans(**arguments).fit(rows, sample_weight=weights)
    same = in_memory(BisectingKMeans, weights is not None, **arguments)
    np.testing.assert_allclose(ours.cluster_centers_, same.cluster_centers_, rtol=1e-8)
    np.testing.assert_array_equal(ours.labels_, same.labels_)
    assert ours.inertia_ == pytest.approx(same.inertia_, rel=1e-9)
    assert passes(ours) >= 5


@pytest.mark.fraction(2)
def test_a_tree_starts_by_scalable_k_means(budget: str, rows: Scan) -> None:
    arguments: list[dict[str, Any]] = [
        {"n_clusters": 5, "init": "k-means++", "random_state": seed} for seed in range(3)
    ]
    ours = [BisectingKMeans(**each).fit(rows).inertia_ for each in arguments]
    same = [in_memory(BisectingKMeans, **each).inertia_ for each in arguments]
    assert min(ours) < 1.2 * min(same)
