"""Means and spreads of the clusters of labelled rows. Each rank adds up its rows on the host in float64, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.class_sums import parts_of, sums_of
from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.passes import any_data
from xpulab.engine.dataset import Data, kind_of, pieces
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.engine.streaming import expect_passes
from xpulab.kernels import streamed
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import RowsInParts
from xpulab.sharing.sources import Source

__all__ = ["sparse_spreads", "spreads"]


def _sorted_pieces(rows: Rows | RowsInParts, codes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows in float64, sorted by cluster, a part at a time; with the clusters there, and the first row of each.

    The codes are the numbers of the rows' clusters.
    """
    for begin, part in streamed.parts_of(rows):
        for first, last in pieces(part.n_samples, part.n_features * 8):
            some = codes[begin + first : begin + last]
            order = np.argsort(some, kind="stable")
            there, firsts = np.unique(some[order], return_index=True)
            yield take(part, first + order).astype(np.float64), there, firsts


def spreads(task: Task, data: Data, k: int, classes: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return number of rows, mean, sum of distances from the mean, and sum of squared distances, of each cluster.

    The targets of `data` are the numbers of the clusters, or labels of these classes.
    """
    block = data.block
    assert data.targets is not None
    codes = codes_of(data.targets, classes).astype(np.int64)
    local = np.zeros((k, data.n_features + 1))
    expect_passes(task, 2)
    with np.errstate(invalid="ignore"):  # rows that are not kept may have infinity, which is found after the pass
        for rows, there, firsts in _sorted_pieces(block, codes):
            local[there, :-1] += np.add.reduceat(rows, firsts, axis=0)
            local[there, -1] += np.diff(firsts, append=len(rows))
    data.require_finite()
    sums = task.comm.allreduce(local)
    counts, means = sums[:, -1], sums[:, :-1] / sums[:, -1:]
    task.check()
    away = np.zeros((k, 2 + data.n_features))
    for rows, there, firsts in _sorted_pieces(block, codes):
        rows -= np.repeat(means[there], np.diff(firsts, append=len(rows)), axis=0)
        unit = _unit(np.abs(rows).max(initial=0.0))
        scaled = rows / unit
        squares = np.einsum("ij,ij->i", scaled, scaled)
        with np.errstate(over="ignore"):  # infinity then
            each = np.column_stack([np.sqrt(squares) * unit, squares * unit * unit, rows])
            away[there] += np.add.reduceat(each, firsts, axis=0)
    distances, squares, *rest = task.comm.allreduce(away).T
    # The sums of many rows far from zero are rounded more than those of their differences from the means.
    means = means + np.transpose(rest) / counts[:, None]
    return {"counts": counts, "means": means, "distances": distances, "squares": squares}


def _unit(largest: float) -> float:
    """Return a power of two in which no square of a number up to the largest one overflows."""
    return float(np.ldexp(0.5, np.frexp(largest)[1]))


def sparse_spreads(task: Task, rows: SparseRows, codes: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Return what `spreads` does, of sparse rows: their distances from the means follow from products."""
    local = np.hstack([sums_of(rows, codes, k)[0], np.bincount(codes, minlength=k)[:, None]])
    sums = task.comm.allreduce(local)
    counts, means = sums[:, -1], sums[:, :-1] / sums[:, -1:]
    task.check()
    away, largest = np.zeros((2, k)), np.abs(means).max(initial=0.0)
    for first, part in parts_of(rows):
        mine, unit = codes[first : first + part.shape[0]], _unit(max(largest, np.abs(part.data).max(initial=0.0)))
        scaled, centres = part / unit, means / unit
        of_mean = (scaled @ np.ascontiguousarray(centres.T))[np.arange(len(mine)), mine]
        norms = np.square(centres).sum(axis=1)
        squares = np.maximum(scaled.multiply(scaled).sum(axis=1).A1 - 2 * of_mean + norms[mine], 0)
        squares[counts[mine] == 1] = 0  # without rounding
        with np.errstate(over="ignore"):  # infinity then
            away += [np.bincount(mine, np.sqrt(squares) * unit, k), np.bincount(mine, squares * unit * unit, k)]
    distances, squares = task.comm.allreduce(away)
    return {"counts": counts, "means": means, "distances": distances, "squares": squares}


@task("metrics.clusters")
def _clusters(
    task: Task, source: Source, weights: None, targets: Source, n_clusters: int, classes: np.ndarray | None = None
) -> dict[str, Any]:
    if kind_of(task, source)[0] is sparse:
        rows, labels = any_data(task, source, None, targets)
        assert isinstance(rows, SparseRows)
        codes = codes_of(labels, classes).astype(np.int64)
        return {"rows": rows.n_samples, **sparse_spreads(task, rows, codes, n_clusters)}
    data = Data(task, source, None, targets)
    return {"rows": data.n_own, **spreads(task, data, n_clusters, classes)}
