"""The communicator, on 1, 3 and 4 real ranks. The functions run on the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spirv import FLOAT64, capabilities

import xpulab

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", ["add", "minimum", "maximum"])
@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "i1"), (1000, "f8"), (7, "f4"), (100_000, "f8")]
)  # the last: many bytes
def test_a_reduction_gives_every_rank_the_same_bits(
    name: str, size: int, dtype: str, cluster: xpulab.XPUCluster
) -> None:
    def values(rank: int) -> Any:
        import numpy as np

        return (10 * np.random.RandomState(rank).normal(size=size)).astype(dtype)

    def reduce(here: Any) -> bytes:
        import numpy as np

        return here.task.comm.allreduce(values(here.task.comm.rank), getattr(np, name)).tobytes()

    results = cluster.run(reduce)
    expected = getattr(np, name).reduce([values(rank) for rank in range(cluster.size)], axis=0)
    assert len(set(results)) == 1
    rtol, atol = (1e-12, 1e-12) if dtype == "f8" else (1e-6, 1e-5)
    np.testing.assert_allclose(np.frombuffer(results[0], dtype), expected, rtol, atol)


def test_a_request_to_stop_that_256_ranks_have_seen(pair: xpulab.XPUCluster) -> None:
    def check(here: Any) -> str:
        import numpy as np

        from xpulab.engine.engine import Interrupted

        class Many:
            """Replaces the communicator of 256 ranks that all pass the same values."""

            def allreduce(self, values: Any, op: Any = np.add) -> Any:
                return op.reduce([values] * 256, axis=0, dtype=values.dtype)

        here.task.comm, comm, cancelled = Many(), here.task.comm, here.task.cancelled
        here.task.cancelled = lambda: True
        try:
            here.task.check()
        except Interrupted:
            return "interrupted"
        finally:
            here.task.comm, here.task.cancelled = comm, cancelled
        return "went on"

    assert pair.run(check) == ["interrupted"] * 2


def test_sums_before_each_rank(cluster: xpulab.XPUCluster) -> None:
    results = cluster.run(lambda here: here.task.comm.exclusive_sums(float(here.task.comm.rank + 1)).tolist())
    expected = np.concatenate([[0.0], np.cumsum(np.arange(1.0, cluster.size + 1))]).tolist()
    assert results == [expected] * cluster.size


def test_blocks_of_any_length_are_joined_in_order(cluster: xpulab.XPUCluster) -> None:
    def gather(here: Any) -> Any:
        import numpy as np

        joined = here.task.comm.gather_blocks(np.full(here.task.comm.rank, here.task.comm.rank, np.float32))
        return None if joined is None else joined.tolist()

    first, *others = cluster.run(gather)
    assert first == [rank for rank in range(cluster.size) for _ in range(rank)]
    assert others == [None] * (cluster.size - 1)


def test_arrays_of_all_ranks(cluster: xpulab.XPUCluster) -> None:
    def every(here: Any) -> Any:
        import numpy as np

        return here.task.comm.allgather_arrays(np.array([here.task.comm.rank, 10.0])).tolist()

    assert cluster.run(every) == [[[float(rank), 10.0] for rank in range(cluster.size)]] * cluster.size


@pytest.mark.parametrize("size", [1, 100_000])
def test_waiting_for_a_slow_rank_is_counted_as_wait(size: int, pair: xpulab.XPUCluster) -> None:
    def late(here: Any) -> tuple[float, float]:
        import time

        import numpy as np

        values = np.zeros(size)
        if here.task.comm.rank == 1:
            time.sleep(0.3)
        here.task.comm.allreduce(values)
        return here.task.comm.wait, here.task.comm.communicate

    (waited, communicated), (waited_late, _) = pair.run(late)
    assert 0.25 < waited < 5
    assert communicated < 0.25
    assert waited_late < waited


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_rank_that_raises_frees_those_in_a_collective(size: int, cluster: xpulab.XPUCluster) -> None:
    def fail(here: Any) -> Any:
        import numpy as np

        if here.task.comm.rank == here.task.comm.size - 1:
            raise RuntimeError("the last rank")
        return here.task.comm.allreduce(np.zeros(size))

    with pytest.raises(xpulab.exceptions.EngineError, match=f"1 of {cluster.size} engines raised RuntimeError"):
        cluster.run(fail)
    assert (
        cluster.run(lambda here: here.task.comm.allgather(here.task.comm.rank))
        == [list(range(cluster.size))] * cluster.size
    )


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_rank_that_enters_a_collective_long_after_another_raised_leaves_it(
    size: int, pair: xpulab.XPUCluster
) -> None:
    def fail(here: Any) -> Any:
        import time

        import numpy as np

        if here.rank == 0:
            raise RuntimeError("the first rank")
        time.sleep(0.3)
        return here.task.comm.allreduce(np.zeros(size))

    with pytest.raises(xpulab.exceptions.EngineError, match="1 of 2 engines raised RuntimeError"):
        pair.run(fail)
    assert pair.run(lambda here: here.task.comm.allgather(here.rank)) == [[0, 1]] * 2


def test_a_message_that_was_sent_before_its_sender_raised_is_received(pair: xpulab.XPUCluster) -> None:
    def fail(here: Any) -> Any:
        import time

        import numpy as np
        from mpi4py import MPI

        class Late:
            """A request whose messages arrive a moment after their sender has raised, as on a busy host."""

            def __init__(self, request: Any) -> None:
                self.request, self.raised = request, 0.0

            def Test(self) -> bool:
                if not self.raised and here.task.engine.board.failed(here.task.number):
                    self.raised = time.perf_counter()
                return bool(self.raised) and time.perf_counter() - self.raised > 2e-3 and self.request.Test()

        class Slow(MPI.Intracomm):
            def Iallgather(self, *arguments: Any) -> Any:
                return Late(super().Iallgather(*arguments))

        if here.rank == 1:
            here.task.comm._comm = Slow(here.task.comm._comm)
        here.task.comm.allreduce(np.zeros(1))
        raise RuntimeError("both ranks")

    with pytest.raises(xpulab.exceptions.EngineError, match="2 of 2 engines raised RuntimeError"):
        pair.run(fail)


def test_a_float32_fit_uses_no_float64_on_the_device(pair: xpulab.XPUCluster) -> None:
    from xpulab.cluster import KMeans

    pair.activate()
    X = np.random.RandomState(0).normal(size=(3000, 7)).astype(np.float32)

    def programs(here: Any) -> list[tuple[str, bytes]]:
        from xpulab.kernels.catalogue import find

        return [(kernel.name, find(kernel).spirv) for kernel in here.task.device.programs]

    pair.restart()
    fitted = KMeans(11, random_state=0, n_init=2).fit(X, sample_weight=np.linspace(0, 1, 3000))
    KMeans(4, init=np.vstack([X[:2], X[:2] + 1e6]), n_init=1).fit(X)  # with empty clusters
    fitted.predict(X)
    fitted.transform(X)
    fitted.score(X)
    for kernels in pair.run(programs):
        assert len({name for name, _ in kernels}) >= 6
        for name, spirv in kernels:
            assert FLOAT64 not in capabilities(spirv), name
