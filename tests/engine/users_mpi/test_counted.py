"""Calls of MPI before which the ranks tell each other a number, or that they are there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import xpulab
from xpulab.console.cells import run_cell
from xpulab.engine.users_mpi.counted import loads_each, with_counts

pytestmark = pytest.mark.cluster


def test_objects_of_any_length_come_back_and_none_for_none() -> None:
    things = [1, "x" * 1000, None, [2.0]]
    pieces = [pickle.dumps(thing) for thing in things]
    pieces.insert(1, b"")
    sizes = np.array([len(piece) for piece in pieces])
    assert loads_each(bytearray(b"".join(pieces)), sizes) == [1, None, "x" * 1000, None, [2.0]]


@pytest.mark.parametrize("given", [None, [2, 3]])
def test_counts_are_asked_for_if_they_are_not_given(given: list[int] | None) -> None:
    asked, called = [], []

    def allgather(mine: Any, every: Any) -> None:
        asked.append(mine.tolist())
        every[:] = 5, 6

    comm = SimpleNamespace(size=2, Allgather=allgather)
    reduce_scatter = with_counts(lambda self, *arguments: called.append(arguments[2]))
    reduce_scatter(comm, np.zeros(11), np.zeros(5), given)
    assert (asked, called) == (([[5]], [[5, 6]]) if given is None else ([], [given]))
    reduce_scatter(comm, np.zeros(11), "no message", None)  # mpi4py refuses it
    assert called[-1] is None


def test_neighbours_groups_and_counts_are_those_of_mpi4py(clusters: Callable[[int], xpulab.XPUCluster]) -> None:
    """The grid has a border, beyond which a rank has no neighbour."""
    source = """
from mpi4py import MPI
import numpy as np
own = MPI.Intracomm(MPI.COMM_WORLD)
answers = []
for c in (own, comm):
    line, star = c.Create_cart([size], periods=[False]), c.Create_dist_graph_adjacent([0], [0] if rank else [0, 1, 2])
    parts = np.zeros(rank + 1)
    c.Reduce_scatter(np.arange(6.0) + rank, parts)
    request = c.Ireduce_scatter(np.arange(6.0), parts, op=MPI.MAX)
    request.Wait()
    few = c.Create_group(c.group.Incl([2, 0]), 7) if rank != 1 else None
    answers.append((
        line.neighbor_allgather("x" * rank), line.neighbor_alltoall([(rank, "left"), (rank, "right")]),
        star.indegree, star.neighbor_allgather([rank]), parts.tolist(), few and (few.rank, few.allreduce(rank)),
    ))
same = answers[0] == answers[1]
kinds = isinstance(few, type(comm)) or rank == 1
"""
    three = clusters(3)
    values = run_cell(three, source, out=["same", "answers", "kinds"]).values
    assert values["same"] == [True] * 3, values["answers"]
    assert values["kinds"] == [True] * 3
    with pytest.raises(xpulab.exceptions.EngineError, match="received 1 objects, expected 2, one for each neighbour"):
        run_cell(three, "comm.Create_cart([size]).neighbor_alltoall([1])")
