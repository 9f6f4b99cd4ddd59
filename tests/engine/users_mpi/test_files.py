"""A user's file of MPI has all collective calls of mpi4py's, and gives the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import xpulab
from xpulab.console.cells import run_cell

pytestmark = pytest.mark.cluster

FILES = """
from mpi4py import MPI
import numpy as np
file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE)
other, mine, read, found = 1 - rank, np.arange(3.0) + 10 * rank, np.zeros(3), []
def moved(call):
    read[:] = 0
    call()
    found.append(read.tolist())
file.Set_size(0)
file.Set_view(24 * rank, MPI.DOUBLE)
file.Write_all(mine)
file.Sync()
file.Set_view(0, MPI.DOUBLE)
moved(lambda: file.Read_at_all(3 * other, read))
moved(lambda: file.Iread_at_all(3 * rank, read).Wait())
moved(lambda: (file.Read_at_all_begin(3 * other, read), file.Read_at_all_end(read)))
file.Seek_shared(0)
moved(lambda: file.Read_ordered(read))
found += [file.Get_size(), isinstance(file, MPI.File)]
file.Close()
found.append(file == MPI.FILE_NULL)
"""


def test_files_work_as_mpi4pys(pair: xpulab.XPUCluster, tmp_path: Path) -> None:
    run_cell(pair, f"path = {str(tmp_path / 'rows')!r}{FILES}", out=["found"])
    first, second = pair.last_output.values["found"]
    of_0, of_1 = [0.0, 1.0, 2.0], [10.0, 11.0, 12.0]
    assert first == [of_1, of_0, of_1, of_0, 48, True, True]
    assert second == [of_0, of_1, of_0, of_1, 48, True, True]


def _calls_of_mpi4py_itself(task: Any) -> list[str]:
    from xpulab.engine.users_mpi.files import File

    theirs = File.__base__
    collective = {name for name in dir(File) if "_all" in name or "_ordered" in name or name.startswith(("I", "Set_"))}
    alone = {"Set_errhandler"}
    return [name for name in sorted(collective - alone) if getattr(File, name) is getattr(theirs, name)]


def test_each_collective_call_and_each_request_can_be_left(pair: xpulab.XPUCluster) -> None:
    assert pair.run(_calls_of_mpi4py_itself) == [[], []]
