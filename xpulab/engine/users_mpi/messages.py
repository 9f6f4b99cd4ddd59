"""mpi4py's requests and messages for a user's code, with waits that can be left.

On an engine, `MPI.Request` and `MPI.Message` are replaced by the classes of this module.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from mpi4py import MPI
from mpi4py.MPI import Message as _Message
from mpi4py.MPI import Request as _Request

from xpulab.engine.waiting import poll

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec
    from typing_extensions import Self

__all__ = ["NOTHING", "Message", "Prequest", "Request", "finish", "packed"]

#: An empty message.
NOTHING: Any = (None, 0, MPI.BYTE)


def finish(request: _Request, status: MPI.Status | None = None) -> None:
    """Wait for a request; the wait can be left."""
    poll(lambda: request.Test(status), request)


class Request(_Request):
    """A request whose wait can be left."""

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """As mpi4py's."""
        finish(self, status)
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's: the object received, or None."""
        return poll(lambda: (found := self.test(status))[0] and found, self)[1]

    @classmethod
    def Waitall(cls, requests: Sequence[_Request], statuses: list[MPI.Status] | None = None) -> Literal[True]:
        """As mpi4py's."""
        poll(lambda: _Request.Testall(requests, statuses), requests)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[_Request], status: MPI.Status | None = None) -> int:
        """As mpi4py's."""
        return int(poll(lambda: (found := _Request.Testany(requests, status))[1] and found, requests)[0])

    @classmethod
    def Waitsome(cls, requests: Sequence[_Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """As mpi4py's."""
        found = poll(lambda: (some := _Request.Testsome(requests, statuses)) != [] and (some,), requests)
        return found[0]

    @classmethod
    def waitall(cls, requests: Sequence[_Request], statuses: list[MPI.Status] | None = None) -> list[Any]:
        """As mpi4py's."""
        return poll(lambda: (found := _Request.testall(requests, statuses))[0] and found, requests)[1]

    @classmethod
    def waitany(cls, requests: Sequence[_Request], status: MPI.Status | None = None) -> tuple[int, Any]:
        """As mpi4py's."""
        index, _, received = poll(lambda: (found := _Request.testany(requests, status))[1] and found, requests)
        return index, received

    @classmethod
    def waitsome(
        cls, requests: Sequence[_Request], statuses: list[MPI.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """As mpi4py's."""
        found = poll(lambda: (some := _Request.testsome(requests, statuses))[0] != [] and (some,), requests)
        return found[0]


class Prequest(Request, MPI.Prequest):
    """A persistent request whose wait can be left."""


class Message(_Message):
    """A message that was probed for, and whose blocking calls can be left."""

    def Recv(self, buf: BufSpec, status: MPI.Status | None = None) -> None:
        """As mpi4py's."""
        finish(_Message.Irecv(self, buf), status)

    def Irecv(self, buf: BufSpec) -> Request:
        """As mpi4py's."""
        return Request(_Message.Irecv(self, buf))

    def recv(self, status: MPI.Status | None = None) -> Any:
        """As mpi4py's."""
        return self.irecv().wait(status)

    def irecv(self) -> Request:
        """As mpi4py's."""
        return Request(_Message.irecv(self))

    @classmethod
    def Probe(
        cls, comm: MPI.Comm, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Self:
        """As mpi4py's."""
        return poll(lambda: cls.Iprobe(comm, source, tag, status))

    @classmethod
    def probe(
        cls, comm: MPI.Comm, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Self:
        """As mpi4py's."""
        return poll(lambda: cls.iprobe(comm, source, tag, status))


#: This rank alone, for the copies of `packed`.
_ALONE = MPI.COMM_SELF.Dup()
_alone = threading.Lock()


def packed(buf: BufSpec) -> Any:
    """Return a copy of a message of any type, which may be received with that type."""
    with _alone:
        sent, status = MPI.Intracomm.Isend(_ALONE, buf, 0), MPI.Status()
        message = MPI.Intracomm.Mprobe(_ALONE, 0, 0, status)
        copy = bytearray(status.Get_elements(MPI.BYTE))
        message.Recv([copy, MPI.PACKED])
        sent.Wait()
    return [copy, MPI.PACKED]


setattr(MPI, "Request", Request)  # noqa: B010 -- mpi4py declares it final
setattr(MPI, "Message", Message)  # noqa: B010
