"""The first centres of k-means for rows that are read in each pass: k-means|| takes a few passes, not one a centre.

References
----------
.. [1] B. Bahmani, B. Moseley, A. Vattani, R. Kumar, S. Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012), 622-633.
.. [2] P. S. Efraimidis, P. G. Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97
   (2006), 181-185: the rows with the smallest of exponential numbers, each divided by the row's weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.kernels.kmeans import dense
from xpulab.kernels.kmeans.plusplus import index_reaching
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import parts_of

__all__ = ["ROUNDS", "Chosen", "sampled_start", "scalable_start"]

#: Passes in which rows are drawn. One more pass counts the rows near each of them.
ROUNDS = 5

_DRAWN = 2  # rows that a pass draws, per centre


class Chosen(NamedTuple):
    """A choice of first centres that has not ended: the centres so far, less the shift, and their inertia.

    The rows that passes of k-means|| have drawn are in their order; `drawn` says how many each pass has drawn. A choice
    by k-means++ has none.
    """

    centers: np.ndarray
    inertia: float
    drawn: tuple[int, ...] = ()


def scalable_start(
    problem: Problem,
    begun: Chosen,
    n_clusters: int,
    random: np.random.RandomState,
    keep: Callable[[Chosen], None],
) -> np.ndarray:
    """Draw centres by k-means|| [1]_, less the shift: (n_clusters, n_features).

    Each pass draws rows by their squared distance to those drawn before, as many in every pass [2]_. The centres are
    then chosen from the drawn rows by greedy k-means++, with the weight of the rows that are nearest to each.

    Parameters
    ----------
    problem : Problem
        Whose rows are dense.
    begun : Chosen
        The first row alone, or an earlier choice of the same rows, with which this one goes on.
    n_clusters : int
    random : numpy.random.RandomState
        For an earlier choice, what it was after the first row had been drawn.
    keep : callable
        Called after each pass with the rows with which it has compared all rows. A choice that goes on from these
        repeats this pass.
    """
    key = random.randint(np.iinfo(np.int32).max, size=ROUNDS)
    every = new = np.split(begun.centers, np.cumsum(begun.drawn)[:-1])
    near = _Nearest(problem)
    for step in range(len(every) - 1, ROUNDS):
        problem.task.show(doing=f"drawing the first centres by k-means||: pass {step + 1} of {ROUNDS + 1}")
        problem.task.check()
        drawn, inertia = near.draw(new, int(key[step]), _DRAWN * n_clusters)
        keep(Chosen(np.concatenate(every), inertia, tuple(len(each) for each in every)))
        if not len(drawn):  # all rows are at candidates
            break
        new = [drawn]
        every = every + new
    else:
        problem.task.show(doing=f"drawing the first centres by k-means||: pass {ROUNDS + 1} of {ROUNDS + 1}")
        near.draw(new, 0, 0)
    candidates = np.concatenate(every)
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
        self._compared = 0  # candidates
        self._distances = np.full(n, np.inf, problem.rows.dtype)
        self._labels: dict[Rows, Any] = {}

    def draw(self, new: list[np.ndarray], key: int, n_drawn: int) -> tuple[np.ndarray, float]:
        """Compare all rows with new candidates, in one pass, and draw rows by their distances to all candidates.

        Parameters
        ----------
        new : list of numpy.ndarray of shape (n_new, n_features)
            The new candidates of one or more passes, less the shift.
        key : int
            For the random numbers, which depend on it and on the number of the row only.
        n_drawn : int
            Number of rows to draw.

        Returns
        -------
        drawn : numpy.ndarray of shape (at most n_drawn, n_features)
            Equal on all ranks.
        inertia : float
            That of all candidates but the drawn ones. Without rows to draw, it is not computed, and 0.
        """
        problem, best, inertia = self._problem, np.inf, 0.0
        n, d = problem.rows.n_samples, problem.rows.n_features
        times, rows = np.empty(0), np.empty((0, d), problem.rows.dtype)
        assert not isinstance(problem.rows, SparseRows)
        arrivals = _exponential(key, problem.first, n if n_drawn else 0)
        for begin, part in parts_of(problem.rows):
            here = slice(begin, begin + part.n_samples)
            self._compare(part, here, new)
            if not n_drawn:
                continue
            chances = self._distances[here].astype(np.float64)
            if problem.weights is not None:
                chances = chances * problem.weights[here]
            inertia += chances.sum()
            with np.errstate(divide="ignore"):
                soon = np.where(chances > 0, arrivals[here] / chances, np.inf)
            picked = np.flatnonzero(soon < best)
            times = np.concatenate([times, soon[picked]])
            rows = np.concatenate([rows, dense.take(part, picked, problem.shift)])
            if len(times) > n_drawn:
                first = np.argpartition(times, n_drawn - 1)[:n_drawn]
                times, rows = times[first], rows[first]
                best = times.max()
        self._compared += sum(len(each) for each in new)
        if not n_drawn:
            return rows, inertia
        found = np.full((n_drawn, d + 1), np.inf)
        found[: len(times), 0], found[: len(times), 1:] = times, rows
        every = problem.comm.allgather_arrays(found.ravel()).reshape(-1, d + 1)
        order = np.argsort(every[:, 0], kind="stable")[:n_drawn]
        chosen = every[order[np.isfinite(every[order, 0])], 1:]
        return chosen.astype(problem.rows.dtype), float(problem.comm.allreduce(np.array([inertia]))[0])

    def _compare(self, part: Rows, here: slice, new: list[np.ndarray]) -> None:
        if not part.n_samples:
            return
        labels = self._labels.get(part)
        if labels is None:
            labels = self._labels[part] = dense.new_labels(part.device, part.n_samples)
        before = self._compared
        for some in new:  # as they were drawn: the same bits for a choice that goes on
            dense.assign(part, self._problem.shift, some, labels, again=False)
            found = dense.own_distances(part, self._problem.shift, some, labels)
            closer = found < self._distances[here]
            self._distances[here][closer] = found[closer]
            self.numbers[here][closer] = before + dense.labels_on_cpu(labels, part.n_samples)[closer]
            before += len(some)


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
