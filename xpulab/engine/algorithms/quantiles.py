"""Exact quantiles of the columns of all rows, from two neighbouring values in the sorted order of each column."""

from __future__ import annotations

import numpy as np

from xpulab.engine.dataset import Data
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.moments import column_facts
from xpulab.kernels.quantiles import order_statistics
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import RowsInParts, parts_of
from xpulab.sharing.answers import Quantiles
from xpulab.sharing.sources import Source

__all__ = ["neighbours"]


def neighbours(
    task: Task, rows: Rows | RowsInParts, fractions: list[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the values on both sides of each quantile, as `numpy.percentile` uses them with ``method="linear"``.

    Parameters
    ----------
    task : Task
    rows : Rows or RowsInParts
        This rank's rows; NaN is ignored. It takes a pass for each byte of a number, and one more.
    fractions : list of float
        Quantiles, from 0 to 1.

    Returns
    -------
    lower, upper : numpy.ndarray of shape (n_fractions, n_features), in the dtype of the rows
        NaN for a column of NaN only.
    between : numpy.ndarray of float64 of shape (n_fractions, n_features)
        Position of the quantile between them, from 0 (lower) to 1 (upper).
    """
    counts = (column_facts(part, extremes=False).count for _, part in parts_of(rows))
    last = task.comm.allreduce(sum(counts, np.zeros(rows.n_features))) - 1
    place = np.maximum(last, 0) * np.array(fractions, np.float64)[:, None]
    lower = np.floor(place)
    wanted = np.concatenate([lower, np.minimum(lower + 1, last)])
    wanted[:, last < 0] = -1

    def together(counts: np.ndarray) -> np.ndarray:
        task.check()
        return task.comm.allreduce(counts)

    found = order_statistics(rows, wanted.astype(np.int64), together)
    return found[: len(fractions)], found[len(fractions) :], place - lower


@task("quantiles")
def _quantiles(task: Task, source: Source, weights: None, fractions: list[float]) -> Quantiles:
    """Return the results of `neighbours` for each column."""
    data = Data(task, source)
    lower, upper, between = neighbours(task, data.block, fractions)
    data.require_finite()
    return {"rows": data.n_own, "lower": lower, "upper": upper, "between": between}
