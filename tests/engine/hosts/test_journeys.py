"""Two ranks of one host as if they were on two: what travels between them, and what a helper rank gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xpulab

pytestmark = pytest.mark.cluster
VALUES = np.random.default_rng(0).normal(size=(5000, 4))


def journey(here: Any, values: np.ndarray) -> dict[str, Any]:
    """On an engine: rank 0 is on the notebook's host, and rank 1 elsewhere."""
    from xpulab.engine.dataset import write_block
    from xpulab.engine.host import RankHost
    from xpulab.engine.hosts.rows import Journey
    from xpulab.sharing.memory import SharedBlock
    from xpulab.sharing.sources import SharedArray, Target

    task, rank, results = here.task, here.rank, None
    places: Any = None
    if rank == 0:
        block, results = (SharedBlock.create(values.nbytes) for _ in range(2))
        block.write(values, 0)
        places = [
            SharedArray(block.path, values.shape, values.dtype),
            Target(results.path, values.shape, values.dtype),
        ]
    places = here.comm.bcast(places)
    travel: Any = Journey(task, RankHost(rank, [0, 1]), task.engine.communicators.pairs, [0, 1])
    try:
        array, target = travel.travel(places)
        got = array.open().copy()
        half = len(values) // 2
        bounds = [0, half, len(values)]
        write_block(task, target, bounds, [2 * got[bounds[rank] : bounds[rank + 1]]])
        copied = array.path != places[0].path
        travel.back()
        here.comm.barrier()
        result = results.array(values.shape, values.dtype).copy() if results is not None else None
    finally:
        travel.close()
    return {"got": got, "copied": copied, "result": result}


def test_arrays_travel_to_another_host_and_results_come_back(pair: xpulab.XPUCluster) -> None:
    first, second = pair.run(journey, VALUES)
    np.testing.assert_array_equal(first["got"], VALUES)
    np.testing.assert_array_equal(second["got"], VALUES)
    assert (first["copied"], second["copied"]) == (False, True)
    np.testing.assert_array_equal(first["result"], 2 * VALUES)


def sent_states(here: Any) -> list[tuple[str, dict[str, int]]]:
    """On an engine: rank 0 keeps states on rank 1, which looks for them late; return what rank 1 gets."""
    import pickle

    from mpi4py import MPI

    from xpulab.engine.hosts.helper import Helper, SentCheckpoint

    requests, pairs = here.comm.Dup(), here.comm.Dup()
    if here.rank == 0:
        with SentCheckpoint(Helper(here.comm, requests, pairs), "a path") as kept:
            for number in range(4):
                kept.write({"iteration": number})
            here.comm.send("written", 1)
        here.comm.send("closed", 1)
        return []
    here.comm.recv(source=0)
    found, status = [], MPI.Status()
    while not here.comm.iprobe(source=0):
        if requests.Iprobe(0, MPI.ANY_TAG, status):
            message = bytearray(status.Get_count(MPI.BYTE))
            requests.Recv([message, MPI.BYTE], 0)
            path, state = pickle.loads(message)
            found.append((path, pickle.loads(state)))
    here.comm.recv(source=0)
    return found


def test_of_states_that_wait_for_the_helper_rank_only_the_latest_is_sent(pair: xpulab.XPUCluster) -> None:
    assert pair.run(sent_states) == [[], [("a path", {"iteration": 0}), ("a path", {"iteration": 3})]]
