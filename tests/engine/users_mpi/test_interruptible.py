"""Each rewritten method of a cell's communicator gives the same answer as mpi4py's."""

from __future__ import annotations

import pytest

import xpulab
from xpulab.console.cells import run_cell

pytestmark = pytest.mark.cluster

_SETUP = """
import numpy as np
from mpi4py import MPI
own = MPI.COMM_WORLD.Dup()
others = (rank + 1) % size, (rank - 1) % size

def buffers(method, *arguments, n=2 * size):
    received = np.zeros(n)
    getattr(method.__self__, method.__name__)(np.arange(n, dtype=float) + rank, received, *arguments)
    return received.tolist()
"""

_OBJECTS = [
    "c.bcast({'from': rank}, root=size - 1)",
    "c.scatter([[i] * 3 for i in range(size)] if rank == 0 else None)",
    "c.gather('x' * (rank + 1), root=size - 1)",
    "c.allgather((rank, None))",
    "c.alltoall([rank * 10 + i for i in range(size)])",
    "c.reduce(rank + 1, MPI.PROD, size - 1)",
    "c.allreduce([rank])",
    "c.allreduce((rank % 2, rank), MPI.MAXLOC)",
    "c.scan(rank + 1)",
    "c.exscan(rank + 1, MPI.MAX)",
    "c.sendrecv(rank, others[0], source=others[1])",
    "c.sendrecv('x' * 10**6, others[0], 3, None, others[1], 3) == 'x' * 10**6",
    "c.barrier()",
]
_ARRAYS = [
    "buffers(c.Allreduce)",
    "buffers(c.Reduce) if rank == 0 else buffers(c.Reduce) and None",
    "buffers(c.Scan)",
    "buffers(c.Alltoall)",
    "(lambda a: (c.Bcast(a), a.tolist()))(np.full(3, rank))",
    "(lambda a: (c.Allgather(np.array([rank]), a), a.tolist()))(np.zeros(size, int))",
    "(lambda a: (c.Sendrecv(np.array([rank]), others[0], 0, a, others[1]), a.tolist()))(np.zeros(1, int))",
]


@pytest.mark.parametrize("expression", _OBJECTS + _ARRAYS)
def test_the_answer_is_that_of_mpi4py(pair: xpulab.XPUCluster, expression: str) -> None:
    source = f"{_SETUP}\nanswers = [{expression} for c in (own, comm)]"
    answers = run_cell(pair, source, out=["answers"]).values["answers"]
    assert answers is not None
    assert [theirs == ours for theirs, ours in answers] == [True, True]


def test_messages_probes_requests_and_status(pair: xpulab.XPUCluster) -> None:
    source = """
from mpi4py import MPI
status = MPI.Status()
if rank == 0:
    comm.send('first', 1, 5)
    comm.ssend('second', 1, 6)
    request = comm.isend('third', 1, 7)
    request.wait()
    found = None
else:
    seen = comm.probe(status=status), status.Get_tag()
    first = comm.recv(status=status), status.Get_source(), status.Get_tag()
    second = comm.mprobe(0, 6).recv()
    found = seen, first, second, comm.irecv(source=0, tag=7).wait()
"""
    values = run_cell(pair, source, out=["found"]).values["found"]
    assert values == [None, ((True, 5), ("first", 0, 5), "second", "third")]


def test_communicators_made_from_it_can_be_left_too(pair: xpulab.XPUCluster) -> None:
    source = "made = comm.Dup(), comm.Split(rank), comm.Split_type(MPI.COMM_TYPE_SHARED)"
    run_cell(pair, f"from mpi4py import MPI\n{source}\nsizes = [c.allreduce(1) for c in made]", out=["sizes"])
    assert pair.last_output.values["sizes"] == [[2, 1, 2]] * 2
    with pytest.raises(xpulab.exceptions.EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        run_cell(pair, "half = comm.Split(0)\n1 / 0 if rank else half.barrier()")
    with pytest.raises(xpulab.exceptions.EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        run_cell(pair, "1 / 0 if rank else comm.Split(0)")


def test_a_scatter_of_too_few_is_an_error(pair: xpulab.XPUCluster) -> None:
    with pytest.raises(xpulab.exceptions.EngineError, match="received 1 objects, expected 2, one for each rank"):
        run_cell(pair, "comm.scatter([1] if rank == 0 else None)")


@pytest.mark.parametrize(
    "waiting",
    [
        "MPI.COMM_WORLD.Barrier()",
        "MPI.COMM_WORLD.allreduce(1)",
        "MPI.COMM_SELF.recv()",
        "MPI.Request.Waitall([comm.irecv(source=1)])",
        "MPI.Request.waitall([comm.irecv(source=1)])",
        "MPI.Request.Waitany([comm.Irecv(np.empty(1), 1)])",
        "MPI.Request.waitsome([comm.irecv(source=1)])",
        "request = comm.Recv_init(np.empty(1), 1); request.Start(); request.Wait()",
        "comm.Create_cart([size])",
        "ring.Neighbor_allgather(np.ones(1), np.empty(2))",
        "ring.neighbor_allgather(1)",
        "ring.neighbor_alltoall([1, 1])",
        "comm.Create_group(comm.group)",
        "comm.Reduce_scatter(np.ones(2), np.ones(1))",
        "comm.Ireduce_scatter(np.ones(2), np.ones(1)).Wait()",
        "ring.Sub([True]).Dup().bcast(1, 1)",
        "comm.Split(0).Split(0).recv(source=1)",
    ],
)
def test_standard_idioms_can_be_left(pair: xpulab.XPUCluster, waiting: str) -> None:
    setup = "from mpi4py import MPI\nimport numpy as np\nring = comm.Create_cart([size], periods=True)\n"
    late = "ring.Sub([True]).Dup()" if "Sub" in waiting else "comm.Split(0).Split(0)" if "Split" in waiting else "0"
    with pytest.raises(xpulab.exceptions.EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        run_cell(pair, f"{setup}if rank:\n    {late}\n    1 / 0\n{waiting}")


def test_requests_and_grids_answer_as_mpi4pys(pair: xpulab.XPUCluster) -> None:
    source = """
from mpi4py import MPI
import numpy as np
other = 1 - rank
grid = comm.Create_cart([size], periods=[True])
around = np.zeros(2)
grid.Neighbor_allgather(np.array([10.0 + rank]), around)
got = np.zeros(1)
requests = [comm.Isend(np.array([rank + 1.0]), other), comm.Irecv(got, other)]
MPI.Request.Waitall(requests)
sent = comm.isend({rank}, other, 5)
received = MPI.Request.waitall([comm.irecv(source=other, tag=5), sent])
index, thing = MPI.Request.waitany([comm.irecv(source=MPI.PROC_NULL)])
stored = comm.Recv_init(got, other, 6)
MPI.Prequest.Startall([stored])
comm.Send(np.array([7.0]), other, 6)
MPI.Request.Waitall([stored])
nobody = comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
kinds = isinstance(grid, MPI.Cartcomm), isinstance(requests[0], MPI.Request), MPI.COMM_WORLD is comm
found = around.tolist(), received[0], index, thing, got.tolist(), nobody, kinds, grid.Get_coords(rank)
"""
    for rank, found in enumerate(run_cell(pair, source, out=["found"]).values["found"]):
        other = 1 - rank
        assert found == ([10.0 + other] * 2, {other}, 0, None, [7.0], True, (True, True, True), [rank])
