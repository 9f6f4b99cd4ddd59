"""Parts of a rank that need no other rank: communicators, devices, arrays of a host, and calls of MPI."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from xpulab.engine import host_arrays
from xpulab.engine.communicators import Communicators
from xpulab.engine.devices import describe
from xpulab.engine.engine import Engine, Task
from xpulab.engine.users_mpi.interruptible import Intracomm, Request
from xpulab.engine.users_mpi.large_collectives import MEETING, meet_for, nbytes_of, size_of
from xpulab.sharing.sources import HandleRows


@pytest.fixture
def comm(engine: Engine) -> Intracomm:
    return engine.communicators.of([0])


def test_communicators_are_renewed_and_kept_until_then(engine: Engine) -> None:
    made = Communicators(None, engine.board, several=False)
    before, of_users = made.ways, made.of([0])
    assert made.of((0,)) is of_users
    assert isinstance(of_users, Intracomm)
    assert made.pairs is before.tasks
    made.renew()
    tasks, ends, meetings = made.ways
    assert tasks not in before
    assert ends not in (*before, tasks)
    assert meetings is not None
    assert before.meetings is not None
    assert not {*meetings[:2]} & {*before.meetings[:2]}
    assert made.of([0]) is not of_users
    assert tasks.allreduce(7) == 7
    assert MPI.COMM_WORLD is made.of([0])


def test_ranks_of_several_hosts_do_not_meet_but_those_of_one_of_them_do(engine: Engine) -> None:
    made = Communicators(None, engine.board, several=True)
    assert made.ways.meetings is None
    with made.among([0]):
        assert made.ways.meetings is not None
    assert made.ways.meetings is None


def test_the_host_its_cores_and_devices_are_described() -> None:
    found = describe()
    assert found["errors"] == []
    assert found["host"] == platform.node()
    assert {cpu for core in found["cores"] for cpu in core} == os.sched_getaffinity(0)
    assert 0 < found["memory_available"] <= found["memory_total"]
    cpus = [device for device in found["devices"] if device["kind"] == "cpu"]
    assert cpus
    assert all(str(device["name"]) and device["sub_devices"] == 0 for device in cpus)
    assert len({(device["backend"], device["index"]) for device in found["devices"]}) == len(found["devices"])


def test_rows_of_all_ranks_are_one_array(task: Task, sent: Callable[[np.ndarray], HandleRows]) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 3))
    whole = host_arrays.rows_of_all(task, sent(X))
    np.testing.assert_array_equal(whole, X)
    assert not whole.flags.writeable
    assert host_arrays.rows_of_all(task, sent(X[:, 0])).shape == (1000,)
    with host_arrays.shared_by_host(task, (4, 2), np.int32) as shared:
        shared[:] = 5
        host_arrays.take_from_other_hosts(task, shared[:2], shared, [0, 4])  # there are none
    assert (shared == 5).all()
    assert not host_arrays.several_hosts(task)


def test_objects_are_exchanged_as_by_mpi4py(comm: Intracomm) -> None:
    thing = {"a": [1, 2.5, "x"]}
    assert comm.bcast(thing) == thing
    assert comm.allgather(thing) == comm.gather(thing) == comm.alltoall([thing]) == [thing]
    assert comm.scatter([thing]) == thing
    assert comm.allreduce("word") == comm.reduce("word") == comm.scan("word") == "word"
    assert comm.exscan("word") is None
    assert comm.sendrecv(thing, 0, 3, None, 0, 3) == thing
    with pytest.raises(ValueError, match="received 2 objects, expected 1, one for each rank"):
        comm.scatter([thing, thing])


def test_arrays_are_exchanged_as_by_mpi4py(comm: Intracomm) -> None:
    values, found = np.arange(6.0), np.empty(6)
    comm.Allreduce(values, found)
    np.testing.assert_array_equal(found, values)
    comm.Sendrecv(values * 2, 0, 1, found, 0, 1)
    np.testing.assert_array_equal(found, values * 2)
    requests = [comm.Irecv(found, 0, 5), comm.Isend(values * 3, 0, 5)]
    assert all(isinstance(request, Request) for request in requests)
    assert Request.Waitall(requests)
    np.testing.assert_array_equal(found, values * 3)
    sent = comm.isend("text", 0, 6)
    status = MPI.Status()
    comm.probe(0, 6, status)
    assert status.Get_tag() == 6
    assert comm.recv(source=0, tag=6) == "text"
    sent.wait()


def test_communicators_that_are_made_can_be_left_too(comm: Intracomm) -> None:
    for made in (comm.Dup(), comm.Split(0, 0), comm.Create_cart([1])):
        assert isinstance(made, Intracomm)
        assert made.allgather(1) == [1]


@pytest.mark.parametrize(
    ("message", "nbytes"),
    [
        (np.zeros(10), 80),
        ([np.zeros(10), 4], 32),
        ([np.zeros(10), 4, MPI.DOUBLE], 32),
        (None, 0),
        (b"xyz", 3),
    ],
)
def test_bytes_of_a_message(message: object, nbytes: int) -> None:
    assert nbytes_of(message) == nbytes


def test_long_messages_have_a_size_and_short_ones_and_wrong_ones_have_none(comm: Intracomm) -> None:
    long = np.zeros(MEETING["Allreduce"] // 8)
    for name, arguments, expected in (
        ("Allreduce", (long, long.copy()), (long.nbytes, 0)),
        ("Allreduce", (long, long[:-1].copy()), (0, 0)),
        ("Allreduce", (long[:100], long[:100].copy()), (0, 0)),
        ("Reduce", (MPI.IN_PLACE, long, MPI.SUM, 0), (long.nbytes, 0)),
        ("Bcast", (np.zeros(MEETING["Bcast"] // 8), 0), (MEETING["Bcast"], 0)),
    ):
        assert size_of(comm, name, arguments, {}) == expected


def test_the_call_is_made_once_after_the_ranks_have_met(comm: Intracomm) -> None:
    made: list[int] = []
    meet_for(comm, "Allreduce", 1 << 20, 0, lambda: made.append(1))
    assert made == [1]
