"""Checks the columns that metrics get, and sends them to the engines, which compute the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length

from xpulab.checks import check_array, check_sample_weight
from xpulab.data import ShardedArray, place_named
from xpulab.deploy.cluster import current_cluster
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.rows import Packing

__all__ = ["checked_column", "checked_weights", "require_aligned", "sums"]


def checked_column(y: Any, name: str) -> Any:
    """Check numbers, and return an array (n_samples, n_columns) of float32 or float64. A handle is returned as it is.

    Raises
    ------
    ValueError, TypeError
        If y does not consist of finite numbers, as in scikit-learn.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if isinstance(y, ShardedArray):
        y.source(current_cluster())
        y.require_finite(name)
        return y
    with place_named(y):
        array = check_array(y, ensure_2d=False, dtype=[np.float64, np.float32], input_name=name)
    return array.reshape(len(array), -1)


def checked_weights(sample_weight: Any, y: Any) -> np.ndarray | None:
    """Check weights, and return them as float64 of shape (n_samples,); None if all weights are 1."""
    if sample_weight is None:
        return None
    with place_named(sample_weight):
        return check_sample_weight(sample_weight, np.empty((y.shape[0], 0)), dtype=np.float64)


def columns_of(y: Any) -> int:
    """Return the number of columns."""
    return 1 if len(y.shape) == 1 else int(y.shape[1])


def require_aligned(*columns: Any) -> None:
    """Raise ValueError if the numbers of rows differ, or, for handles, the numbers of rows per rank."""
    check_consistent_length(*(np.empty((column.shape[0], 0)) for column in columns))
    handles = [column for column in columns if isinstance(column, ShardedArray)]
    if any(handle.bounds != handles[0].bounds for handle in handles[1:]):
        raise ValueError(
            f"two handles have their rows on the engines as {handles[0].counts} and {handles[1].counts}; send one of "
            f"them with cluster.scatter(y, counts={list(handles[0].counts)})"
        )


def sums(
    function: str, task: str, rows: Any, targets: Any = None, weights: np.ndarray | None = None, **arguments: Any
) -> dict[str, Any]:
    """Run a task that computes sums over the rows of all ranks.

    Parameters
    ----------
    function : str
        Name of the metric, for the report (the cluster's `last_report`).
    task : str
        Name of the task.
    rows, targets : numpy.ndarray of shape (n_samples, n_columns) or ShardedArray
    weights : numpy.ndarray of shape (n_samples,), optional
    **arguments : Any
        Further arguments of the task.

    Returns
    -------
    dict of str to Any
        The result of rank 0.
    """
    cluster = current_cluster()
    who = Functions("metrics")
    with Call(who, function, rows, cluster) as call, cluster.outgoing() as outgoing:
        if weights is not None:
            weights = weights.astype(rows.dtype)
        packing = Packing(who, outgoing, call, rows, weights, targets)
        return call.send(task, packing, **arguments).results[0]
