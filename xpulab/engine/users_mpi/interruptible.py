"""mpi4py's communicators and requests for a user's code, with blocking calls that can be interrupted.

A blocking call of MPI waits inside the library, where neither Ctrl-C nor the exception of another rank can end it. The
classes of this module start the nonblocking form of each call instead, and poll it from Python. The rank leaves when it
is interrupted, or when another rank has raised an exception. Large reductions and broadcasts do block, but only after
all ranks have reached them; see `large_collectives`. In all other respects the classes are mpi4py's, of which they are
subclasses. The communicators that they make (`Split`, `Create_cart`, `Create_intercomm`) are of these classes, too. On
an engine, `MPI.COMM_WORLD`, `MPI.COMM_SELF`, `MPI.Request` and `MPI.Message` are replaced by them. `windows` has the
window, and `pkl5` the communicators of mpi4py's module of this name.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from xpulab.engine.users_mpi.counted import Neighbours, loads_each, meet_in_group, with_counts
from xpulab.engine.users_mpi.large_collectives import MEETING, meet_for, size_of
from xpulab.engine.users_mpi.messages import NOTHING, Message, Prequest, Request, finish, packed
from xpulab.engine.waiting import held, look, poll
from xpulab.libraries.libmpi import leave, refuse_processes

if TYPE_CHECKING:
    from mpi4py.typing import Buffer, BufSpec

__all__ = [
    "COLLECTIVES",
    "KINDS",
    "MAKERS",
    "WORLD",
    "Comm",
    "Intercomm",
    "Intracomm",
    "duplicate",
    "returning",
    "together",
]

#: mpi4py's own communicator of all ranks.
WORLD = MPI.COMM_WORLD

_Answer = TypeVar("_Answer")


def together(comm: MPI.Comm, call: Callable[[], _Answer]) -> _Answer:
    """Wait until all ranks of a communicator are about to make this call, and make it. The wait can be left."""
    with held():
        _meet(comm)
        return call()


def _meet(comm: MPI.Comm) -> None:
    """Wait for all ranks of a communicator; of an intercommunicator also for those of this rank's own group."""
    for _ in range(1 + comm.Is_inter()):  # the first barrier of two groups awaits only the other one
        finish(MPI.Comm.Ibarrier(comm))
    look()  # a rank that left the meeting has raised an exception


@contextlib.contextmanager
def duplicate(comm: MPI.Intracomm) -> Iterator[Intracomm]:
    """Open a context with a copy of a communicator, for what is made in it; the copy goes if that fails.

    The copy is made first: what MPI makes on some ranks only would let those wait here for the others, inside of MPI.
    """
    copy = Intracomm(MPI.Intracomm.Dup(comm))
    try:
        yield copy
    except BaseException:
        MPI.Comm.Free(copy)
        raise


