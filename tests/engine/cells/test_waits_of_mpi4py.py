"""The waits of intercommunicators, pkl5, windows and files end with an exception elsewhere, with mpi4py's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

SETUP = """
import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5, sync
other = 1 - rank
half = comm.Split(rank)
inter = half.Create_intercomm(0, comm, other, 5)
packing, between = pkl5.Intracomm(comm), pkl5.Intercomm(inter)
copied = pkl5.Intracomm(comm.Dup())
copied.allgather(0)
win = MPI.Win.Allocate(8, 8, comm=comm)
group = comm.group.Incl([other])
root = MPI.ROOT if rank else 0  # rank 1 is the root
long = np.zeros(10**6)
"""

WAITS = [
    "inter.recv(source=0)",
    "inter.Recv(np.zeros(1), 0)",
    "inter.ssend(1, 0)",
    "inter.send(long, 0)",
    "inter.sendrecv(1, 0, source=0)",
    "inter.Sendrecv(np.ones(1), 0, 0, np.zeros(1), 0)",
    "inter.probe()",
    "inter.mprobe()",
    "inter.irecv(source=0).wait()",
    "inter.Irecv(np.zeros(1), 0).Wait()",
    "inter.bcast(1, 0)",
    "inter.Bcast(np.zeros(1), 0)",
    "inter.gather(1, MPI.ROOT)",
    "inter.scatter(None, 0)",
    "inter.allgather(1)",
    "inter.alltoall([1])",
    "inter.allreduce(1)",
    "inter.reduce(1, MPI.SUM, MPI.ROOT)",
    "inter.Barrier()",
    "inter.Merge()",
    "inter.Dup()",
    "inter.Disconnect()",
    "half.Create_intercomm(0, comm, other, 6)",
    "packing.recv(source=1)",
    "packing.send(long, 1)",
    "packing.ssend(1, 1)",
    "packing.sendrecv(1, 1, source=1)",
    "packing.mprobe()",
    "pkl5.Message.probe(packing)",
    "packing.issend(1, 1).wait()",
    "pkl5.Request.waitall([packing.issend(1, 1)])",
    "packing.bcast(1, 1)",
    "packing.gather(1)",
    "packing.Recv(np.zeros(1), 1)",
    "packing.Split(0)",
    "packing.Dup().barrier()",
    "copied.gather(1)",
    "copied.scatter(None, 1)",
    "copied.allgather(1)",
    "copied.alltoall([1, 2])",
    "copied.barrier()",
    "between.recv(source=0)",
    "between.bcast(1, 0)",
    "between.allgather(1)",
    "pkl5.Comm(comm).recv(source=1)",
    "comm.Sendrecv_replace(np.zeros(1), 1, 0, 1)",
    "comm.Idup()[1].Wait()",
    "MPI.Message.Probe(comm)",
    "MPI.Message.probe(comm)",
    "win.Fence()",
    "win.Free()",
    "win.Start(group)",
    "win.Post(group); win.Wait()",
    "win.Lock(1)",
    "win.Lock_all()",
    "MPI.Win.Create(long, comm=comm)",
    "MPI.Win.Allocate_shared(8, comm=comm)",
    "sync.Mutex(comm=comm)",
    "file.Write_all(long)",
    "file.Read_at_all(0, long)",
    "file.Write_ordered(long)",
    "file.Read_all_begin(long)",
    "file.Iwrite_at_all(0, long).Wait()",
    "file.Set_view(8, MPI.DOUBLE)",
    "file.Set_size(8)",
    "file.Seek_shared(0)",
    "file.Sync()",
    "file.Close()",
    "MPI.File.Open(comm, path)",
]


def _with_file(folder: Path) -> str:
    opened = "file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE)"
    return f"{SETUP}path = {str(folder / 'rows')!r}\n{opened}\n"


@pytest.mark.parametrize("waiting", WAITS)
def test_another_ranks_exception_ends_the_wait(pair: xpulab.XPUCluster, waiting: str, tmp_path: Path) -> None:
    raises = "win.Lock(1)\n    comm.Barrier()\n    1 / 0" if ".Lock" in waiting else "1 / 0"
    before = "comm.Barrier()\n" if ".Lock" in waiting else ""
    with pytest.raises(EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        run_cell(pair, f"{_with_file(tmp_path)}if rank:\n    {raises}\n{before}{waiting}\ncomm.Barrier()")


OF_TWO_GROUPS = [
    "c.bcast({'from': rank}, root)",
    "c.gather('x' * (rank + 1), root)",
    "c.scatter([[rank] * 3] if rank else None, root)",
    "c.allgather((rank, None))",
    "c.alltoall([rank * 10])",
    "c.reduce(rank + 1, MPI.PROD, root)",
    "c.allreduce([rank])",
    "c.barrier()",
    "c.sendrecv('x' * 10**6, 0, 3, None, 0, 3) == 'x' * 10**6",
    "(lambda a: (c.Allgather(np.array([rank]), a), a.tolist()))(np.zeros(1, int))",
    "c.Merge(rank == 0).allgather(rank)",
    "c.Dup().remote_size",
]
PACKED = [
    "c.bcast({'from': rank, 'array': np.arange(4.0)}, 1)['from']",
    "c.bcast(np.arange(10**6) * (1 + rank), 1).sum()",
    "c.gather('x' * (rank + 1), 1)",
    "c.scatter([[i] * 3 for i in range(size)] if rank == 0 else None)",
    "c.allgather((rank, None))",
    "c.alltoall([rank * 10 + i for i in range(size)])",
    "c.sendrecv(long + rank, other, source=other).sum()",
    "[c.isend(rank, other).wait(), c.mprobe().recv()]",
    "[c.isend(rank, other).wait(), c.recv(source=other)]",
    "c.Split(0, -rank).rank",
]
REPLACED = [
    "(lambda a: (c.Sendrecv_replace(a, other, 3, other, 3), a.tolist()))(np.arange(3) + rank)",
    "(lambda a: (c.Sendrecv_replace([a, 1, pairs], other), a.tolist()))(np.arange(6.0) + 10 * rank)",
    "(lambda a: (c.Sendrecv_replace(a, MPI.PROC_NULL, 0, MPI.PROC_NULL), a.tolist()))(np.arange(3) + rank)",
]
MANY = f"""{SETUP}
pairs = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
of_two_groups = MPI.Intercomm(inter), inter
packed = comm, packing
replaced = MPI.Intracomm(comm), comm
"""


@pytest.mark.parametrize(
    ("communicators", "expressions"),
    [("of_two_groups", OF_TWO_GROUPS), ("packed", PACKED), ("replaced", REPLACED)],
    ids=["intercommunicators", "pkl5", "Sendrecv_replace"],
)
def test_the_values_are_those_of_mpi4py(pair: xpulab.XPUCluster, communicators: str, expressions: list[str]) -> None:
    listed = ", ".join(f"({expression})" for expression in expressions)
    run_cell(pair, f"{MANY}theirs, ours = [[{listed}] for c in {communicators}]", out=["theirs", "ours"])
    values = pair.last_output.values
    for theirs, ours in zip(values["theirs"], values["ours"], strict=True):
        assert dict(zip(expressions, ours, strict=True)) == dict(zip(expressions, theirs, strict=True))


WINDOWS = f"""{SETUP}
found, got, mine = [], np.zeros(1), np.array([10.0 + rank])
memory = np.frombuffer(win)
memory[0] = rank
win.Fence()
win.Put(mine, other)
win.Fence()
found.append(memory[0])
win.Post(group)
win.Start(group)
win.Accumulate(mine, other)
win.Complete()
win.Wait()
found.append(memory[0])
comm.Barrier()
win.Lock(other)
win.Get(got, other)
win.Unlock(other)
found.append(got[0])
win.Lock_all()
win.Rget(got, rank).Wait()
win.Flush_all()
win.Unlock_all()
found.append(got[0])
win.Free()
counter = sync.Counter(comm=comm)
comm.Barrier()
taken = comm.allgather(next(counter))
counter.free()
found += [isinstance(win, MPI.Win), sorted(taken)]
"""


def test_windows_work_as_mpi4pys(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, WINDOWS, out=["found"])
    first, second = pair.last_output.values["found"]
    assert first == [11.0, 22.0, 20.0, 22.0, True, [0, 1]]
    assert second == [10.0, 20.0, 22.0, 20.0, True, [0, 1]]


@pytest.mark.parametrize("waiting", ["inter.recv(source=0)", "packing.recv(source=1)", "win.Fence()", "file.Close()"])
def test_a_functions_world_is_as_a_cells(pair: xpulab.XPUCluster, waiting: str, tmp_path: Path) -> None:
    def function(here: Any, source: str) -> None:
        from mpi4py import MPI

        exec(source, {"rank": here.rank, "comm": MPI.COMM_WORLD})

    with pytest.raises(EngineError, match="1 of 2 engines raised ZeroDivisionError"):
        pair.run(function, f"{_with_file(tmp_path)}1 / 0 if rank else {waiting}")
