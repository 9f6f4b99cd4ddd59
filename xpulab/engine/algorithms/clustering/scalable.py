"""The first centres of k-means for rows that are read in each pass: k-means|| takes a few passes, not one a centre.

References
----------
.. [1] B. Bahmani, B. Moseley, A. Vattani, R. Kumar, S. Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012), 622-633.
.. [2] P. S. Efraimidis, P. G. Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97
   (2006), 181-185: the rows with the smallest of exponential numbers, each divided by the row's weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.kernels.kmeans import dense
from xpulab.kernels.kmeans.plusplus import index_reaching
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import parts_of

__all__ = ["ROUNDS", "sampled_start", "scalable_start"]

#: Passes in which rows are drawn. One more pass counts the rows near each of them.
ROUNDS = 5

_DRAWN = 2  # rows that a pass draws, per centre


def scalable_start(problem: Problem, first: np.ndarray, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Draw centres by k-means|| [1]_, less the shift: (n_clusters, n_features).

    Each pass draws rows by their squared distance to those drawn before, as many in every pass [2]_. The centres are
    then chosen from the drawn rows by greedy k-means++, with the weight of the rows that are nearest to each.

    Parameters
    ----------
    problem : Problem
        Whose rows are dense.
    first : numpy.ndarray of shape (n_features,)
        The first row, less the shift.
    n_clusters : int
    random : numpy.random.RandomState
    """
    key = random.randint(np.iinfo(np.int32).max, size=ROUNDS)
    candidates = new = first[None]
    near = _Nearest(problem)
    for step in range(ROUNDS):
        problem.task.show(doing=f"drawing the first centres by k-means||: pass {step + 1} of {ROUNDS + 1}")
        problem.task.check()
        new = near.draw(new, len(candidates) - len(new), int(key[step]), _DRAWN * n_clusters)
        candidates = np.concatenate([candidates, new])
        if not len(new):  # all rows are at candidates
            break
    if len(new):
        problem.task.show(doing=f"drawing the first centres by k-means||: pass {ROUNDS + 1} of {ROUNDS + 1}")
        near.draw(new, len(candidates) - len(new), 0, 0)
    mine = np.bincount(near.numbers, problem.weights, len(candidates)).astype(np.float64)
    weights = problem.comm.allreduce(mine)
    chosen = problem.comm.bcast(_plusplus(candidates.astype(np.float64), weights, n_clusters, random))
    return candidates[chosen]


def sampled_start(problem: Problem, drawn: np.ndarray, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Choose centres by greedy k-means++ among drawn rows, less the shift: (n_clusters, n_features).

    `drawn` are the indices of the rows among all rows. One pass gathers them.
    """
    problem.task.show(doing=f"drawing the first centres from {len(drawn):,} rows")
    some = problem.take(drawn)
    chosen = problem.comm.bcast(_plusplus(some.astype(np.float64), np.ones(len(some)), n_clusters, random))
    return some[chosen]


class _Nearest:
    """For each row of this rank its nearest candidate, and the squared distance to it.

    Attributes
    ----------
    numbers : numpy.ndarray of int32 of shape (n_own,)
        The numbers of the nearest candidates.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        n = problem.rows.n_samples
        self.numbers = np.zeros(n, np.int32)
        self._distances = np.full(n, np.inf, problem.rows.dtype)
        self._labels: dict[Rows, Any] = {}

    def draw(self, new: np.ndarray, before: int, key: int, n_drawn: int) -> np.ndarray:
        """Compare all rows with new candidates, in one pass, and draw rows by their distances to all candidates.

        Parameters
        ----------
        new : numpy.ndarray of shape (n_new, n_features)
            The new candidates, less the shift.
        before : int
            Number of candidates before these.
        key : int
            For the random numbers, which depend on it and on the number of the row only.
        n_drawn : int
            Number of rows to draw.

        Returns
        -------
        numpy.ndarray of shape (at most n_drawn, n_features)
            Equal on all ranks.
        """
        problem, best = self._problem, np.inf
        n, d = problem.rows.n_samples, problem.rows.n_features
        times, rows = np.empty(0), np.empty((0, d), problem.rows.dtype)
        assert not isinstance(problem.rows, SparseRows)
        arrivals = _exponential(key, problem.first, n if n_drawn else 0)
        for begin, part in parts_of(problem.rows):
            here = slice(begin, begin + part.n_samples)
            self._compare(part, here, new, before)
            if not n_drawn:
                continue
            chances = self._distances[here].astype(np.float64)
            if problem.weights is not None:
                chances = chances * problem.weights[here]
            with np.errstate(divide="ignore"):
                soon = np.where(chances > 0, arrivals[here] / chances, np.inf)
            picked = np.flatnonzero(soon < best)
            times = np.concatenate([times, soon[picked]])
            rows = np.concatenate([rows, dense.take(part, picked, problem.shift)])
            if len(times) > n_drawn:
                first = np.argpartition(times, n_drawn - 1)[:n_drawn]
                times, rows = times[first], rows[first]
                best = times.max()
        found = np.full((n_drawn, d + 1), np.inf)
        found[: len(times), 0], found[: len(times), 1:] = times, rows
        every = problem.comm.allgather_arrays(found.ravel()).reshape(-1, d + 1)
        order = np.argsort(every[:, 0], kind="stable")[:n_drawn]
        chosen = every[order[np.isfinite(every[order, 0])], 1:]
        return chosen.astype(problem.rows.dtype)

    def _compare(self, part: Rows, here: slice, new: np.ndarray, before: int) -> None:
        if not part.n_samples:
            return
        labels = self._labels.get(part)
        if labels is None:
            labels = self._labels[part] = dense.new_labels(part.device, part.n_samples)
        dense.assign(part, self._problem.shift, new, labels, again=False)
        found = dense.own_distances(part, self._problem.shift, new, labels)
        closer = found < self._distances[here]
        self._distances[here][closer] = found[closer]
        self.numbers[here][closer] = before + dense.labels_on_cpu(labels, part.n_samples)[closer]


def _exponential(key: int, first: int, n: int) -> np.ndarray:
    """Return exponential random numbers of `n` rows from row `first` on, which do not depend on how rows are cut."""
    counter = np.random.Philox(key=key).advance(first // 4)  # which gives four numbers at a time
    uniforms = np.random.Generator(counter).random(first % 4 + n)[first % 4 :]
    found: np.ndarray = -np.log1p(-uniforms)
    return found


def _plusplus(points: np.ndarray, weights: np.ndarray, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Choose points by greedy k-means++ with weights, as scikit-learn does; return their numbers."""
    trials = 2 + int(np.log(n_clusters))
    chosen, sums = np.empty(n_clusters, np.int64), np.cumsum(weights)
    chosen[0] = index_reaching(sums, random.random_sample() * sums[-1])
    nearest = np.square(points - points[chosen[0]]).sum(axis=1)
    for c in range(1, n_clusters):
        uniforms, sums = random.random_sample(trials), np.cumsum(weights * nearest)
        if not sums[-1] > 0:  # all points are chosen
            chosen[c] = chosen[0]
            continue
        picked = index_reaching(sums, uniforms * sums[-1])
        tried = [np.minimum(nearest, np.square(points - points[each]).sum(axis=1)) for each in picked]
        best = int(np.argmin([(weights * each).sum() for each in tried]))
        chosen[c], nearest = picked[best], tried[best]
    return chosen
