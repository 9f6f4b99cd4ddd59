"""Which ranks run on the host of this rank, and on that of the notebook; where a rank is placed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from mpi4py import MPI

from xpulab.sharing.descriptions import HelperDescription
from xpulab.sharing.folder import BOARD, write_private

__all__ = ["Placement", "RankHost", "host_of", "show_board"]


class Placement(TypedDict, total=False):
    """What the notebook tells a rank of its place; a rank of a script is told nothing."""

    environment: dict[str, str]
    cores: list[int]
    selector: str
    mpi_rank: int


class RankHost:
    """The host of this rank.

    Parameters
    ----------
    rank : int
        This rank.
    leaders : sequence of int
        For each rank, the first rank of its host. If there is a helper rank, it comes last, and leads its own host.
    carrier : int
        The rank on the notebook's host that sends rows to other hosts: 0, or the helper rank.

    Attributes
    ----------
    leads : bool
        Whether this rank is the first of its host.
    here : bool
        Whether this rank runs on the notebook's host.
    carries : bool
        Whether this rank is the carrier.
    several : bool
        Whether there are ranks on other hosts than the notebook's.
    followers : list of int
        The other ranks of this host.
    """

    def __init__(self, rank: int, leaders: Sequence[int], carrier: int = 0) -> None:
        self.rank, self.leaders, self.carrier = rank, list(leaders), carrier
        mine = self.leaders[rank]
        self.leads = mine == rank
        self.here = not self.elsewhere(rank)
        self.carries = rank == carrier
        self.several = len(set(self.leaders)) > 1
        self.followers = [other for other, leader in enumerate(self.leaders) if leader == mine and other != rank]

    def elsewhere(self, rank: int) -> bool:
        """Return whether a rank runs on another host than the notebook's."""
        return self.leaders[rank] != self.leaders[self.carrier]

    def others(self) -> list[int]:
        """Return the ranks on other hosts than the notebook's."""
        return [rank for rank in range(len(self.leaders)) if self.elsewhere(rank)]


def host_of(world: MPI.Intracomm, several: bool, helped: bool = False) -> tuple[RankHost, MPI.Intracomm]:
    """Find out which ranks run on this host. All engines call this together.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        All engines.
    several : bool
        Whether there may be engines on several hosts. To ask MPI takes up to 0.2 s.
    helped : bool
        Whether there is a helper rank on the notebook's host, which has no engine then.

    Returns
    -------
    host : RankHost
    comm : mpi4py.MPI.Intracomm
        The engines of this host, which share memory.
    """
    comm, leaders = world, [0] * world.size
    if several:
        comm = MPI.Intracomm(world.Split_type(MPI.COMM_TYPE_SHARED))
        leaders = world.allgather(comm.bcast(world.rank))
    if helped:
        return RankHost(world.rank, [*leaders, world.size], world.size), comm
    return RankHost(world.rank, leaders), comm


def show_board(folder: str, path: str, ranks: list[int], helper: HelperDescription | None = None) -> None:
    """Write into the cluster's folder on this host where its board is, and which ranks write on it."""
    content = {"path": path, "ranks": ranks, "helper": helper and asdict(helper)}
    write_private(Path(folder, BOARD), json.dumps(content))
