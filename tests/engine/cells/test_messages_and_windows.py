"""One rank's messages to itself, and its window, by the classes that a user's code finds in mpi4py."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.util import pkl5 as found

from xpulab.engine.users_mpi import pkl5, windows
from xpulab.engine.users_mpi.interruptible import Intracomm
from xpulab.engine.users_mpi.messages import Message, Request, packed


def test_a_packed_copy_is_received_with_the_type_of_the_message() -> None:
    kind = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    copy = packed([np.arange(4.0), 1, kind])
    received = np.zeros(4)
    alone = Intracomm(MPI.COMM_SELF)
    sent = alone.Isend(copy, 0)
    alone.Recv([received, 1, kind], 0)
    sent.Wait()
    assert received.tolist() == [0.0, 0.0, 2.0, 0.0]


def test_messages_and_requests_are_of_the_classes_that_can_be_left() -> None:
    alone = Intracomm(MPI.COMM_SELF)
    sent, status = alone.isend({"a": 1}, 0, 3), MPI.Status()
    message = MPI.Message.probe(alone)
    assert isinstance(message, Message)
    request = message.irecv()
    assert isinstance(request, Request)
    assert request.wait(status) == {"a": 1}
    assert status.Get_tag() == 3
    sent.wait()
    assert alone.improbe() is None


def test_pkl5_has_the_communicators_that_can_be_left() -> None:
    assert found.Intracomm is pkl5.Intracomm
    alone = found.Intracomm(MPI.COMM_SELF.Dup())
    assert isinstance(alone, Intracomm)
    assert alone.allgather(1) == alone.gather(1) == [1]
    assert type(alone.Dup()) is found.Intracomm
    sent = alone.isend(np.arange(3.0), 0)
    assert alone.recv().sum() == 3.0
    sent.wait()


def test_a_rank_gives_back_its_locks() -> None:
    window = MPI.Win.Allocate(8, 8)
    assert isinstance(window, windows.Win)
    window.Fence()
    window.Lock(0)
    windows.give_back_locks()
    window.Lock(0)
    window.Unlock(0)
    window.Lock_all()
    windows.give_back_locks()
    windows.give_back_locks()
    window.Lock_all()
    window.Unlock_all()
    asked = iter([False, True])
    windows.serve_until(lambda: next(asked))
    assert list(asked) == []
    window.Free()
    assert window == MPI.WIN_NULL
    windows.serve_until(lambda: pytest.fail("no window is left"))
