"""The activities of a cell on the engines, as ``%%xpu_profile`` measures them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError
from xpulab.report.profile import Profile, profiled

pytestmark = pytest.mark.cluster

_DEVICE = """
import numpy as np
import dpctl.memory, dpctl.program
source = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2; }"
twice = dpctl.program.create_program_from_source(queue, source).get_sycl_kernel("twice")
first, second = (dpctl.memory.MemoryUSMShared(4096, queue=queue) for _ in range(2))
np.asarray(first).view(np.float32)[:] = 1
for _ in range(3):
    queue.submit(twice, [first], [1024])
queue.submit_async(twice, [first], [1024]).wait()
queue.memcpy(second, first, 4096)
queue.memcpy_async(second, first, 1024).wait()
found = set(np.asarray(second).view(np.float32).tolist())
"""
_MPI = """
import numpy as np
from mpi4py import MPI
values, others = np.ones(1000), np.empty((size, 1000))
comm.Allreduce(values, np.empty(1000))
MPI.COMM_WORLD.Allreduce([values, 10, MPI.DOUBLE], np.empty(10))
comm.Allgather(values, others)
whole = comm.bcast(b"x" * 5000)
comm.Dup().barrier()
request = comm.Isend(values, (rank + 1) % size)
comm.Recv(values, (rank - 1) % size)
MPI.Request.Waitall([request])
sent = comm.isend("y" * 3000, (rank + 1) % size, 7)
comm.recv(source=(rank - 1) % size, tag=7)
sent.wait()
"""


def _counts(profile: Profile, rank: int, kind: str) -> dict[str, tuple[int, int | None]]:
    activities = profile.cells[0].ranks[rank].activities
    return {each.name: (each.count, each.nbytes) for each in activities if each.kind == kind}


def test_kernels_and_transfers_of_a_cell(cluster: xpulab.XPUCluster) -> None:
    with profiled() as profile:
        assert run_cell(cluster, _DEVICE, out=["found"]).values["found"] == [{16.0}] * cluster.size
    assert list(profile.cells[0].ranks) == list(range(cluster.size))
    for rank, usage in profile.cells[0].ranks.items():
        assert _counts(profile, rank, "kernel") == {"twice": (4, None)}
        assert _counts(profile, rank, "transfer") == {"memcpy": (2, 5120)}
        assert 0 < usage.of("kernel") < usage.seconds
        assert usage.of("MPI") == usage.wait == 0


def test_more_events_than_are_kept_at_a_time(pair: xpulab.XPUCluster) -> None:
    source = f"{_DEVICE}for _ in range(2345):\n    queue.submit_async(twice, [first], [1024])\nqueue.wait()"
    with profiled() as profile:
        run_cell(pair, source)
    assert _counts(profile, 1, "kernel") == {"twice": (2349, None)}


def test_calls_of_mpi_by_name(cluster: xpulab.XPUCluster) -> None:
    with profiled() as profile:
        run_cell(cluster, _MPI)
    for rank, usage in profile.cells[0].ranks.items():
        counts = _counts(profile, rank, "MPI")
        texts = {name: counts.pop(name) for name in ("bcast", "isend", "recv")}
        assert counts == {
            "Allreduce": (2, 8080),
            "Allgather": (1, 8000 * cluster.size),
            "Dup": (1, 0),
            "barrier": (1, 0),
            "Isend": (1, 8000),
            "Recv": (1, 8000),
            "Waitall": (1, 0),
            "wait": (1, 0),
        }
        assert {name: (count, round(nbytes or 0, -2)) for name, (count, nbytes) in texts.items()} == {
            "bcast": (1, 5000),
            "isend": (1, 3000),
            "recv": (1, 3000),
        }
        told = {each.name: each.wait is not None for each in usage.activities}
        collective = {"Allreduce", "Allgather", "bcast", "barrier", "Dup"}
        assert {name for name, wait in told.items() if wait} == collective
        assert 0 <= usage.wait <= usage.of("MPI") <= usage.seconds


def test_cells_on_some_ranks_functions_and_estimators(pair: xpulab.XPUCluster) -> None:
    import numpy as np

    from xpulab.cluster import KMeans

    def add(here: Any) -> Any:
        return here.comm.allreduce(1), here.queue.name

    pair.activate()
    with profiled() as profile:
        run_cell(pair, "comm.barrier()", ranks=[1])
        assert [value for value, _ in pair.run(add)] == [2, 2]
        KMeans(2, n_init=1).fit(np.random.RandomState(0).normal(size=(99, 2)))
    assert [(cell.title.rpartition(" ")[0] or cell.title, list(cell.ranks)) for cell in profile.cells] == [
        ("%%xpu cell", [1]),
        ("run(add)", [0, 1]),
    ]
    assert str(profile).startswith("Profile: 2 cells on the engines, 1 call, ")
    json.dumps(profile.to_dict())


def test_a_cell_that_raises_is_shown_and_measuring_ends(pair: xpulab.XPUCluster) -> None:
    methods = (
        "from xpulab.engine.users_mpi.interruptible import KINDS\n"
        "found = [id(method) for kind in KINDS for method in vars(kind).values()]"
    )
    run_cell(pair, methods, out=["found"])
    before = pair.last_output.values["found"]
    with profiled() as profile, pytest.raises(EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        run_cell(pair, "comm.Dup()\n1 / 0 if rank else comm.barrier()")
    assert _counts(profile, 0, "MPI") == {"Dup": (1, 0), "barrier": (1, 0)}
    assert _counts(profile, 1, "MPI") == {"Dup": (1, 0)}
    n = len(profile.cells)
    source = f"import dpctl\n{methods}\nplain = type(queue) is dpctl.SyclQueue"
    output = run_cell(pair, source, out=["found", "plain"])
    assert output.values == {"found": before, "plain": [True, True]}
    assert len(profile.cells) == n
