"""Which rows a batch has, and the rows of this rank in the order of the batches.

Each row is dealt to a batch once, by a permutation of all rows that does not depend on the ranks. So a batch has rows
from everywhere, whatever their order, and the rows of a rank in a batch lie one after the other: a step reads them as
they are, and an iteration changes only the order of the batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xpulab.engine.dataset import Data, on_host
from xpulab.engine.engine import Task

__all__ = ["Deal", "rows_in_order"]

_STEPS = 64  # of an iteration, if its batches have between these numbers of rows
_LEAST, _MOST = 16, 8192
_PIECE = 16 << 20  # bytes that are read between two looks for an interrupt


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
        n_batches = -(-n // min(_MOST, max(_LEAST, -(-n // _STEPS))))
        edges = np.arange(n_batches + 1) * n // n_batches
        if seed is None:
            order = np.concatenate([order[k::n_batches] for k in range(n_batches)])
            edges = np.cumsum([0, *(len(range(k, n, n_batches)) for k in range(n_batches))])
        else:
            np.random.RandomState(seed).shuffle(order)
        mine = np.flatnonzero((order >= first) & (order < last))
        return cls(np.diff(edges), order[mine] - first, np.searchsorted(mine, edges), own)


def rows_in_order(task: Task, data: Data) -> npt.NDArray[np.floating]:
    """Return this rank's rows in C order on the host.

    Raises
    ------
    ValueError
        On all ranks together, if a row has NaN or infinity.
    NotEnoughMemoryError
        If the devices do not keep all rows.
    """
    if data.in_passes:
        return on_host(data.rows, data.dtype)  # says that it needs all rows at once
    finite = True
    with data.stream() as fill:
        if fill is None:
            return on_host(data.rows, data.dtype)
        whole = np.empty((data.n_own, data.n_features), data.dtype)
        step = max(1, _PIECE // (data.n_features * whole.itemsize))
        for first in range(0, data.n_own, step):
            task.leave_if_cancelled()
            part = whole[first : first + step]
            fill(first, part)
            with np.errstate(over="ignore", invalid="ignore"):
                finite = finite and bool(np.isfinite(part.sum()))
    data.require_finite(0.0 if all(task.comm.allgather(finite)) else np.nan)
    return whole
