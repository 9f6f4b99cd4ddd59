"""The helper rank: it carries rows between the notebook's host and the engines, if no engine runs on that host.

mpiexec starts it as one more rank. It has no device, computes nothing, and is no member of the engines' world.
Rank 0 of the engines asks it to take part in the journey of a task's rows (see `hosts.rows`), and gets an
answer for each request. The helper rank owns the board of the notebook's host, on which it reads whether an engine has
raised an exception, and writes that it has raised one itself.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypedDict

import numpy as np
from mpi4py import MPI

from xpulab.engine.comm import PeerFailed
from xpulab.engine.host import RankHost, show_board
from xpulab.engine.hosts.rows import Journey, Place, Written
from xpulab.engine.waiting import poll
from xpulab.libraries import libmpi
from xpulab.sharing.board import Board
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.descriptions import HelperDescription
from xpulab.sharing.process_memory import can_read
from xpulab.sharing.sources import Source

__all__ = ["Helper", "SentCheckpoint", "serve"]

_HEARTBEAT = 0.5  # seconds between two heartbeats
_AWAKE = 0.1  # seconds after a request in which the helper looks often for the next one
_SHORT, _LONG = 1e-4, 5e-3  # seconds between two looks then, and later
_RESULT = 2e-3  # seconds between two looks for a result of a task
_REQUEST, _ANSWER, _KEPT = 1, 2, 3  # tags of messages


class Request(TypedDict):
    """What rank 0 asks for at the beginning of a journey."""

    number: int
    leaders: list[int]
    places: list[Place]
    owners: list[int]


class Helper:
    """The helper rank, as an engine sees it.

    Parameters
    ----------
    every, requests, pairs : mpi4py.MPI.Intracomm
        All engines, and the helper rank as the last one: a communicator for what they do together, and its copies for
        requests and for the messages of a journey.
    """

    def __init__(self, every: MPI.Intracomm, requests: MPI.Intracomm, pairs: MPI.Intracomm) -> None:
        self._every, self._rank = every, every.size - 1
        self._requests, self.pairs = requests, pairs
        self._abandoned: list[MPI.Intracomm] = []

    def ask(self, request: Mapping[str, object]) -> None:
        """Send a request, on rank 0 only. Each but that of `renew` has an answer."""
        message = pickle.dumps(request)
        sent = self._requests.Isend([message, MPI.BYTE], self._rank, _REQUEST)
        poll(sent.Test, (sent, message))

    def take_answer(self) -> Any:
        """Wait until the helper rank has done what it was asked for, and return its answer, or raise its exception."""
        error, answer = pickle.loads(_received(self._requests, self._rank, _ANSWER))
        if error is not None:
            raise error
        return answer

    def keep(self, path: str, packed: bytes) -> tuple[MPI.Request, bytes]:
        """Begin to send the state of a fit, which the helper rank writes to the notebook's memory, on rank 0 only.

        The request is complete when the helper rank receives the state. It does nothing else before it has written it.
        """
        message = pickle.dumps((path, packed))
        return self._requests.Issend([message, MPI.BYTE], self._rank, _KEPT), message

    def renew(self, number: int) -> None:
        """Replace `pairs` after a failure. All engines call this together."""
        self._abandoned.append(self.pairs)  # requests may still be pending there
        if self._every.rank == 0:
            self.ask({"renew": number})
        self.pairs = self._every.Create_group(self._every.group, number)


class SentCheckpoint:
    """A `Checkpoint` of the notebook's host, on rank 0 of another host.

    Parameters
    ----------
    helper : Helper
    path : str
        `Checkpoint.path`.
    """

    def __init__(self, helper: Helper, path: str) -> None:
        self._helper, self._path = helper, path
        self._sent: tuple[MPI.Request, bytes] | None = None
        self._next: bytes | None = None

    def write(self, state: Mapping[str, object]) -> None:
        """Keep this state instead of the last one. While a state is on its way, only the latest one waits."""
        self._next = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        if self._sent is None or self._sent[0].Test():
            self._send()

    def _send(self) -> None:
        assert self._next is not None
        self._sent, self._next = self._helper.keep(self._path, self._next), None

    def close(self) -> None:
        """Wait until the latest state has been written."""
        for _ in range(2):
            if self._sent is not None:
                poll(self._sent[0].Test, self._sent)
            if self._next is not None:
                self._send()

    def __enter__(self) -> SentCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _received(comm: MPI.Intracomm, rank: int, tag: int) -> bytearray:
    """Wait for a message of bytes."""
    status = MPI.Status()
    found = poll(lambda: comm.Improbe(rank, tag, status))
    text = bytearray(status.Get_count(MPI.BYTE))
    coming = found.Irecv([text, MPI.BYTE])
    poll(coming.Test, (coming, text))
    return text


@dataclass
class _Errand:
    """What the helper rank has in place of a `Task`."""

    board: Board
    number: int
    keep: Callable[[], None]
    written: list[Written] = field(default_factory=list)

    def transferring(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: the engines count the seconds."""
        return contextlib.nullcontext()

    def show(self, **_: object) -> None:
        """Nothing: the board shows what engines do."""

    def leave_if_cancelled(self) -> None:
        """Nothing: the engines leave after a request to stop, and tell it as an exception."""

    def check_peers(self) -> None:
        """End the journey if an engine has raised an exception."""
        if self.board.failed(self.number):
            raise PeerFailed

    def await_message(self, comm: MPI.Intracomm, rank: int, tag: int) -> None:
        """Wait for the result of a rank, which may take hours; rank 0 may send states of the fit meanwhile."""
        while not comm.Iprobe(rank, tag):
            self.check_peers()
            self.keep()
            time.sleep(_RESULT)

    def read_in_order(self, source: Source, fill: Callable[[int, np.ndarray], None]) -> Source:
        """Nothing: this rank sends rows, and has no device."""
        raise NotImplementedError


