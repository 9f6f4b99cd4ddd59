"""The power of two by which rows are divided, if squares of their differences would leave the range of their dtype.

The division is exact. Ordinary rows are never divided, and what says so are numbers that all ranks know anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for

__all__ = ["largest_of", "ordinary", "unit_for", "unit_of"]


def ordinary(size: float, dtype: np.dtype[Any], power: float = 2.0) -> bool:
    """Return whether numbers of about this size may be raised to a power, and be added up, in the dtype.

    The exponents of their powers take at most half of the range, so that numbers are right that are much smaller.
    """
    most = largest_of(dtype, power)
    return bool(1 / most < size < most)


def largest_of(dtype: np.dtype[Any], power: float = 2.0) -> float:
    """Return the largest number that is `ordinary`."""
    return float(2.0 ** (np.finfo(dtype).maxexp / (2 * max(power, 1.0))))


def unit_of(task: Task, rows: AnyRows, least: float = 0.0, power: float = 2.0) -> float:
    """Return the power of two by which all ranks divide their rows, after a pass over them; 1 for ordinary rows.

    Parameters
    ----------
    task : Task
    rows : Rows or SparseRows
    least : float
        A number that may be larger than all in the rows, and is divided, too; the same on all ranks.
    power : float
        Of what is computed from differences.
    """
    return unit_for(task, kernels_for(rows).reach(rows), rows.dtype, least, power)


def unit_for(task: Task, reach: float, dtype: np.dtype[Any], least: float = 0.0, power: float = 2.0) -> float:
    """Return the power of two for rows of this dtype, of which this rank's have this largest magnitude.

    See `unit_of`.
    """
    most = max(float(task.comm.allreduce(np.array([reach]), np.maximum)[0]), least)
    if not most or ordinary(most, dtype, power):
        return 1.0
    return 2.0 ** min(int(np.frexp(most)[1]), np.finfo(dtype).maxexp - 1)
