"""The thresholds between the bins of the columns, as scikit-learn's ``_BinMapper`` chooses them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xpulab.engine.algorithms.boosting.losses import weighted_percentile
from xpulab.engine.engine import Task
from xpulab.kernels.on_cpu.boosting import Thresholds

__all__ = ["thresholds_of"]

_ALMOST_INFINITY = 1e300  # no threshold is infinite, except between all values and missing ones
_BYTES = 64 << 20  # of the columns that each rank has at a time, of all rows

_Array = npt.NDArray[np.float64]


def thresholds_of(task: Task, rows: _Array, weights: _Array | None, max_bins: int) -> Thresholds:
    """Return the thresholds of all columns. Each rank chooses those of some columns, from the rows of all ranks.

    Parameters
    ----------
    task : Task
    rows : numpy.ndarray of float64 of shape (n_own, n_features)
        Rows of this rank.
    weights : numpy.ndarray of float64 of shape (n_own,) or None
        Their weights, if these count.
    max_bins : int
        Largest number of bins of a column, without that of missing values.
    """
    comm, d = task.comm, rows.shape[1]
    counts = comm.allgather(len(rows))
    longest = max(counts)
    whole = None if weights is None else _of_all(task, weights, counts, longest)
    found: list[_Array] = []
    step = max(1, _BYTES // (8 * max(1, longest * comm.size))) if comm.size > 1 else d
    for first in range(0, d, max(step, 1)):
        task.check()
        some = range(first, min(first + step, d))
        columns = [_of_all(task, rows[:, f], counts, longest) for f in some]
        mine = {}
        with task.on_host():
            for f, column in zip(some, columns, strict=True):
                if f % comm.size == comm.rank:
                    task.leave_if_cancelled()
                    mine[f] = _thresholds(column, whole, max_bins)
        every: dict[int, _Array] = {}
        for part in comm.allgather(mine):
            every |= part
        found += [every[f] for f in some]
    return Thresholds(found, max_bins)


def _of_all(task: Task, column: _Array, counts: list[int], longest: int) -> _Array:
    """Return a column of the rows of all ranks, in their order."""
    if task.comm.size == 1:
        return np.array(column)
    padded = np.zeros(longest)
    padded[: len(column)] = column
    every = task.comm.allgather_arrays(padded)
    return np.concatenate([part[:n] for part, n in zip(every, counts, strict=True)])


def _thresholds(column: _Array, weights: _Array | None, max_bins: int) -> _Array:
    """Return the thresholds of a column, as scikit-learn's ``_find_binning_thresholds``."""
    there = ~np.isnan(column)
    if weights is not None:
        there &= weights != 0
        weights = weights[there]
    column = column[there]
    if weights is None:
        column = np.sort(column)
        distinct = column[np.concatenate([[True], column[1:] != column[:-1]])] if len(column) else column
    else:
        distinct = np.unique(column)
    if len(distinct) <= 1:
        return np.empty(0)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(distinct) <= max_bins:
            found = np.lib.stride_tricks.sliding_window_view(distinct, 2).mean(axis=1)
        else:
            percents = np.linspace(0, 100, num=max_bins + 1)[1:-1]
            if weights is None:
                found = np.percentile(column, percents, method="averaged_inverted_cdf")
            else:
                found = weighted_percentile(column, weights, percents, average=True)
    found = np.unique(found)
    found = np.minimum(found, _ALMOST_INFINITY)
    return np.ascontiguousarray(found)
