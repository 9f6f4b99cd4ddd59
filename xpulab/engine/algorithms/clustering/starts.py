"""The first centres of k-means, drawn from the rows of all ranks as scikit-learn draws them.

References
----------
.. [1] D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, 1027-1035.
.. [2] scikit-learn's ``sklearn/cluster/_kmeans.py``: the order of random draws follows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.clustering.scalable import Chosen, sampled_start, scalable_start
from xpulab.engine.comm import Interrupted
from xpulab.kernels.kmeans import few
from xpulab.kernels.kmeans.plusplus import index_reaching

__all__ = ["State", "StoppedChoice", "start", "start_of_run"]

_TOLD = 0.05  # seconds between two updates of the description of the present work

#: The state of a fit, which its checkpoint has.
State = dict[str, Any]


class StoppedChoice(Interrupted):
    """A choice by k-means++ was stopped, after these centres."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__()
        self.chosen = chosen


def start(
    problem: Problem,
    init: str,
    n_clusters: int,
    random: np.random.RandomState,
    init_size: int | None = None,
    begun: Chosen | None = None,
    keep: Callable[[Chosen], None] = lambda chosen: None,
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
    begun : Chosen, optional
        An earlier choice by k-means++ or k-means|| from the same rows, with which this one goes on. `random` is what it
        was when that choice began.
    keep : callable, optional
        Called from time to time while k-means++ or k-means|| chooses.

    Raises
    ------
    StoppedChoice
        On all ranks together, if the task was asked to stop while k-means++ chose among rows that are all kept.
    """
    if problem.in_passes and init_size is not None and init == "k-means++":
        sample = _draw(problem, random.random_sample(max(init_size, n_clusters)), np.empty(0, np.int64))
        return sampled_start(problem, sample, n_clusters, random)
    if init == "random":
        return _random_start(problem, n_clusters, random)
    return _plusplus_start(problem, n_clusters, random, begun, keep)


def start_of_run(
    problem: Problem, init: str, n_clusters: int, random: np.random.RandomState, init_size: int | None,
    state: State, resume: State | None, keep: Callable[[State], None],
) -> np.ndarray:  # fmt: skip
    """Choose the first centres of a run of k-means, or go on with a choice.

    Parameters
    ----------
    problem, init, n_clusters, random, init_size
        As for `start`.
    state : dict
        What the state of this run has beside the choice.
    resume : dict or None
        The state of a choice that was stopped.
    keep : callable
        Called from time to time with the state of the choice.

    Raises
    ------
    StoppedChoice
        As `start`, with the state of the choice as ``state`` in its result.
    """
    # A copy of the state takes a part of the time of small fits, whose choice is never stopped.
    quick = resume is None and (init == "random" or problem.few(n_clusters) is not None)
    began = None if quick else random.get_state()

    def state_of(chosen: Chosen) -> State:
        of_rows = {"shift": problem.shift, "unit": problem.unit, "random": began}
        return {**state, "iteration": 0, **chosen._asdict(), **of_rows}

    begun = None if resume is None else Chosen(*(resume[name] for name in Chosen._fields))
    try:
        return start(problem, init, n_clusters, random, init_size, begun, lambda chosen: keep(state_of(chosen)))
    except StoppedChoice as stopped:
        stopped.result["state"] = state_of(stopped.chosen)
        raise


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


def _plusplus_start(
    problem: Problem,
    n_clusters: int,
    random: np.random.RandomState,
    begun: Chosen | None,
    keep: Callable[[Chosen], None],
) -> np.ndarray:
    """Draw centres by greedy k-means++ [1]_: each is the best of a few rows, drawn by squared distance to the others.

    If a rank does not keep all of its rows, `scalable_start` draws the centres, which takes a few passes.
    Each rank keeps the distances of its rows. A draw is first located in the sums of the ranks, and then in the
    distances of one rank, so that no rank needs the distances of all rows.
    """
    comm, rows = problem.comm, problem.rows
    first = random.random_sample(1)
    if begun is None or bool(begun.drawn) != problem.in_passes:  # it may have been stopped where there was more memory
        begun = Chosen(problem.take(_draw(problem, first, np.empty(0, np.int64))), np.inf, (1,))
    if problem.in_passes:
        return scalable_start(problem, begun, n_clusters, random, keep)
    chosen = begun.centers
    trials = 2 + int(np.log(n_clusters))
    if len(chosen) == 1 and (whole := problem.few(n_clusters)) is not None:
        return few.seed(whole, problem.shift, chosen[0], random.uniform(size=(n_clusters - 1, trials)))
    random.uniform(size=(len(chosen) - 1, trials))  # those with which an earlier choice has drawn
    centers = np.empty((n_clusters, rows.n_features), rows.dtype)
    centers[: len(chosen)] = chosen
    state, potential = problem.kernels.go_on(rows, problem.shift, chosen, trials)
    offsets = comm.exclusive_sums(potential)
    shown = time.perf_counter()
    for c in range(len(chosen), n_clusters):
        if c == len(chosen) or time.perf_counter() - shown > _TOLD:
            shown = time.perf_counter()
            # All ranks choose the same centres, and rank 0 counts them.
            counted: dict[str, Any] = {"done": c, "steps": n_clusters} if comm.rank == 0 else {}
            problem.task.show(doing="first centre", **counted)
            keep(Chosen(centers[:c], float(offsets[-1])))
        uniforms = random.uniform(size=trials)
        if offsets[-1] == 0:  # all rows are at centres
            centers[c] = centers[0]
            continue
        candidates = _candidates(problem, state, uniforms * offsets[-1], offsets)
        local = np.append(problem.kernels.candidate_potentials(state, candidates), problem.task.cancelled())
        every = comm.allgather_arrays(local)
        if every[:, -1].any():
            raise StoppedChoice(Chosen(centers[:c], float(offsets[-1])))
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
