"""mpi4py's communicators and requests for a user's code, with blocking calls that can be interrupted.

A blocking call of MPI waits inside the library, where neither Ctrl-C nor the exception of another rank can end it. The
classes of this module start the nonblocking form of each call instead, and poll it from Python. The rank leaves when it
is interrupted, or when another rank has raised an exception. Large reductions and broadcasts do block, but only after
all ranks have reached them; see `large_collectives`. In all other respects the classes are mpi4py's, of which they are
subclasses. The communicators that they make (`Split`, `Create_cart`) are of these classes, too. On an engine,
`MPI.COMM_WORLD`, `MPI.COMM_SELF` and `MPI.Request` are replaced by them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Request as _Request

from xpulab.engine.large_collectives import MEETING, meet_for, size_of
from xpulab.engine.waiting import poll

if TYPE_CHECKING:
    from mpi4py.typing import Buffer, BufSpec

__all__ = ["COLLECTIVES", "KINDS", "MAKERS", "WORLD", "Intracomm", "Request"]

#: mpi4py's own communicator of all ranks.
WORLD = MPI.COMM_WORLD


def _finish(request: _Request, status: MPI.Status | None = None) -> None:
    poll(lambda: request.Test(status), request)


class Request(_Request):
    """A request whose wait can be left."""

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """As mpi4py's."""
        _finish(self, status)
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