class Comm(MPI.Comm):
    """What the classes below have in common. A call that was left makes the communicator useless."""

    def Recv(
        self, buf: BufSpec, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> None:
        """As mpi4py's."""
        finish(MPI.Comm.Irecv(self, buf, source, tag), status)

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
        sent = MPI.Comm.Isend(self, sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status)
        finish(sent)

    def Sendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """As mpi4py's."""
        self.Sendrecv(packed(buf), dest, sendtag, buf, source, recvtag, status)

    def Probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """As mpi4py's."""
        poll(lambda: self.Iprobe(source, tag, status))
        return True

    def Mprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> Message:
        """As mpi4py's."""
        return Message.Probe(self, source, tag, status)

    def Improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Message | None:
        """As mpi4py's."""
        return Message.Iprobe(self, source, tag, status)

    def send(self, obj: object, dest: int, tag: int = 0) -> None:
        """As mpi4py's."""
        finish(MPI.Comm.isend(self, obj, dest, tag))

    def ssend(self, obj: object, dest: int, tag: int = 0) -> None:
        """As mpi4py's."""
        finish(MPI.Comm.issend(self, obj, dest, tag))

    def recv(
        self,
        buf: Buffer | None = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """As mpi4py's; `buf` is not needed."""
        return self.mprobe(source, tag, status).recv()

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
        sent = MPI.Comm.isend(self, sendobj, dest, sendtag)
        received = self.recv(None, source, recvtag, status)
        finish(sent)
        return received

    def probe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Literal[True]:
        """As mpi4py's."""
        return self.Probe(source, tag, status)

    def mprobe(self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None) -> Message:
        """As mpi4py's."""
        return Message.probe(self, source, tag, status)

    def improbe(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, status: MPI.Status | None = None
    ) -> Message | None:
        """As mpi4py's."""
        return Message.iprobe(self, source, tag, status)

    def barrier(self) -> None:
        """As mpi4py's."""
        self.Barrier()

    def bcast(self, obj: object, root: int = 0) -> Any:
        """As mpi4py's."""
        gives, takes = self._roles(root)
        data = MPI.pickle.dumps(obj) if gives else b""
        size = np.array([len(data)])
        self.Bcast(size, root)
        block = data if gives else bytearray(int(size[0]))
        self.Bcast([block, MPI.BYTE], root)
        if not takes:
            return None
        return obj if gives else MPI.pickle.loads(block)

    def scatter(self, sendobj: Sequence[object] | None, root: int = 0) -> Any:
        """As mpi4py's."""
        gives, takes = self._roles(root)
        pieces = self._pieces(sendobj) if gives else []
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        size = np.zeros(1, np.int64)
        self.Scatter(sizes if gives else None, size if takes else None, root)
        block = bytearray(int(size[0]))
        self.Scatterv(
            [b"".join(pieces), sizes, MPI.BYTE] if gives else None, [block, MPI.BYTE] if takes else None, root
        )
        return MPI.pickle.loads(block) if takes else None

    def gather(self, sendobj: object, root: int = 0) -> list[Any] | None:
        """As mpi4py's."""
        takes, gives = self._roles(root)
        data = MPI.pickle.dumps(sendobj) if gives else b""
        sizes = np.empty(self._others, np.int64) if takes else None
        self.Gather(np.array([len(data)]) if gives else None, sizes, root)
        joined = None if sizes is None else bytearray(int(sizes.sum()))
        self.Gatherv([data, MPI.BYTE] if gives else None, None if sizes is None else [joined, sizes, MPI.BYTE], root)
        return None if joined is None or sizes is None else loads_each(joined, sizes)

    def allgather(self, sendobj: object) -> list[Any]:
        """As mpi4py's."""
        data = MPI.pickle.dumps(sendobj)
        sizes = np.empty(self._others, np.int64)
        self.Allgather(np.array([len(data)]), sizes)
        joined = bytearray(int(sizes.sum()))
        self.Allgatherv([data, MPI.BYTE], [joined, sizes, MPI.BYTE])
        return loads_each(joined, sizes)

    def alltoall(self, sendobj: Sequence[object]) -> list[Any]:
        """As mpi4py's."""
        pieces = self._pieces(sendobj)
        sending, receiving = np.array([len(piece) for piece in pieces], np.int64), np.empty(self._others, np.int64)
        self.Alltoall(sending, receiving)
        joined = bytearray(int(receiving.sum()))
        self.Alltoallv([b"".join(pieces), sending, MPI.BYTE], [joined, receiving, MPI.BYTE])
        return loads_each(joined, receiving)

    def reduce(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """As mpi4py's, in the order of the ranks."""
        every = self.gather(sendobj, root)
        return None if every is None else functools.reduce(op, every)

    def allreduce(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """As mpi4py's, in the order of the ranks."""
        return functools.reduce(op, self.allgather(sendobj))

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """As mpi4py's, but known as the end of this rank: launchers name another one, or none."""
        leave(errorcode)

    def Disconnect(self) -> None:
        """As mpi4py's."""
        together(self, lambda: MPI.Comm.Disconnect(self))

    @property
    def _others(self) -> int:
        """How many ranks this one exchanges objects with."""
        return self.size

    def _roles(self, root: int) -> tuple[bool, bool]:
        """Return whether this rank is the root of a collective call, and whether it is one of the root's partners."""
        return self.rank == root, True

    def _pieces(self, things: Sequence[object] | None) -> list[bytes]:
        things = list(things or ())
        if len(things) != self._others:
            raise ValueError(f"received {len(things)} objects, expected {self._others}, one for each rank")
        return [MPI.pickle.dumps(thing) for thing in things]


class Intracomm(Comm, MPI.Intracomm):
    """An `MPI.Intracomm` whose blocking calls can be left."""

    def __reduce__(self) -> Any:
        """As mpi4py's: each process has its own world, so only its name is pickled. Others cannot be pickled."""
        for name in ("COMM_WORLD", "COMM_SELF"):
            if self == getattr(MPI, name):
                return _named, (name,)
        return super().__reduce__()

    def Create_intercomm(
        self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int = 0
    ) -> Intercomm:
        """As mpi4py's."""
        with held():
            _meet(self)
            if self.rank == local_leader:
                Comm.Sendrecv(Intracomm(peer_comm), NOTHING, remote_leader, tag, NOTHING, remote_leader, tag)
            _meet(self)
            return Intercomm(MPI.Intracomm.Create_intercomm(self, local_leader, peer_comm, remote_leader, tag))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> MPI.Intracomm:
        """As mpi4py's."""
        with held():
            meet_in_group(self, group, tag)
            comm = MPI.Intracomm.Create_group(self, group, tag)
        return Intracomm(comm) if comm != MPI.COMM_NULL else comm

    def scan(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """As mpi4py's."""
        return functools.reduce(op, self.allgather(sendobj)[: self.rank + 1])

    def exscan(self, sendobj: object, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """As mpi4py's: None on rank 0."""
        before = self.allgather(sendobj)[: self.rank]
        return functools.reduce(op, before) if before else None


class Intercomm(Comm, MPI.Intercomm):
    """An `MPI.Intercomm` whose blocking calls can be left."""

    @property
    def _others(self) -> int:
        return self.remote_size

    def _roles(self, root: int) -> tuple[bool, bool]:
        return root == MPI.ROOT, root not in (MPI.ROOT, MPI.PROC_NULL)


def _named(name: str) -> MPI.Intracomm:
    """Return this process's communicator of this name."""
    found: MPI.Intracomm = getattr(MPI, name)
    return found


def _blocking(name: str) -> Callable[..., None]:
    """Return a method `name` that calls the nonblocking form, and polls it."""
    start = getattr(_owner(name), f"I{name.lower()}")

    @functools.wraps(getattr(_owner(name), name))
    def call(self: MPI.Comm, *args: object, **kwargs: object) -> None:
        finish(start(self, *args, **kwargs))

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


def returning(name: str, kind: type = Request, owner: type | None = None) -> Callable[..., Any]:
    """Return a method `name` of mpi4py's class that returns a request whose wait can be left."""
    start = getattr(owner or _owner(name), name)

    @functools.wraps(start)
    def call(self: Any, *args: object, **kwargs: object) -> Any:
        return kind(start(self, *args, **kwargs))

    return call


def _making(name: str) -> Callable[..., Any]:
    """Return a method `name` that makes a communicator after all ranks have entered it."""
    make = getattr(_owner(name), name)

    @functools.wraps(make)
    def call(self: MPI.Comm, *args: object, **kwargs: object) -> Any:
        comm = together(self, lambda: make(self, *args, **kwargs))
        return _KINDS.get(type(comm), type(comm))(comm)

    return call


def _copying(name: str) -> Callable[..., Any]:
    """Return a method `name` that returns a copy, and the request for its end."""
    start = getattr(MPI.Comm, name)

    @functools.wraps(start)
    def call(self: Comm, *args: object, **kwargs: object) -> tuple[MPI.Comm, Request]:
        copy, request = start(self, *args, **kwargs)
        return copy, Request(request)

    return call


def _refusing(name: str) -> Callable[..., Any]:
    """Return a method `name` that starts no processes: those would be no engines, and MPI would end all engines."""

    @functools.wraps(getattr(MPI.Intracomm, name))
    def call(*_: object, **__: object) -> None:
        instead = (
            "The engines themselves can work for it: on all ranks, with mpi4py.futures.MPICommExecutor(comm) as "
            "executor; or outside of the engines: mpiexec -n 4 python -m mpi4py.futures script.py"
        )
        refuse_processes(name, "engines", instead)

    return call


def _owner(name: str) -> Any:
    """Return the class of mpi4py that has the method `name`."""
    owners = (MPI.Comm, MPI.Intracomm, MPI.Intercomm, MPI.Topocomm, MPI.Cartcomm)
    return next(owner for owner in owners if hasattr(owner, name))


#: Names of the collective calls.
COLLECTIVES = (
    "Allgather", "Allgatherv", "Allreduce", "Alltoall", "Alltoallv", "Alltoallw", "Barrier", "Bcast", "Exscan",
    "Gather", "Gatherv", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Scatter", "Scatterv",
)  # fmt: skip
_OF_GROUP = ("Exscan", "Scan")  # which no intercommunicator has
_MESSAGES = (
    "Isend", "Issend", "Irsend", "Ibsend", "Irecv", "Isendrecv", "Isendrecv_replace", "isend", "issend", "ibsend",
    "irecv",
)  # fmt: skip

_NEIGHBOURS = (
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw",
)  # fmt: skip
_PERSISTENT = ("Send_init", "Ssend_init", "Rsend_init", "Bsend_init", "Recv_init", "Psend_init", "Precv_init")
_MAKERS = ("Clone", "Create", "Dup", "Dup_with_info", "Split", "Split_type")  # of all communicators
_MAKERS_OF_GROUP = ("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent")
#: Names of the methods that make a communicator.
MAKERS = (*_MAKERS, *_MAKERS_OF_GROUP, "Merge")

for _name in (*COLLECTIVES, "Send", "Ssend", "Rsend"):
    setattr(Intracomm if _name in _OF_GROUP else Comm, _name, _blocking(_name))
for _name, _least in MEETING.items():
    setattr(Intracomm, _name, _meeting(_name, _least))
for _name in COLLECTIVES:
    _kind: type = Intracomm if _name in _OF_GROUP else Comm
    setattr(_kind, f"I{_name.lower()}", returning(f"I{_name.lower()}"))
    setattr(_kind, f"{_name}_init", returning(f"{_name}_init", Prequest))
for _name in _MESSAGES:
    setattr(Comm, _name, returning(_name))
for _name in _PERSISTENT:
    setattr(Comm, _name, returning(_name, Prequest))
for _name in _MAKERS:
    setattr(Comm, _name, _making(_name))
for _name in _MAKERS_OF_GROUP:
    setattr(Intracomm, _name, _making(_name))
for _name in ("Idup", "Idup_with_info"):
    setattr(Comm, _name, _copying(_name))
setattr(Intercomm, "Merge", _making("Merge"))  # noqa: B010
for _name in ("Spawn", "Spawn_multiple"):
    setattr(Intracomm, _name, _refusing(_name))
for _name in ("Reduce_scatter", "Ireduce_scatter", "Reduce_scatter_init"):
    setattr(Comm, _name, with_counts(getattr(Comm, _name)))


class _Topology(Neighbours, Intracomm, MPI.Topocomm):
    """mpi4py's communicator with neighbours."""


for _name in _NEIGHBOURS:
    setattr(_Topology, _name, _blocking(_name))
    setattr(_Topology, f"I{_name.lower()}", returning(f"I{_name.lower()}"))


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
    MPI.Intercomm: Intercomm,
}

#: The classes whose blocking methods can be left.
KINDS: list[type] = [
    Comm, Intracomm, Intercomm, _Topology, Cartcomm, Graphcomm, Distgraphcomm, Message, Request, Prequest,
]  # fmt: skip

setattr(MPI, "COMM_SELF", Intracomm(MPI.COMM_SELF))  # noqa: B010 -- mpi4py declares it final
