"""mpi4py's file for a user's code, with collective calls that can be left.

MPI has no form of these calls that a rank could leave. The ranks that have opened the file therefore meet, in a wait
that can be left, and then call MPI's form, which waits for nothing but the file system. So `Close` and `Sync`, which
MPI allows to return earlier, are barriers.

On an engine, `MPI.File` is replaced by the class of this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import File as _File

from xpulab.engine.users_mpi.interruptible import KINDS, Intracomm, duplicate, returning, together

__all__ = ["File"]


class File(_File):
    """An `MPI.File` whose collective calls can be left. A call that was left makes the file useless.

    It calls mpi4py's methods by the name of their class, by which `sharing.hangs` finds a rank that waits there.
    """

    _ranks: Intracomm | None = None  # those that have opened the file; None if `Open` has not made this object

    @classmethod
    def Open(
        cls, comm: MPI.Intracomm, filename: Any, amode: int = MPI.MODE_RDONLY, info: MPI.Info = MPI.INFO_NULL
    ) -> File:
        """As mpi4py's."""

        def opened() -> File:
            with duplicate(comm) as ranks:
                file = cls(_File.Open(comm, filename, amode, info))
            file._ranks = ranks
            return file

        return opened() if comm == MPI.COMM_NULL else together(comm, opened)

    def Close(self) -> None:
        """As mpi4py's."""
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            _File.Close(self)
            return

        def close() -> None:
            _File.Close(self)
            MPI.Comm.Free(ranks)

        together(ranks, close)

    def free(self) -> None:
        """As mpi4py's."""
        if self != MPI.FILE_NULL:
            self.Close()


def _together(name: str) -> Callable[..., Any]:
    """Return a collective method `name`, which begins after all ranks of the file have entered it."""
    block = getattr(_File, name)

    @functools.wraps(block)
    def call(self: File, *args: object, **kwargs: object) -> Any:
        def begin() -> Any:
            return block(self, *args, **kwargs)

        return begin() if self._ranks is None else together(self._ranks, begin)

    return call


_MOVING = [f"{way}_{which}" for way in ("Read", "Write") for which in ("all", "at_all", "ordered")]
for _name in [
    *("Preallocate", "Seek_shared", "Set_atomicity", "Set_info", "Set_size", "Set_view", "Sync"),
    *_MOVING,
    *(f"{name}_{half}" for name in _MOVING for half in ("begin", "end")),
]:
    setattr(File, _name, _together(_name))
for _name in [f"I{way}{which}" for way in ("read", "write") for which in ("", "_all", "_at", "_at_all", "_shared")]:
    setattr(File, _name, returning(_name, owner=_File))

KINDS.append(File)
setattr(MPI, "File", File)  # noqa: B010 -- mpi4py declares it final
