"""Messages of 2.5 GiB with each MPI. They run with XPULAB_MUCH_MEMORY=1, on a machine with 20 GiB of free memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpis import with_mpi

import xpulab
from xpulab.console.cells import run_cell
from xpulab.exceptions import EngineError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("XPULAB_MUCH_MEMORY"), reason="XPULAB_MUCH_MEMORY is not set: needs 20 GiB of free memory"
    ),
]

LENGTH = 5 << 29  # MPI counts the items of a message up to 2**31


@pytest.fixture(scope="module", params=["intel", "openmpi", "mpich"])
def engines(request: pytest.FixtureRequest) -> Iterator[xpulab.XPUCluster]:
    with xpulab.XPUCluster(2, mpi=with_mpi(request.param), launcher="local", display="none") as cluster:
        yield cluster


def test_arrays_in_every_collective(engines: xpulab.XPUCluster) -> None:
    def ends(values: Any) -> list[int]:
        return [len(values), int(values[0]), int(values[-1])]

    def every(here: Any) -> dict[str, Any]:
        comm, rank = here.task.comm, here.task.comm.rank
        mine = np.full(LENGTH, 1 + rank, np.uint8)
        mine[-1] = 10 + rank
        found = {
            "allreduce": ends(comm.allreduce(mine)),
            "bcast_array": ends(comm.bcast_array(mine)),
            "exchange_rows": ends(comm.exchange_rows(mine[:, None], np.eye(2, dtype=int)[1 - rank] * LENGTH)[:, 0]),
        }
        gathered = comm.gather_blocks(mine if rank else mine[:1])
        return {**found, "gather_blocks": None if gathered is None else ends(gathered)}

    for rank, found in enumerate(engines.run(every)):
        assert found == {
            "allreduce": [LENGTH, 3, 21],
            "bcast_array": [LENGTH, 1, 10],
            "exchange_rows": [LENGTH, 2 - rank, 11 - rank],
            "gather_blocks": [LENGTH + 1, 1, 11] if rank == 0 else None,
        }


@pytest.mark.usefixtures("merged_lines")
def test_an_object_of_a_cell(engines: xpulab.XPUCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Open MPI refuses it, and the message says why and what to do."""
    source = f"import numpy as np\nprint(len(comm.bcast(b'x' * {LENGTH} if rank == 0 else None)))"
    if all(fact.mpi.startswith("Open MPI") for fact in engines.facts):
        with pytest.raises(EngineError, match="Open MPI takes none so large"):
            run_cell(engines, source)
    else:
        run_cell(engines, source)
        assert capsys.readouterr().out == f"[0-1] {LENGTH}\n"
    assert engines.run(lambda task: task.comm.allreduce(1)) == [2, 2]
