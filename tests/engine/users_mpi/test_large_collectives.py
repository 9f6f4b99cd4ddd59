"""Large reductions and broadcasts of a cell: the ranks meet, and then call MPI's blocking form."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from strikes import is_waiting, pressed_when

import xpulab
from xpulab.console.cells import CellInterrupted, run_cell
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

_SETUP = """
import numpy as np
from mpi4py import MPI
from xpulab.engine import waiting
from xpulab.engine.users_mpi import interruptible, large_collectives
n, last, other = 1 << 19, size - 1, (rank + 1) % size
values, received = np.arange(n, dtype=float) + rank, np.zeros(n)
"""
_CALLS = [
    "c.Bcast(values, last)",
    "c.Bcast([values, n] if rank else [np.r_[values, 0, 0], n, MPI.DOUBLE])",
    "c.Allreduce(values, received)",
    "c.Allreduce(MPI.IN_PLACE, [values, 'd'], MPI.MAX)",
    "c.Allreduce([values, (n - 8, 8), MPI.DOUBLE], [received, n - 8, 4, 'd'])",
    "c.Reduce(values, received if rank == last else None, root=last)",
    "c.Reduce(MPI.IN_PLACE if rank == 0 else values, values, MPI.MIN)",
    "c.Scan(values, received)",
    "c.Exscan(values, received) or received.__imul__(rank > 0)",
]


@pytest.mark.parametrize("call", _CALLS)
def test_the_answer_is_that_of_mpi4py(cluster: xpulab.XPUCluster, call: str) -> None:
    source = f"""{_SETUP}
met, meet_for = [], interruptible.meet_for
interruptible.meet_for = lambda *arguments: (met.append(arguments[1:4]), meet_for(*arguments))
answers = []
try:
    for c in MPI.Intracomm(comm), comm:
        values, received = np.arange(n, dtype=float) + rank, np.zeros(n)
        {call}
        answers.append(np.r_[values, received])
finally:
    interruptible.meet_for = meet_for
same = np.array_equal(*answers), met, n
"""
    found = run_cell(cluster, source, out=["same"]).values["same"]
    n = found[0][2]
    nbytes = 8 * (n - 8 if "n - 8" in call else n)
    root = cluster.size - 1 if "last" in call else 0
    assert found == [(True, [(call.split("(")[0].removeprefix("c."), nbytes, root)], n)] * cluster.size


@pytest.mark.parametrize("call", ["Bcast(values)", *(f"{name}(values, received)" for name in ("Allreduce", "Scan"))])
def test_a_rank_that_raises_ends_the_meeting(cluster: xpulab.XPUCluster, call: str) -> None:
    with pytest.raises(EngineError, match=f"1 of {cluster.size} engines raised ZeroDivisionError"):
        run_cell(cluster, f"{_SETUP}1 / 0 if rank == last else comm.{call}")
    assert cluster.run(lambda here: here.comm.allreduce(1)) == [cluster.size] * cluster.size


@pytest.mark.parametrize(
    ("received", "error"),
    [
        ("np.zeros(n - 1)", "ValueError"),
        ("np.zeros(n, np.int64)", "ValueError"),
        ("memoryview(bytes(8 * n)).cast('d')", "BufferError"),
        ("np.zeros((n, 2))[:, 0]", "(ValueError|BufferError)"),
        ("[received, n, -1, 'd']", "ValueError"),
        ("[received, 'no type']", "KeyError|ValueError"),
    ],
)
def test_a_call_that_mpi4py_refuses_on_one_rank_does_not_block_the_others(
    pair: xpulab.XPUCluster, received: str, error: str
) -> None:
    with pytest.raises(EngineError, match=f"1 of 2 engines raised ({error})"):
        run_cell(pair, f"{_SETUP}comm.Reduce(values, {received} if rank == 1 else None, root=1)")


def test_ranks_that_call_different_collectives_raise_an_error(pair: xpulab.XPUCluster) -> None:
    expected = (
        "received Reduce of 4,194,304 bytes with root 1 on rank 0; Allreduce of 4,194,304 bytes with root 0 on rank 1; "
        "expected the same collective call on every rank"
    )
    with pytest.raises(EngineError, match="2 of 2 engines raised ValueError") as raised:
        run_cell(pair, f"{_SETUP}comm.Allreduce(values, received) if rank else comm.Reduce(values, None, root=1)")
    assert expected in str(raised.value)
    assert run_cell(pair, "done = comm.allreduce(1)", out=["done"]).values["done"] == [2, 2]


@pytest.mark.parametrize("waiting", ["comm.Allreduce(values, received)", "comm.Dup().Bcast(values)"])
def test_ctrl_c_ends_a_meeting_to_which_one_rank_does_not_come(pair: xpulab.XPUCluster, waiting: str) -> None:
    place = r"rank 0 was in line \d+: if rank == 0: comm"
    with pytest.raises(CellInterrupted, match=place), pressed_when(lambda: is_waiting(pair)):
        run_cell(pair, f"{_SETUP}if rank == 0: {waiting}\nelse: comm.recv(source=0)")
    assert run_cell(pair, "done = comm.allreduce(1)", out=["done"]).values["done"] == [2, 2]


def test_ctrl_c_in_a_meeting_to_which_all_come_is_raised_when_the_call_has_ended(cluster: xpulab.XPUCluster) -> None:
    source = f"""{_SETUP}
import os, signal
poll, usual = large_collectives.poll, waiting.GRACE
def interrupted_poll(*arguments):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGINT)
    return poll(*arguments)
large_collectives.poll, waiting.GRACE = interrupted_poll, 60
came = False
try:
    comm.Allreduce(np.ones(n), received)
except KeyboardInterrupt:
    came = True
finally:
    large_collectives.poll, waiting.GRACE = poll, usual
found = came, set(received.tolist()), comm.allreduce(1)
"""
    size = cluster.size
    found = run_cell(cluster, source, out=["found"]).values["found"]
    assert found == [(rank == 0, {float(size)}, size) for rank in range(size)]


def test_ctrl_c_in_a_barrier_of_an_estimator_is_raised_when_the_reduction_has_ended(pair: xpulab.XPUCluster) -> None:
    def reduce(here: Any) -> tuple[bool, list[float], float]:

        import numpy as np

        import xpulab.engine.waiting as module

        comm, usual = here.task.comm, module.GRACE
        arrive, module.GRACE = comm._arrive, 60

        def interrupted(*arguments: Any) -> None:
            if comm.rank == 0:
                os.kill(os.getpid(), signal.SIGINT)
            arrive(*arguments)

        comm._arrive, came, found = interrupted, False, []
        try:
            found = sorted(set(comm.allreduce(np.ones(100_000)).tolist()))
        except KeyboardInterrupt:
            came = True
        finally:
            comm._arrive, module.GRACE = arrive, usual
        return came, found, float(comm.allreduce(np.ones(1))[0])

    assert pair.run(reduce) == [(True, [], 2.0), (False, [2.0], 2.0)]


def test_small_messages_do_not_meet(pair: xpulab.XPUCluster) -> None:
    source = "sizes = [large_collectives.size_of(comm, 'Scan', (np.ones(k), np.ones(k)), {})[0] for k in (9, n)]"
    assert run_cell(pair, f"{_SETUP}{source}", out=["sizes"]).values["sizes"] == [[0, 8 << 19]] * 2
