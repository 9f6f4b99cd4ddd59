"""Rows that do not fit raise an error before any row is sent to the engines, with the numbers and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from descriptions import GIB, described
from scipy import sparse
from sent import nothing_sent

import xpulab
from xpulab.cluster import KMeans
from xpulab.deploy.tasks.limits import Demand, require_room
from xpulab.exceptions import DeviceError, EngineError, NotEnoughMemoryError


def rows(gib: float, n_engines: int = 2, **options: Any) -> Demand:
    count = int(gib * GIB / 1024) // n_engines
    work = dict(zip(("work_per_row", "work_share"), KMeans._work_memory, strict=True))
    return Demand("X of many × 256 float32", [count] * n_engines, 1024, **{**work, **options})


def test_without_working_arrays_only_the_rows_count() -> None:
    require_room(rows(8, work_per_row=0, work_share=0), [described(kind="cpu")] * 2, [0, 0], 8.01 * GIB)


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, 1.045),  # the CPU uses the shared memory; in addition, 12 bytes per row and a thirtieth
        ({"sent": False}, 1.045),  # the engines read a file into their own memory
        ({"there": True}, 0.045),
        ({"adopted": False}, 2.045),  # CSR: in shared memory, from which the engines copy
    ],
)
def test_what_cpus_need_of_their_host(options: dict[str, Any], needs: float) -> None:
    facts = [described(kind="cpu")] * 2
    require_room(rows(8, **options), facts, [0, 0], 8.1 * needs * GIB)
    with pytest.raises(
        NotEnoughMemoryError, match=r"X of many .* needs \d.* of this host's memory .* are free; .*use fewer rows"
    ):
        require_room(rows(8, **options), facts, [0, 0], 7.9 * needs * GIB)


def test_ranks_on_one_gpu_share_its_memory_with_what_it_holds() -> None:
    one, two = [described()] * 2, [described(), described(selector="level_zero:1")]
    plenty = 1e15
    require_room(rows(12), one, [0, GIB], plenty)
    with pytest.raises(NotEnoughMemoryError, match=r"on Arc \(level_zero:0\).* are free; .*%xpu_cluster plan"):
        require_room(rows(12), one, [2 * GIB, 2 * GIB], plenty)
    require_room(rows(24), two, [2 * GIB, 2 * GIB], plenty)
    with pytest.raises(NotEnoughMemoryError, match=r"\(level_zero:1\)"):
        require_room(rows(24), two, [2 * GIB, 6 * GIB], plenty)
    with pytest.raises(NotEnoughMemoryError, match="this host's memory"):
        require_room(rows(12), one, [0, 0], 11 * GIB)


X = np.random.default_rng(0).normal(size=(200_000, 8)).astype(np.float32)


@pytest.mark.cluster
class TestOnEngines:
    @pytest.fixture(autouse=True)
    def engines(self, pair: xpulab.XPUCluster) -> None:
        self.pair = pair
        pair.activate()

    def test_rows_that_do_not_fit_are_not_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fitted = KMeans(3, max_iter=2, random_state=0).fit(X)
        stored = sparse.csr_matrix(X[:20_000])
        monkeypatch.setattr("xpulab.deploy.tasks.rows.LEAST", 0)
        with monkeypatch.context() as patch, nothing_sent(self.pair):
            patch.setattr("xpulab.sharing.host_memory.available", lambda **_: 1000)
            self.pair.rows.blocks.clear()
            for call in (KMeans(3).fit, fitted.predict, self.pair.scatter):
                with pytest.raises(NotEnoughMemoryError, match=r"X of 200,000 × 8 float32 needs .* 1,?000 B are free"):
                    call(X)
            with pytest.raises(NotEnoughMemoryError, match=r"X of 20,000 × 8"):
                KMeans(3).fit(stored)
        assert (KMeans(3, max_iter=2, random_state=0).fit(X).labels_ == fitted.labels_).all()

    @pytest.mark.parametrize("iteration", [0, 2])
    def test_a_device_that_is_full_in_the_middle_is_one_error(self, iteration: int) -> None:
        right = KMeans(3, max_iter=5, random_state=0, tol=0).fit(X)

        def fill(task: Any, iteration: int) -> None:
            from xpulab.kernels.kmeans import dense

            step, done = dense.lloyd_step, iter(range(100))

            def full(*given: Any) -> Any:
                if task.comm.rank == 1 and next(done) == iteration:
                    dense.lloyd_step = step
                    task.engine.device.empty(1 << 45, np.float32)
                return step(*given)

            dense.lloyd_step = full  # type: ignore[assignment]

        self.pair.run(fill, iteration)
        with pytest.raises(DeviceError, match=r"has no room for them; use more engines.* \[rank 1 on .*\]") as caught:
            KMeans(3, max_iter=5, random_state=0, tol=0).fit(X)
        assert isinstance(caught.value.__cause__, EngineError)
        self.pair.run(_restored)
        assert (KMeans(3, max_iter=5, random_state=0, tol=0).fit(X).labels_ == right.labels_).all()


def _restored(task: Any) -> None:
    """Restore the original step."""
    from xpulab.kernels.kmeans import dense
    from xpulab.kernels.kmeans.lloyd import lloyd_step

    dense.lloyd_step = lloyd_step
