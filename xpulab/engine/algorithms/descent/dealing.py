"""Which rows a batch has.

Each row is dealt to a batch once, by a permutation of all rows that does not depend on the ranks. So a batch has rows
from everywhere, whatever their order, and the rows of a rank in a batch lie one after the other: a step reads them as
they are, and an iteration changes only the order of the batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["STEPS", "Deal", "n_batches_of"]

#: Of an iteration, if its batches have between `_LEAST` and `_MOST` rows.
STEPS = 64
_LEAST, _MOST = 16, 8192


def n_batches_of(n: int) -> int:
    """Return the number of batches of so many rows."""
    return -(-n // min(_MOST, max(_LEAST, -(-n // STEPS))))


@dataclass(frozen=True)
class Deal:
    """The rows of the batches.

    Attributes
    ----------
    sizes : numpy.ndarray of int64 of shape (n_batches,)
        Numbers of rows of all ranks.
    places : numpy.ndarray of int64
        This rank's rows, in the order of the batches.
    bounds : numpy.ndarray of int64 of shape (n_batches + 1,)
        Batch k has the rows ``places[bounds[k] : bounds[k + 1]]`` of this rank.
    held_out : numpy.ndarray of int64
        This rank's rows for validation, which no batch has.
    """

    sizes: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        bounds: list[int],
        rank: int,
        seed: int | None,
        held_out: npt.NDArray[np.uint8] | None = None,
    ) -> Deal:
        """Deal all rows; the result is that of one rank.

        Parameters
        ----------
        bounds : list of int
            Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
        rank : int
        seed : int or None
            Of the permutation. None deals the rows in turn.
        held_out : numpy.ndarray of uint8, optional
            Packed bits of all rows: 1 for those for validation.
        """
        n, first, last = bounds[-1], bounds[rank], bounds[rank + 1]
        own = np.empty(0, np.int64)
        order = np.arange(n)
        if held_out is not None:
            is_held_out = np.unpackbits(held_out, count=n).astype(bool)
            own = np.flatnonzero(is_held_out[first:last])
            order = np.flatnonzero(~is_held_out)
        n = len(order)
        n_batches = n_batches_of(n)
        edges = np.arange(n_batches + 1) * n // n_batches
        if seed is None:
            order = np.concatenate([order[k::n_batches] for k in range(n_batches)])
            edges = np.cumsum([0, *(len(range(k, n, n_batches)) for k in range(n_batches))])
        else:
            np.random.RandomState(seed).shuffle(order)
        mine = np.flatnonzero((order >= first) & (order < last))
        return cls(np.diff(edges), order[mine] - first, np.searchsorted(mine, edges), own)
