"""mpi4py's window for a user's code, with blocking calls that can be left.

MPI has no nonblocking form of the calls of a window. They become calls that can be left in these ways:

- `Fence`, `Free`, and what makes a window are collective: the ranks meet, in a wait that can be left, and then call
  MPI's form, which returns promptly. A fence is therefore always a barrier, as MPI allows it to be.
- `Start` waits for a message that `Post` sends; MPI lets `Start` wait for the matching `Post`. `Wait` polls `Test`.
  `Complete` waits only for what the targets have posted.
- `Lock` and `Lock_all` wait inside of MPI while another rank has the lock. A rank that raises an exception, or is
  interrupted, gives back its locks (`give_back_locks`). The calls that complete what was begun (`Unlock`, `Flush`) wait
  until the other rank is in any call of MPI; a rank whose code has ended is, until all have ended (`serve_until`).

On an engine, `MPI.Win` is replaced by the class of this module.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Literal

from mpi4py import MPI
from mpi4py.MPI import Win as _Win

from xpulab.engine.users_mpi.interruptible import KINDS, WORLD, Intracomm, duplicate, returning, together
from xpulab.engine.users_mpi.messages import NOTHING, finish
from xpulab.engine.waiting import poll

__all__ = ["Win", "give_back_locks", "serve_until"]

_RANKS = _Win.Create_keyval()  # the attribute of a window with a communicator of its ranks
_POSTED = 1  # tag of the messages of `Post` there
_ALL = -1  # in the place of a rank

_open: set[int] = set()  # the handles of the windows that were made, and not freed
_locks: dict[tuple[int, int], _Win] = {}  # the locks that this rank has: of which window, and on which rank


class Win(_Win):
    """An `MPI.Win` whose blocking calls can be left. A call that was left makes the window useless.

    It calls mpi4py's methods by the name of their class, by which `sharing.hangs` finds a rank that waits there.
    """

    def Free(self) -> None:
        """As mpi4py's."""
        ranks = _ranks(self)
        if ranks is None:
            _Win.Free(self)
            return

        def free() -> None:
            _open.discard(self.handle)
            _Win.Free(self)
            MPI.Comm.Free(ranks)

        together(ranks, free)

    def free(self) -> None:
        """As mpi4py's."""
        if self != MPI.WIN_NULL:
            self.Free()

    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        """As mpi4py's."""
        for ranks, rank in _members(self, group):
            finish(MPI.Comm.Irecv(ranks, NOTHING, rank, _POSTED))
        _Win.Start(self, group, assertion)

    def Post(self, group: MPI.Group, assertion: int = 0) -> None:
        """As mpi4py's."""
        _Win.Post(self, group, assertion)
        for ranks, rank in _members(self, group):
            MPI.Comm.Isend(ranks, NOTHING, rank, _POSTED).Free()

    def Wait(self) -> Literal[True]:
        """As mpi4py's."""
        poll(self.Test)
        return True

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """As mpi4py's."""
        _Win.Lock(self, rank, lock_type, assertion)
        _locks[self.handle, rank] = _Win(self)

    def Unlock(self, rank: int) -> None:
        """As mpi4py's."""
        _Win.Unlock(self, rank)
        _locks.pop((self.handle, rank), None)

    def Lock_all(self, assertion: int = 0) -> None:
        """As mpi4py's."""
        _Win.Lock_all(self, assertion)
        _locks[self.handle, _ALL] = _Win(self)

    def Unlock_all(self) -> None:
        """As mpi4py's."""
        _Win.Unlock_all(self)
        _locks.pop((self.handle, _ALL), None)


def give_back_locks() -> None:
    """Give back all locks of this rank, whose code will not: another rank may wait for them, inside of MPI."""
    while _locks:
        (_, rank), window = _locks.popitem()
        with contextlib.suppress(MPI.Exception):
            window.Unlock_all() if rank == _ALL else window.Unlock(rank)


def serve_until(over: Callable[[], bool]) -> None:
    """Let other ranks reach this rank's windows until `over` is true."""
    if _open:
        poll(lambda: over() or (WORLD.Iprobe() and False))


def _ranks(window: _Win) -> Intracomm | None:
    """Return the communicator of a window's ranks; None of a window that was not made by `Win`."""
    found: Any = window.Get_attr(_RANKS)
    return None if found is None else Intracomm(found)


def _members(window: _Win, group: MPI.Group) -> list[tuple[Intracomm, int]]:
    """Return the communicator of a window's ranks, and the ranks there of the members of a group."""
    if (ranks := _ranks(window)) is None:
        return []
    every = ranks.Get_group()
    members = MPI.Group.Translate_ranks(group, None, every)
    every.Free()
    return [(ranks, rank) for rank in members]


def _making(name: str, position: int) -> Any:
    """Return a method `name` that makes a window; its communicator is the argument at this position."""
    make = getattr(_Win, name)

    @functools.wraps(make)
    def call(cls: type[Win], *args: Any, **kwargs: Any) -> Win:
        comm = args[position] if len(args) > position else kwargs.get("comm", MPI.COMM_SELF)
        if comm == MPI.COMM_NULL:
            return cls(make(*args, **kwargs))

        def made() -> Win:
            with duplicate(comm) as ranks:
                window = cls(make(*args, **kwargs))
            _open.add(window.handle)
            window.Set_attr(_RANKS, ranks)
            return window

        return together(comm, made)

    return classmethod(call)


def _together(name: str) -> Callable[..., None]:
    """Return a collective method `name`, which begins after all ranks of the window have entered it."""
    block = getattr(_Win, name)

    @functools.wraps(block)
    def call(self: Win, *args: object, **kwargs: object) -> None:
        ranks = _ranks(self)
        if ranks is None:
            block(self, *args, **kwargs)
        else:
            together(ranks, lambda: block(self, *args, **kwargs))

    return call


for _name, _position in {"Create": 3, "Allocate": 3, "Allocate_shared": 3, "Create_dynamic": 1}.items():
    setattr(Win, _name, _making(_name, _position))
for _name in ("Fence", "Set_info"):
    setattr(Win, _name, _together(_name))
for _name in ("Rput", "Rget", "Raccumulate", "Rget_accumulate"):
    setattr(Win, _name, returning(_name, owner=_Win))

KINDS.append(Win)
setattr(MPI, "Win", Win)  # noqa: B010 -- mpi4py declares it final
