"""The communicator, on 1, 3 and 4 real ranks. The functions run on the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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

        from xpulab.engine.comm import Interrupted

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


def test_each_rank_gets_its_share_of_a_sum(cluster: xpulab.XPUCluster) -> None:
    def share(here: Any) -> Any:
        import numpy as np

        comm = here.task.comm
        return comm.sum_of_share((comm.rank + 1) * np.arange(4.0 * comm.size).reshape(-1, 2)).tolist()

    whole = sum(range(1, cluster.size + 1)) * np.arange(4.0 * cluster.size).reshape(cluster.size, 2, 2)
    assert cluster.run(share) == whole.tolist()


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


LAYOUTS: dict[str, Any] = {
    "in C order": lambda values: values,
    "in Fortran order": lambda values: values.copy(order="F"),
    "transposed": lambda values: values.T.copy().T,
    "with gaps": lambda values: values.repeat(2, axis=0).repeat(3, axis=-1)[::2, ..., ::3],
    "backwards": lambda values: values[::-1].copy()[::-1],
    "a part": lambda values: np.pad(values, 1)[tuple(slice(1, -1) for _ in values.shape)],
    "read only": lambda values: np.frombuffer(values.tobytes(), values.dtype).reshape(values.shape),
}


@pytest.mark.parametrize(
    ("few", "most", "items"),
    [(1, 1 << 30, 1 << 31), (1, 16, 1 << 31), (1, 16, 2), (1 << 18, 1 << 30, 1 << 31)],
    ids=["long", "in several messages", "between pairs of ranks", "short"],
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_arrays_of_any_layout_in_every_collective(
    few: int, most: int, items: int, data: st.DataObject, cluster: xpulab.XPUCluster
) -> None:
    shape = data.draw(st.tuples(st.integers(0, 5), st.integers(1, 4)))
    dtype = data.draw(st.sampled_from(["f8", "f4", "i8", "i4", "i1"]))
    layouts = data.draw(st.lists(st.sampled_from(list(LAYOUTS)), min_size=cluster.size, max_size=cluster.size))
    numbers = data.draw(st.lists(st.integers(0, 4), min_size=cluster.size**2, max_size=cluster.size**2))
    counts = np.reshape(numbers, (cluster.size, cluster.size))
    layout_of = {name: LAYOUTS[name] for name in layouts}

    def values(rank: int, *shape: int) -> Any:
        return np.random.RandomState(rank).randint(-9, 10, shape).astype(dtype)

    def exchange(here: Any) -> dict[str, Any]:
        from xpulab.engine import comm as module

        def laid(array: Any) -> Any:
            return layout_of[layouts[rank]](array)

        comm, rank = here.task.comm, here.task.comm.rank
        mine, before = values(rank, *shape), (module.FEW, module.MOST, module.ITEMS)
        module.FEW, module.MOST, module.ITEMS = few, most, items
        try:
            return {
                "allreduce": comm.allreduce(laid(mine)),
                "maximum": comm.allreduce(laid(mine), np.maximum),
                "of one row": comm.allreduce(laid(values(rank, 1, 3))[0]),
                "of no dimension": comm.allreduce(np.asarray(mine.sum(), dtype)),
                "reduce": comm.reduce(laid(mine)),
                "sum_of_share": comm.sum_of_share(laid(values(rank, 2 * comm.size, 3))),
                "allgather_arrays": comm.allgather_arrays(laid(values(rank, 5, 1))[:, 0]),
                "bcast_array": comm.bcast_array(laid(mine)),
                "gather_blocks": comm.gather_blocks(laid(values(rank, rank, 1))[:, 0]),
                "exchange_rows": comm.exchange_rows(laid(values(rank, counts[rank].sum(), 3)), counts[rank]),
            }
        finally:
            module.FEW, module.MOST, module.ITEMS = before

    every = [values(rank, *shape) for rank in range(cluster.size)]
    total = np.sum(every, axis=0, dtype=dtype)
    parts = [np.split(values(rank, counts[rank].sum(), 3), np.cumsum(counts[rank])[:-1]) for rank in range(len(counts))]
    shares = np.sum([values(one, 2 * cluster.size, 3) for one in range(cluster.size)], axis=0, dtype=dtype)
    for rank, found in enumerate(cluster.run(exchange)):
        expected = {
            "allreduce": total,
            "maximum": np.max(every, axis=0),
            "of one row": np.sum([values(one, 1, 3)[0] for one in range(cluster.size)], axis=0, dtype=dtype),
            "of no dimension": np.asarray(total.sum(dtype=dtype)),
            "reduce": total if rank == 0 else None,
            "sum_of_share": shares[2 * rank : 2 * rank + 2],
            "allgather_arrays": np.array([values(one, 5, 1)[:, 0] for one in range(cluster.size)]),
            "bcast_array": every[0],
            "gather_blocks": np.concatenate([values(one, one, 1)[:, 0] for one in range(cluster.size)])
            if rank == 0
            else None,
            "exchange_rows": np.concatenate([part[rank] for part in parts]),
        }
        for name, right in expected.items():
            if right is None:
                assert found[name] is None, name
            else:
                np.testing.assert_array_equal(found[name], right, err_msg=f"{name} of {layouts}", strict=True)


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


def test_few_rows_of_many_columns_are_summed_without_a_rank_that_waits_in_mpi(pair: xpulab.XPUCluster) -> None:
    def counting(here: Any) -> None:
        from xpulab.engine import comm

        Communicator: Any = comm.Communicator
        counted: list[int] = []
        ordinary = Communicator._together

        def together(self: Any, collective: Any, result: Any = None) -> Any:
            counted.extend([result.nbytes] if result is not None else [])
            return ordinary(self, collective, result)

        def longest() -> int:
            Communicator._together = ordinary
            return max(counted, default=0)

        Communicator._together, Communicator.longest = together, staticmethod(longest)

    from xpulab.cluster import KMeans, MiniBatchKMeans

    pair.activate()
    rng = np.random.default_rng(0)
    pair.run(counting)
    KMeans(2, random_state=0).fit(rng.normal(size=(3, 20_000)))
    MiniBatchKMeans(2, random_state=0).fit(rng.normal(size=(4, 12_000)))
    assert max(pair.run(lambda here: here.task.comm.longest())) < 100


def test_a_message_that_was_sent_before_its_sender_raised_is_received(pair: xpulab.XPUCluster) -> None:
    def fail(here: Any) -> Any:
        import time

        import numpy as np

        meeting = here.task.comm._meetings.tasks
        is_complete, raised = meeting.is_complete, 0.0

        def late() -> bool:
            """Return it a moment after the other rank has raised, as on a busy host."""
            nonlocal raised
            if not raised and here.task.engine.board.failed(here.task.number):
                raised = time.perf_counter()
            return bool(raised) and time.perf_counter() - raised > 2e-3 and is_complete()

        if here.rank == 1:
            meeting.is_complete = late
        here.task.comm.allreduce(np.zeros(1))
        raise RuntimeError("both ranks")

    with pytest.raises(xpulab.exceptions.EngineError, match="2 of 2 engines raised RuntimeError"):
        pair.run(fail)


def test_a_float32_fit_uses_no_float64_on_the_device(pair: xpulab.XPUCluster) -> None:
    from xpulab.cluster import KMeans

    pair.activate()
    X = np.random.RandomState(0).normal(size=(3000, 7)).astype(np.float32)

    def forget(here: Any) -> None:
        here.task.device.kept = here.task.device.programs.copy()
        here.task.device.programs.clear()

    def programs(here: Any) -> list[tuple[str, bytes]]:
        from xpulab.kernels.runtime.catalogue import find

        used = list(here.task.device.programs)
        here.task.device.programs.update(here.task.device.kept)
        return [(kernel.name, find(kernel).spirv) for kernel in used]

    pair.run(forget)  # what other tests have used
    fitted = KMeans(11, random_state=0, n_init=2).fit(X, sample_weight=np.linspace(0, 1, 3000))
    KMeans(4, init=np.vstack([X[:2], X[:2] + 1e6]), n_init=1).fit(X)  # with empty clusters
    fitted.predict(X)
    fitted.transform(X)
    fitted.score(X)
    for kernels in pair.run(programs):
        assert len({name for name, _ in kernels}) >= 6
        for name, spirv in kernels:
            assert FLOAT64 not in capabilities(spirv), name
