"""Which ranks run on the host of this rank, and on that of the notebook."""

from __future__ import annotations

import json
from pathlib import Path

from mpi4py import MPI

from xpulab.sharing.folder import BOARD, write_private

__all__ = ["RankHost"]


class RankHost:
    """The host of this rank. All ranks make it together.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        All ranks.
    several : bool
        Whether there may be ranks on several hosts. To ask MPI takes up to 0.2 s.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        The ranks of this host, which share memory.
    leaders : list of int
        For each rank, the first rank of its host.
    leads : bool
        Whether this rank is the first of its host.
    here : bool
        Whether this rank runs on the notebook's host, as rank 0 does.
    several : bool
        Whether there are ranks on other hosts.
    followers : list of int
        The other ranks of this host.
    """

    def __init__(self, world: MPI.Intracomm, several: bool) -> None:
        self.comm, self.leaders = world, [0] * world.size
        if several:
            self.comm = MPI.Intracomm(world.Split_type(MPI.COMM_TYPE_SHARED))
            self.leaders = world.allgather(self.comm.bcast(world.rank))
        mine = self.leaders[world.rank]
        self.leads = mine == world.rank
        self.here = mine == self.leaders[0]
        self.several = len(set(self.leaders)) > 1
        self._ranks = [rank for rank, leader in enumerate(self.leaders) if leader == mine]
        self.followers = [rank for rank in self._ranks if rank != world.rank]

    def show_board(self, folder: str, path: str) -> None:
        """Write into the cluster's folder on this host where its board is."""
        if self.leads:
            write_private(Path(folder, BOARD), json.dumps({"path": path, "ranks": self._ranks}))