class Intracomm(MPI.Intracomm):
    """An `MPI.Intracomm` whose blocking calls can be left. A call that was left makes the communicator useless."""

    def __reduce__(self) -> Any:
        """As mpi4py's: each process has its own world, so only its name is pickled. Others cannot be pickled."""
        for name in ("COMM_WORLD", "COMM_SELF"):
            if self == getattr(MPI, name):
                return _named, (name,)
        return super().__reduce__()

    def Recv(
        self, buf: BufSpec, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        """As mpi4py's."""
        _finish(MPI.Intracomm.Irecv(self, buf, source, tag), status)

    def Sendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """As mpi4py's."""
        sent = MPI.Intracomm.Isend(self, sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status)
        _finish(sent)

    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """As mpi4py's."""
        poll(lambda: self.Iprobe(source, tag, status))
        return True

    def Mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        """As mpi4py's."""
        return poll(lambda: self.Improbe(source, tag, status))

    def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """As mpi4py's."""
        _finish(MPI.Intracomm.isend(self, obj, dest, tag))

    def ssend(self, obj: object, dest: int, tag: int = 0) -> None:
        """As mpi4py's."""
        _finish(MPI.Intracomm.issend(self, obj, dest, tag))

    def recv(
        self,
        buf: Buffer | None = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """As mpi4py's; `buf` is not needed."""
        return Request(self.mprobe(source, tag, status).irecv()).wait()

    def sendrecv(
        self,
        sendobj: object,
        dest: int,
        sendtag: int = 0,
        recvbuf: Buffer | None = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """As mpi4py's; `recvbuf` is not needed."""
        sent = MPI.Intracomm.isend(self, sendobj, dest, sendtag)
        received = self.recv(None, source, recvtag, status)
        _finish(sent)
        return received

    def probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """As mpi4py's."""
        return self.Probe(source, tag, status)

    def mprobe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:
        """As mpi4py's."""
        return poll(lambda: self.improbe(source, tag, status))

    def barrier(self) -> None:
        """As mpi4py's."""
        self.Barrier()

    def bcast(self, obj: object, root: int = 0) -> Any:
        """As mpi4py's."""
        data = MPI.pickle.dumps(obj) if self.rank == root else b""
        size = np.array([len(data)])
        self.Bcast(size, root)
        block = bytearray(data) if self.rank == root else bytearray(int(size[0]))
        self.Bcast([block, MPI.BYTE], root)
        return obj if self.rank == root else MPI.pickle.loads(block)

    def scatter(self, sendobj: Sequence[object] | None, root: int = 0) -> Any:
        """As mpi4py's."""
        sending = self.rank == root
        pieces = self._pieces(sendobj) if sending else []
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        size = np.empty(1, np.int64)
        self.Scatter(sizes if sending else None, size, root)
        block = bytearray(int(size[0]))
        self.Scatterv([b"".join(pieces), sizes, MPI.BYTE] if sending else None, [block, MPI.BYTE], root)
        return MPI.pickle.loads(block)

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        """As mpi4py's."""
        data = MPI.pickle.dumps(sendobj)
        sizes = np.empty(self.size, np.int64) if self.rank == root else None
        self.Gather(np.array([len(data)]), sizes, root)
        joined = None if sizes is None else bytearray(int(sizes.sum()))
        self.Gatherv([data, MPI.BYTE], None if sizes is None else [joined, sizes, MPI.BYTE], root)
        return None if joined is None or sizes is None else _loads_each(joined, sizes)

    def allgather(self, sendobj: object) -> list[Any]:
        """As mpi4py's."""
        data = MPI.pickle.dumps(sendobj)
        sizes = np.empty(self.size, np.int64)
        self.Allgather(np.array([len(data)]), sizes)
        joined = bytearray(int(sizes.sum()))
        self.Allgatherv([data, MPI.BYTE], [joined, sizes, MPI.BYTE])
        return _loads_each(joined, sizes)

    def alltoall(self, sendobj: Sequence[object]) -> list[Any]:
        """As mpi4py's."""
        pieces = self._pieces(sendobj)
        sending, receiving = np.array([len(piece) for piece in pieces], np.int64), np.empty(self.size, np.int64)
        self.Alltoall(sending, receiving)
        joined = bytearray(int(receiving.sum()))
        self.Alltoallv([b"".join(pieces), sending, MPI.BYTE], [joined, receiving, MPI.BYTE])
        return _loads_each(joined, receiving)

    def reduce(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """As mpi4py's, in the order of the ranks."""
        every = self.gather(sendobj, root)
        return None if every is None else functools.reduce(op, every)

    def allreduce(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """As mpi4py's, in the order of the ranks."""
        return functools.reduce(op, self.allgather(sendobj))

    def scan(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """As mpi4py's."""
        return functools.reduce(op, self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """As mpi4py's: None on rank 0."""
        before = self.allgather(sendobj)[: self.rank]
        return functools.reduce(op, before) if before else None

    def _pieces(self, things: Sequence[object] | None) -> list[bytes]:
        things = list(things or ())
        if len(things) != self.size:
            raise ValueError(f"received {len(things)} objects, expected {self.size}, one for each rank")
        return [MPI.pickle.dumps(thing) for thing in things]


def _named(name: str) -> MPI.Intracomm:
    """Return this process's communicator of this name."""
    found: MPI.Intracomm = getattr(MPI, name)
    return found


def _loads_each(joined: bytearray, sizes: np.ndarray) -> list[Any]:
    ends = np.cumsum(sizes)
    return [MPI.pickle.loads(memoryview(joined)[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _blocking(name: str) -> Callable[..., None]:
    """Return a method `name` that calls the nonblocking form, and polls it."""
    start = getattr(_owner(name), f"I{name.lower()}")

    @functools.wraps(getattr(_owner(name), name))
    def call(self: MPI.Comm, *args: object, **kwargs: object) -> None:
        _finish(start(self, *args, **kwargs))

    return call


def _meeting(name: str, least: int) -> Callable[..., None]:
    """Return a method `name` that blocks after the ranks have met, if the message has at least `least` bytes."""
    block, few = getattr(MPI.Intracomm, name), _blocking(name)

    @functools.wraps(block)
    def call(self: MPI.Intracomm, *args: object, **kwargs: object) -> None:
        nbytes, root = size_of(self, name, args, kwargs)
        if nbytes < least:
            few(self, *args, **kwargs)
        else:
            meet_for(self, name, nbytes, root, lambda: block(self, *args, **kwargs))

    return call


def _returning(name: str, kind: type = Request) -> Callable[..., Any]:
    """Return a method `name` that returns a request whose wait can be left."""
    start = getattr(_owner(name), name)

    @functools.wraps(start)
    def call(self: MPI.Comm, *args: object, **kwargs: object) -> Any:
        return kind(start(self, *args, **kwargs))

    return call


def _making(name: str, collective: bool = True) -> Callable[..., Any]:
    """Return a method `name` that makes a communicator after all ranks have entered it."""
    make = getattr(_owner(name), name)

    @functools.wraps(make)
    def call(self: MPI.Comm, *args: object, **kwargs: object) -> Any:
        if collective:
            self.Barrier()
        made = make(self, *args, **kwargs)
        return _KINDS[type(made)](made)

    return call


def _refusing(name: str) -> Callable[..., Any]:
    """Return a method `name` that starts no processes: those would be no engines, and MPI would end all engines."""

    @functools.wraps(getattr(MPI.Intracomm, name))
    def call(*_: object, **__: object) -> None:
        words = (
            f"{name} starts processes by MPI, such as those of a new MPIPoolExecutor, and engines cannot start any. "
            "The engines themselves can work for it: on all ranks, with mpi4py.futures.MPICommExecutor(comm) as "
            "executor; or outside of the engines: mpiexec -n 4 python -m mpi4py.futures script.py"
        )
        pool: Any = next(iter(getattr(threading.current_thread(), "_args", ())), None)
        if hasattr(pool, "broken"):  # a thread of mpi4py.futures: its results would be waited for for ever
            pool.broken(words)
            raise SystemExit
        raise RuntimeError(words)

    return call


def _owner(name: str) -> Any:
    """Return the class of mpi4py that has the method `name`."""
    owners = (MPI.Intracomm, MPI.Topocomm, MPI.Cartcomm)
    return next(owner for owner in owners if hasattr(owner, name))


#: Names of the collective calls.
COLLECTIVES = (
    "Allgather", "Allgatherv", "Allreduce", "Alltoall", "Alltoallv", "Alltoallw", "Barrier", "Bcast", "Exscan",
    "Gather", "Gatherv", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Scatter", "Scatterv",
)  # fmt: skip
_MESSAGES = ("Isend", "Issend", "Irsend", "Ibsend", "Irecv", "isend", "issend", "ibsend", "irecv")

_NEIGHBOURS = (
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw",
)  # fmt: skip
_PERSISTENT = ("Send_init", "Ssend_init", "Rsend_init", "Bsend_init", "Recv_init")
#: Names of the methods that make a communicator.
MAKERS = (
    "Clone", "Create", "Dup", "Split", "Split_type", "Create_cart", "Create_graph", "Create_dist_graph",
    "Create_dist_graph_adjacent",
)  # fmt: skip

for _name in (*COLLECTIVES, "Send", "Ssend", "Rsend"):
    setattr(Intracomm, _name, _blocking(_name))
for _name, _least in MEETING.items():
    setattr(Intracomm, _name, _meeting(_name, _least))
for _name in (*(f"I{name.lower()}" for name in COLLECTIVES), *_MESSAGES):
    setattr(Intracomm, _name, _returning(_name))
for _name in _PERSISTENT:
    setattr(Intracomm, _name, _returning(_name, Prequest))
for _name in MAKERS:
    setattr(Intracomm, _name, _making(_name))
for _name in ("Spawn", "Spawn_multiple"):
    setattr(Intracomm, _name, _refusing(_name))
setattr(Intracomm, "Create_group", _making("Create_group", collective=False))  # noqa: B010


class _Topology(Intracomm, MPI.Topocomm):
    """mpi4py's communicator with neighbours."""


for _name in _NEIGHBOURS:
    setattr(_Topology, _name, _blocking(_name))
    setattr(_Topology, f"I{_name.lower()}", _returning(f"I{_name.lower()}"))


class Cartcomm(_Topology, MPI.Cartcomm):
    """mpi4py's communicator of a grid."""

    Sub = _making("Sub")


class Graphcomm(_Topology, MPI.Graphcomm):
    """mpi4py's communicator of a graph."""


class Distgraphcomm(_Topology, MPI.Distgraphcomm):
    """mpi4py's communicator of a graph whose edges are distributed over the ranks."""


_KINDS: dict[type, type] = {
    MPI.Intracomm: Intracomm,
    MPI.Cartcomm: Cartcomm,
    MPI.Graphcomm: Graphcomm,
    MPI.Distgraphcomm: Distgraphcomm,
    **{kind: kind for kind in (Intracomm, Cartcomm, Graphcomm, Distgraphcomm)},
}

#: The classes whose blocking methods can be left.
KINDS = (Intracomm, _Topology, Cartcomm, Graphcomm, Distgraphcomm, Request, Prequest)

setattr(MPI, "COMM_SELF", Intracomm(MPI.COMM_SELF))  # noqa: B010 -- mpi4py declares it final
setattr(MPI, "Request", Request)  # noqa: B010
