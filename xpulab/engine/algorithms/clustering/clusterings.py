"""Means and spreads of the clusters of labelled rows. Each rank adds up its rows on the host in float64, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.dataset import Data, data_of, pieces
from xpulab.engine.engine import Task, task
from xpulab.kernels.row_passes import take

__all__ = ["spreads"]


def _sorted_pieces(data: Data) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows in float64, sorted by cluster, a part at a time; with the clusters there, and the first row of each.

    The targets of `data` are the numbers of the clusters.
    """
    rows, targets = data.rows, data.targets
    assert targets is not None
    for first, last in pieces(rows.n_samples, rows.n_features * 8):
        places = np.arange(first, last)
        codes = take(targets, places)[:, 0].astype(np.int64)
        order = np.argsort(codes, kind="stable")
        there, firsts = np.unique(codes[order], return_index=True)
        yield take(rows, places[order]).astype(np.float64), there, firsts


def spreads(task: Task, data: Data, k: int) -> dict[str, np.ndarray]:
    """Return number of rows, mean, sum of distances from the mean, and sum of squared distances, of each cluster."""
    local = np.zeros((k, data.n_features + 1))
    for rows, there, firsts in _sorted_pieces(data):
        local[there, :-1] += np.add.reduceat(rows, firsts, axis=0)
        local[there, -1] += np.diff(firsts, append=len(rows))
    sums = task.comm.allreduce(local)
    counts, means = sums[:, -1], sums[:, :-1] / sums[:, -1:]
    task.check()
    away = np.zeros((k, 2 + data.n_features))
    for rows, there, firsts in _sorted_pieces(data):
        rows -= np.repeat(means[there], np.diff(firsts, append=len(rows)), axis=0)
        squares = np.einsum("ij,ij->i", rows, rows)
        away[there] += np.add.reduceat(np.column_stack([np.sqrt(squares), squares, rows]), firsts, axis=0)
    distances, squares, *rest = task.comm.allreduce(away).T
    # The sums of many rows far from zero are rounded more than those of their differences from the means.
    means = means + np.transpose(rest) / counts[:, None]
    return {"counts": counts, "means": means, "distances": distances, "squares": squares}


@task("metrics.clusters")
def _clusters(
    task: Task, source: dict[str, Any], weights: None, targets: dict[str, Any], n_clusters: int
) -> dict[str, Any]:
    data = data_of(task, source, None, targets)
    return {"rows": data.n_own, **spreads(task, data, n_clusters)}
