"""mpi4py's `util.pkl5` for a user's code, with blocking calls that can be left.

The module's classes call methods of `MPI.Comm` itself. On an engine they find the methods of `interruptible.Comm`
there, and the communicators of the module are also those of `interruptible`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from mpi4py.util import pkl5

from xpulab.engine.users_mpi import interruptible
from xpulab.engine.users_mpi.interruptible import KINDS, together

__all__: list[str] = []

_MET = MPI.Comm.Create_keyval()  # the attribute of a communicator whose ranks have made the module's own copy of it


class _Comm(interruptible.Comm):
    """What the module finds as `MPI.Comm`."""

    Bcast = interruptible.Intracomm.Bcast


class _MPI(types.ModuleType):
    """What the module finds as `MPI`."""

    Comm = _Comm

    def __getattr__(self, name: str) -> Any:
        return getattr(MPI, name)


def _copying(name: str) -> Callable[[MPI.Comm], Any]:
    """Return a function `name` of the module, which copies a communicator at its first call, with all ranks."""
    copy = getattr(pkl5, name)

    @functools.wraps(copy)
    def call(comm: MPI.Comm) -> Any:
        if comm.Get_attr(_MET):
            return copy(comm)
        copied = together(comm, lambda: copy(comm))
        comm.Set_attr(_MET, True)
        return copied

    return call


class Intracomm(pkl5.Comm, interruptible.Intracomm):  # type: ignore[misc]
    """The module's communicator."""


class Intercomm(pkl5.Comm, interruptible.Intercomm):  # type: ignore[misc]
    """The module's communicator of two groups."""


for _name in ("_commctx_intra", "_commctx_inter"):
    setattr(pkl5, _name, _copying(_name))
for _kind in (Intracomm, Intercomm):
    _kind.__module__ = pkl5.__name__
    setattr(pkl5, _kind.__name__, _kind)
setattr(pkl5, "MPI", _MPI("MPI"))  # noqa: B010 -- mpi4py declares no such name
KINDS += [pkl5.Comm, pkl5.Message, pkl5.Request]
