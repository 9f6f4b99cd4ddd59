"""The first centres of k-means, drawn from the rows of all ranks as scikit-learn draws them.

References
----------
.. [1] D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, 1027-1035.
.. [2] scikit-learn's ``sklearn/cluster/_kmeans.py``: the order of random draws follows it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.clustering.scalable import sampled_start, scalable_start
from xpulab.engine.comm import Interrupted
from xpulab.kernels.kmeans import few
from xpulab.kernels.kmeans.plusplus import index_reaching

__all__ = ["start"]

_TOLD = 0.05  # seconds between two updates of the description of the present work


def start(
    problem: Problem, init: str, n_clusters: int, random: np.random.RandomState, init_size: int | None = None
) -> np.ndarray:
    """Return initial centres, less the shift, of shape (n_clusters, n_features).

    Parameters
    ----------
    problem : Problem
    init : {"k-means++", "random"}
    n_clusters : int
    random : numpy.random.RandomState
    init_size : int, optional
        Number of drawn rows for k-means++, if not all rows are kept.
    """
    if problem.in_passes and init_size is not None and init == "k-means++":
        sample = _draw(problem, random.random_sample(max(init_size, n_clusters)), np.empty(0, np.int64))
        return sampled_start(problem, sample, n_clusters, random)
    return _starts[init](problem, n_clusters, random)


def _draw(problem: Problem, uniforms: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Return indices of rows for uniform numbers, by weight as NumPy's `choice`; rows in `taken` are left out."""
    if problem.weights is None:  # the cumulative sum of the weights then is the number of rows that are left
        left = problem.n_samples - len(taken)
        picks = np.minimum((uniforms * left).astype(np.int64), left - 1)
        for row in np.sort(taken):
            picks += picks >= row
        return picks
    weights = problem.weights.copy()
    weights[taken[(taken >= problem.first) & (taken < problem.first + len(weights))] - problem.first] = 0
    sums = np.cumsum(weights, dtype=np.float64)
    offsets = problem.comm.exclusive_sums(float(sums[-1]) if len(sums) else 0.0)
    targets = np.minimum(uniforms * offsets[-1], np.nextafter(offsets[-1], 0))
    rank = problem.comm.rank
    mine = (targets >= offsets[rank]) & (targets < offsets[rank + 1])
    picks = np.zeros(len(targets), np.int64)
    if mine.any():
        found = np.searchsorted(sums, targets[mine] - offsets[rank], side="right")
        # A target that is beyond the last sum because of rounding belongs to the last row of positive weight.
        picks[mine] = problem.first + np.minimum(found, np.searchsorted(sums, sums[-1]))
    return problem.comm.allreduce(picks)


def _random_start(problem: Problem, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Draw distinct rows by weight, in the same way as ``RandomState.choice(n, k, replace=False, p=weights)``."""
    chosen = np.empty(0, np.int64)
    while len(chosen) < n_clusters:
        picks = _draw(problem, random.random_sample(n_clusters - len(chosen)), chosen)
        _, first = np.unique(picks, return_index=True)
        chosen = np.concatenate([chosen, picks[np.sort(first)]])
    return problem.take(chosen)


def _plusplus_start(problem: Problem, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Draw centres by greedy k-means++ [1]_: each is the best of a few rows, drawn by squared distance to the others.

    If a rank does not keep all of its rows, `scalable_start` draws the centres, which takes a few passes.
    Each rank keeps the distances of its rows. A draw is first located in the sums of the ranks, and then in the
    distances of one rank, so that no rank needs the distances of all rows.
    """
    comm, rows = problem.comm, problem.rows
    first = problem.take(_draw(problem, random.random_sample(1), np.empty(0, np.int64)))[0]
    if problem.in_passes:
        return scalable_start(problem, first, n_clusters, random)
    trials = 2 + int(np.log(n_clusters))
    if (whole := problem.few(n_clusters)) is not None:
        return few.seed(whole, problem.shift, first, random.uniform(size=(n_clusters - 1, trials)))
    centers = np.empty((n_clusters, rows.n_features), rows.dtype)
    centers[0] = first
    state, potential = problem.kernels.start(rows, problem.shift, centers[0])
    offsets = comm.exclusive_sums(potential)
    shown = 0.0
    for c in range(1, n_clusters):
        if time.perf_counter() - shown > _TOLD:
            shown = time.perf_counter()
            # All ranks choose the same centres, and rank 0 counts them.
            counted: dict[str, Any] = {"done": c, "steps": n_clusters} if comm.rank == 0 else {}
            problem.task.show(doing="first centre", **counted)
        uniforms = random.uniform(size=trials)
        if offsets[-1] == 0:  # all rows are at centres
            centers[c] = centers[0]
            continue
        candidates = _candidates(problem, state, uniforms * offsets[-1], offsets)
        local = np.append(problem.kernels.candidate_potentials(state, candidates), problem.task.cancelled())
        every = comm.allgather_arrays(local)
        if every[:, -1].any():
            raise Interrupted
        best = int(np.argmin(every[:, :-1].sum(axis=0)))
        problem.kernels.accept(state, best)
        centers[c] = candidates[best]
        offsets = np.concatenate([[0.0], np.cumsum(every[:, best])])
    return centers


def _candidates(problem: Problem, state: Any, targets: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the rows at which the cumulative sum of the potential reaches the targets."""
    comm, rows = problem.comm, problem.rows
    owners = index_reaching(offsets[1:], targets)
    found = np.zeros((len(targets), rows.n_features), rows.dtype)
    for i in np.flatnonzero(owners == comm.rank):
        index = problem.kernels.search(state, float(targets[i] - offsets[comm.rank]))
        found[i] = problem.kernels.take(rows, np.array([index]), problem.shift)[0]
    return comm.allreduce(found)


_starts = {"k-means++": _plusplus_start, "random": _random_start}
