"""Memory that the ranks of a group share, with a slot for each rank, if all of them run on one host.

An all-reduce through it copies each number once to the rank that reduces it, and once from there to each other rank.
MPI's messages copy twice each time, and go on only while a rank calls MPI, which takes processor time from the backward
pass. On several hosts, or where a rank cannot open another's memory, there are no slots, and messages serve.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence

import numpy as np
import torch
from mpi4py import MPI

from xpulab.sharing.memory import SharedBlock

__all__ = ["Slots", "opened"]

_LEAST = 1 << 22  # bytes of a slot
_PATH, _PROOF = 128, 32  # bytes of a path, and of random bytes that prove that it leads to the same memory


class Slots:
    """The slots of all ranks.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray of uint8
        The slot of each rank.
    """

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._slots = [torch.from_numpy(array) for array in arrays]
        self.nbytes = arrays[0].nbytes

    def of(self, rank: int, like: torch.Tensor) -> torch.Tensor:
        """Return the start of a rank's slot as a flat tensor of this dtype and number of elements."""
        return self._slots[rank][: like.nbytes].view(like.dtype)


def opened(comm: MPI.Intracomm, nbytes: int) -> Generator[Sequence[MPI.Request], None, Slots | None]:
    """Make the slots. All ranks take part; what is yielded are the messages to wait for.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    nbytes : int
        Of a slot, at least. All ranks give the same number.

    Returns
    -------
    Slots or None
        None on all ranks if one of them cannot open the memory of another.
    """
    nbytes = max(_LEAST, 1 << (nbytes - 1).bit_length())
    with contextlib.ExitStack() as closed:
        proof, path, own = os.urandom(_PROOF), b"", None
        with contextlib.suppress(MemoryError):
            own = closed.enter_context(SharedBlock.create(nbytes + _PROOF))
            own.write(np.frombuffer(proof, np.uint8), nbytes)
            path = own.path.encode()
        mine = np.frombuffer(path.ljust(_PATH) + proof, np.uint8)
        every = np.empty((comm.size, len(mine)), np.uint8)
        yield [comm.Iallgather(mine, every)]
        arrays = []
        with contextlib.suppress(OSError, ValueError):
            for rank, about in enumerate(every):
                block = own
                if rank != comm.rank or block is None:
                    name = about[:_PATH].tobytes().decode().rstrip()
                    block = closed.enter_context(SharedBlock.open(name, writable=True))
                whole = block.array((nbytes + _PROOF,), np.uint8)
                if (whole[nbytes:] == about[_PATH:]).all():
                    arrays.append(whole[:nbytes])
        could = np.empty(comm.size, np.uint8)
        yield [comm.Iallgather(np.array([len(arrays) == comm.size], np.uint8), could)]
        return Slots(arrays) if could.all() else None
