"""Large reductions and broadcasts: the ranks meet, and then call MPI's blocking form.

For long messages the nonblocking forms are slower: Intel MPI's Ireduce of 16 MiB takes six times as long as its Reduce.
A rank can leave a meeting, but it cannot leave the blocking call. The blocking call therefore begins only when it is
certain that all ranks take part:

- Ctrl-C is held back from the meeting to the end of the call (`waiting.held`).
- No rank returns before all ranks have begun the call. A rank that has raised an exception has therefore not begun it.
- In the meeting the ranks compare the calls that they are about to make. A call that mpi4py would refuse on one rank
  does not reach the meeting.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from xpulab.engine.waiting import held, look, poll

__all__ = ["MEETING", "items_of", "meet_for", "nbytes_of", "size_of"]

_MANY = 1 << 17  # bytes of a reduction from which on a meeting and the blocking form are faster
_MANY_FOR_ONE = 1 << 22  # the same for a broadcast

#: Name of a call -> bytes from which on the ranks meet.
MEETING = {"Allreduce": _MANY, "Bcast": _MANY_FOR_ONE, "Exscan": _MANY, "Reduce": _MANY, "Scan": _MANY}
_NAMES = list(MEETING)
_CALL = struct.Struct("qqq")  # the name's number, bytes, root

_Message = tuple[MPI.Datatype, int]


def meet_for(comm: MPI.Intracomm, name: str, nbytes: int, root: int, call: Callable[[], None]) -> None:
    """Wait until all ranks are about to make this call, and make it.

    Raises
    ------
    ValueError
        If a rank is about to make another call; no rank has then begun its call.
    """
    mine = _CALL.pack(_NAMES.index(name), nbytes, root)
    every = bytearray(comm.size * len(mine))
    with held():
        poll(MPI.Intracomm.Iallgather(comm, mine, every).Test, every)
        if every != mine * comm.size:
            raise ValueError(f"received {_listed(every)}; expected the same collective call on every rank")
        look()  # a rank that left the meeting has raised an exception
        call()
        if name != "Allreduce":  # which ends on no rank before all ranks have begun it
            MPI.Intracomm.Barrier(comm)


def _listed(every: bytearray) -> str:
    calls = (f"{_NAMES[name]} of {nbytes:,} bytes with root {root}" for name, nbytes, root in _CALL.iter_unpack(every))
    return "; ".join(f"{call} on rank {rank}" for rank, call in enumerate(calls))


def size_of(
    comm: MPI.Intracomm, name: str, arguments: tuple[object, ...], keywords: dict[str, object]
) -> tuple[int, int]:
    """Return the bytes of the message, which are the same number on all ranks, and the root.

    The number is 0 if the message is short, or if mpi4py would refuse the arguments.
    """
    if arguments and type(arguments[0]) is np.ndarray and arguments[0].nbytes < MEETING[name]:
        return 0, 0  # the general way below takes some microseconds
    with contextlib.suppress(Exception):
        messages, root = _ARGUMENTS[name](comm, *arguments, **keywords)
        kind, count = messages[0]
        if all(message == (kind, count) for message in messages):
            return kind.Get_size() * count, root
    return 0, 0


def items_of(message: Any) -> int | None:
    """Return the number of items of a message; None if it is none."""
    with contextlib.suppress(Exception):
        return _read(message)[1]
    return None


def nbytes_of(message: Any) -> int:
    """Return the bytes of a message, or of its buffer if its parts go to several ranks; 0 if it is no message."""
    try:
        kind, count = _read(message)
        return kind.Get_size() * count
    except Exception:
        with contextlib.suppress(Exception):
            return memoryview(message[0]).nbytes
    return 0


def _of_bcast(comm: MPI.Intracomm, buf: object, root: int = 0) -> tuple[list[_Message], int]:
    return [_read(buf, writable=comm.rank != root)], root


def _of_reduce(
    comm: MPI.Intracomm, sendbuf: object, recvbuf: object, op: MPI.Op = MPI.SUM, root: int = 0
) -> tuple[list[_Message], int]:
    if comm.rank != root:
        return [_read(sendbuf)], root
    return _of_all(comm, sendbuf, recvbuf)[0], root


def _of_all(comm: MPI.Intracomm, sendbuf: object, recvbuf: object, op: MPI.Op = MPI.SUM) -> tuple[list[_Message], int]:
    in_place = sendbuf is None or sendbuf is MPI.IN_PLACE
    return [_read(recvbuf, writable=True), *([] if in_place else [_read(sendbuf)])], 0


_ARGUMENTS: dict[str, Callable[..., tuple[list[_Message], int]]] = {
    "Allreduce": _of_all,
    "Bcast": _of_bcast,
    "Exscan": _of_all,
    "Reduce": _of_reduce,
    "Scan": _of_all,
}


def _read(message: Any, writable: bool = False) -> _Message:
    """Return the type and the number of the items of a message; raise an exception if mpi4py would refuse it.

    mpi4py takes a buffer, or a list of a buffer, a number, an offset and a type. All but the buffer are optional.
    """
    buffer, *how = message if isinstance(message, list | tuple) else (message,)
    named = how.pop() if how and isinstance(how[-1], MPI.Datatype | str) else None
    if how and isinstance(how[0], list | tuple):
        how = [*how[0]]
    count, offset = ((None if number is None else index(number)) for number in [*how, None, None][:2])
    block = memoryview(buffer)
    if not block.contiguous or (writable and block.readonly):
        raise ValueError
    kind = named if isinstance(named, MPI.Datatype) else MPI.Datatype.fromcode(named or block.format.lstrip("@<"))
    _, extent = kind.Get_extent()
    items, rest = divmod(block.nbytes, extent)
    items -= offset or 0
    if min(items, count or 0, offset or 0) < 0 or (count is None and rest):
        raise ValueError
    return kind, items if count is None else count