class _Server:
    """The helper rank itself.

    Parameters
    ----------
    every, requests, pairs : mpi4py.MPI.Intracomm
        As for `Helper`.
    folder : str
        Folder of the cluster.
    mpi_rank : int
        Number that mpiexec gives this rank.
    """

    def __init__(
        self, every: MPI.Intracomm, requests: MPI.Intracomm, pairs: MPI.Intracomm, folder: str, mpi_rank: int
    ) -> None:
        self.every, self.requests, self.pairs = every, requests, pairs
        self.abandoned: list[MPI.Intracomm] = []
        self.board = Board.create(every.size - 1)
        self.record = self.board.every[every.rank]
        self.record["pid"] = os.getpid()
        threading.Thread(target=self._beat, name="xpulab-heartbeat", daemon=True).start()
        about = HelperDescription(every.rank, mpi_rank, platform.node(), os.getpid())
        show_board(folder, self.board.path, [every.rank], about)

    def _beat(self) -> None:
        while True:
            self.record["heartbeat"] = time.time()
            time.sleep(_HEARTBEAT)

    def take(self) -> None:
        """Wait for the next request, and do it."""
        asked = time.monotonic()
        while not self.requests.Iprobe(0, _REQUEST):
            self.keep()
            time.sleep(_SHORT if time.monotonic() - asked < _AWAKE else _LONG)
        request = pickle.loads(_received(self.requests, 0, _REQUEST))
        if "renew" in request:
            self.abandoned.append(self.pairs)
            self.pairs = self.every.Create_group(self.every.group, request["renew"])
            return
        error, found = None, None
        try:
            if "memory" in request:
                found = can_read(**request)
            else:
                self._travel(request)
        except PeerFailed:
            pass
        except Exception as raised:
            error = _sendable(raised)
            self.record["failed"] = request["number"]  # the relay tells the engines
        answer = pickle.dumps((error, found))
        sent = self.requests.Isend([answer, MPI.BYTE], 0, _ANSWER)
        poll(sent.Test, (sent, answer))

    def keep(self) -> None:
        """Write the states of fits that have come to the notebook's memory."""
        while self.requests.Iprobe(0, _KEPT):
            path, packed = pickle.loads(_received(self.requests, 0, _KEPT))
            with contextlib.suppress(FileNotFoundError), Checkpoint.open(path) as checkpoint:  # the notebook may end
                checkpoint.write_packed(packed)

    def _travel(self, request: Request) -> None:
        me = self.every.rank
        errand = _Errand(self.board, request["number"], self.keep)
        journey = Journey(errand, RankHost(me, request["leaders"], me), self.pairs, request["owners"])
        try:
            journey.travel(request["places"])
            journey.back()
        finally:
            journey.close()


def _sendable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with the same words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def serve(every: MPI.Intracomm, requests: MPI.Intracomm, pairs: MPI.Intracomm, folder: str, mpi_rank: int) -> NoReturn:
    """Be the helper rank until the cluster ends, which ends this process.

    Parameters
    ----------
    every, requests, pairs : mpi4py.MPI.Intracomm
        As for `Helper`; this rank is the last one.
    folder : str
        Folder of the cluster.
    mpi_rank : int
        Number that mpiexec gives this rank.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(every, requests, pairs, folder, mpi_rank)
    libmpi.unlink_files()
    while True:
        server.take()
