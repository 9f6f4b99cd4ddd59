"""Clusters of k-means that have no row of positive weight left: how they are noticed, and the rows that they get."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.kernels.on_cpu.host import count_positive

__all__ = ["clear_absent", "relocate"]


def clear_absent(problem: Problem, labels: Any, sums: np.ndarray, weights: np.ndarray) -> None:
    """Set the sums and weights of clusters in which this rank has no row of positive weight to zero.

    The kernel subtracts rows that leave a cluster from its sums. With weights that are not whole numbers this leaves a
    rounding error, with which an empty cluster would not appear to be empty.
    """
    if problem.weights is not None:
        host = problem.kernels.labels_on_cpu(labels, problem.rows.n_samples)
        absent = count_positive(host, problem.weights, len(weights)) == 0
        sums[absent] = weights[absent] = 0


def relocate(problem: Problem, centers: np.ndarray, labels: Any, sums: np.ndarray, weights: np.ndarray) -> None:
    """Move to each empty cluster the row that is farthest from its own centre; changes `sums` and `weights`.

    The function gathers the distances of all rows on one rank, so that it chooses the same rows as scikit-learn, also
    if distances are equal. It is called rarely. It differs from scikit-learn in two cases, which in scikit-learn depend
    on rounding: a row at its own centre is not moved, and a cluster whose rows have all been moved has the weight zero.
    """
    comm, rows = problem.comm, problem.rows
    empty = np.flatnonzero(weights == 0)
    own = problem.kernels.labels_on_cpu(labels, rows.n_samples)
    distances = problem.kernels.own_distances(rows, problem.shift, centers, labels)
    norms = np.square(centers, dtype=np.float64).sum(axis=1)
    distances[distances <= problem.kernels.distance_rounding(rows.dtype) * norms[own]] = 0
    gathered = comm.gather_blocks(distances)
    far = None
    if gathered is not None and gathered.max() > 0:
        far = np.argpartition(gathered, -len(empty))[: -len(empty) - 1 : -1]
    far = comm.bcast(far)
    if far is None:  # more clusters than distinct rows
        return
    points = problem.take(far).astype(np.float64)
    mine = (far >= problem.first) & (far < problem.first + rows.n_samples)
    facts = np.zeros((2, len(far)))
    if mine.any():
        local = far[mine] - problem.first
        facts[0, mine] = own[local]
        facts[1, mine] = 1.0 if problem.weights is None else problem.weights[local]
    owners, row_weights = comm.allreduce(facts)
    left = _rows_that_count(problem, own, len(weights))
    for new, old, point, weight in zip(empty, owners.astype(int), points, row_weights, strict=True):
        sums[old] -= point * weight
        weights[old] -= weight
        left[old] -= weight > 0
        if left[old] == 0:
            sums[old] = weights[old] = 0
        sums[new] = point * weight
        weights[new] = weight
        left[new] = weight > 0


def _rows_that_count(problem: Problem, labels: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return the number of rows of positive weight in each cluster, over all ranks: shape (n_clusters,)."""
    if problem.weights is None:
        mine = np.bincount(labels, minlength=n_clusters)
    else:
        mine = count_positive(labels, problem.weights, n_clusters)
    return problem.comm.allreduce(mine.astype(np.int64))
