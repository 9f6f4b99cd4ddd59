"""The communicators of a user's code are pickled and copied as mpi4py's, and start no processes."""

from __future__ import annotations

from typing import Any

import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError

pytestmark = pytest.mark.cluster

COPIES = """
import copy, pickle
import cloudpickle
from mpi4py import MPI

class Holder:
    def __init__(self):
        self.comm = comm
    def world(self):
        return comm

ways = [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c)),
        lambda c: cloudpickle.loads(cloudpickle.dumps(c)), lambda c: comm.sendrecv(c, 1 - rank),
        lambda c: copy.deepcopy({"in": [c]})["in"][0]]
found = {each.name: [way(each) is each for way in ways] for each in (comm, MPI.COMM_SELF)}
held = comm.bcast(Holder() if rank == 0 else None)
found["held"] = held.comm is comm, held.world() is MPI.COMM_WORLD, copy.deepcopy(held).comm is comm
own = comm.Dup()
for way in ways[:4]:
    try:
        way(own)
    except ValueError as error:
        found["own"] = str(error)
"""


def test_world_and_self_are_the_same_after_a_copy(pair: xpulab.XPUCluster) -> None:
    run_cell(pair, COPIES)
    for found in pair.pull("found"):
        assert found["MPI_COMM_WORLD"] == found["MPI_COMM_SELF"] == [True] * 6
        assert found["held"] == (True, True, True)
        assert "cannot serialize" in found["own"]  # as mpi4py's
    assert pair.run(lambda here, comm_of: comm_of(here).name, lambda here: here.comm) == ["MPI_COMM_WORLD"] * 2


def test_the_world_is_the_world_after_a_failure_too(pair: xpulab.XPUCluster) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        run_cell(pair, "1 / 0 if rank else comm.barrier()")
    source = "import copy\nfrom mpi4py import MPI\nfound = comm.name, copy.copy(comm) is MPI.COMM_WORLD"
    run_cell(pair, source)
    assert pair.pull("found") == [("MPI_COMM_WORLD", True)] * 2


def test_a_communicator_does_not_travel_to_the_notebook(pair: xpulab.XPUCluster) -> None:
    """Whose process would import mpi4py for it."""
    with pytest.raises(EngineError, match="a communicator connects the ranks"):
        pair.pull("comm")

    def returned(here: Any) -> Any:
        return here.comm

    with pytest.raises(EngineError, match="cannot be sent to the notebook: a communicator connects the ranks"):
        pair.run(returned)


@pytest.mark.parametrize(
    "call",
    [
        "MPI.COMM_SELF.Spawn('true')",
        "comm.Spawn_multiple(['true'])",
        "comm.Dup().Spawn('true')",
        "MPIPoolExecutor(1).submit(pow, 2, 3).result()",
        "list(MPIPoolExecutor(1).map(pow, [2], [3]))",
        "Pool(1).map(abs, [-1])",
    ],
)
def test_processes_of_mpi_are_refused_in_words(pair: xpulab.XPUCluster, call: str) -> None:
    setup = "from mpi4py import MPI\nfrom mpi4py.futures import MPIPoolExecutor\nfrom mpi4py.util.pool import Pool\n"
    setup += "assert not hasattr(type(comm).Spawn, '__objclass__'), 'this would be a call of MPI'\n"
    with pytest.raises(EngineError, match=r"MPICommExecutor\(comm\).* python -m mpi4py\.futures"):
        run_cell(pair, setup + call)


def test_the_ranks_are_workers_of_an_executor(pair: xpulab.XPUCluster) -> None:
    source = """
from mpi4py.futures import MPICommExecutor
with MPICommExecutor(comm) as executor:
    found = None if executor is None else list(executor.map(pow, [1, 2, 3], [2, 2, 2]))
"""
    run_cell(pair, source)
    assert pair.pull("found") == [[1, 4, 9], None]
