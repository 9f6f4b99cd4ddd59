"""k-means on all ranks: Lloyd's algorithm and its initialisations, for any communicator and device.

Each rank has a block of rows. All values that control the loop (convergence, empty clusters, the draws of an
initialisation, the request to stop) are results of reductions, so that all ranks take the same decisions. The same code
works with one rank.

References
----------
.. [1] S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28 (1982), 129-137.
.. [2] D. Arthur, S. Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, 1027-1035.
.. [3] scikit-learn's ``sklearn/cluster/_kmeans.py``: what is computed, and the order of random draws, follow it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.ranges import largest_of, ordinary, unit_of
from xpulab.engine.algorithms.clustering.tuning import tune
from xpulab.engine.dataset import held_open, kind_of, pieces, rows_of, weights_of, write_block
from xpulab.engine.engine import Engine, Interrupted, Task, task, warms_up
from xpulab.kernels.kmeans import dense
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.kmeans.plusplus import place_of
from xpulab.kernels.kmeans.tiles import size_class
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.on_cpu.host import count_positive, finish, move_centers
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.launch import build_together
from xpulab.sharing.board import RUNS

__all__ = ["Outcome", "Problem", "Turn", "fit", "inertia", "iterate", "lloyd", "parts", "start"]

_SOME = 32  # rows of a rank that are looked at
_SHOWN = 2e-3  # seconds between two updates of the board; no view reads it more often
_TOLD = 0.05  # seconds between two updates of the description of the present work
#: Seconds between two checkpoints. After the loss of an engine, a fit repeats the iterations since the last one.
_KEEP = 0.05

#: Values of the best run in a checkpoint. The labels are computed again from these.
_KEPT = ("centers", "inertia", "n_iter", "emptied", "ending")


@dataclass
class Outcome:
    """The result of a run of Lloyd's algorithm. `labels` are on the device; all other values are equal on all ranks."""

    centers: np.ndarray
    labels: Any
    inertia: float
    n_iter: int
    run: int = 0  # number of the run in the history; 0 if the outcome is of no run
    ending: str = ""  # why the run ended before the last iteration
    emptied: bool = False  # `Turn.emptied` of the last iteration


@dataclass
class Turn:
    """The result of one iteration: the new centres, the inertia of the old ones, and values that control the loop."""

    centers: np.ndarray
    inertia: float
    center_shift: float
    emptied: bool  # a cluster had no row of positive weight, so its new centre is not a mean of rows
    changed: bool
    cancelled: bool
    may_tune: bool  # a rank has computed long enough to measure launch parameters


class Problem:
    """The rows of all ranks as one data set.

    Parameters
    ----------
    task : Task
    rows : Rows or SparseRows
        This rank's block of rows.
    bounds : list of int
        Rank r has the rows from bounds[r] up to, not including, bounds[r + 1].
    weights : numpy.ndarray or None
        This rank's sample weights on the host; None if all are 1.
    unit : float or None
        None to divide rows by the `unit` that squares of their differences need; otherwise that of these rows.

    Attributes
    ----------
    rows : Rows or SparseRows
        This rank's rows, divided by `unit`.
    unit : float
        A power of two; 1 for ordinary rows. Means, shift, centres and squares are those of the divided rows.
    kernels : module
        `xpulab.kernels.kmeans.dense` or `xpulab.kernels.kmeans.sparse`.
    mean : numpy.ndarray of float64 of shape (n_features,)
        Mean of all rows.
    shift : numpy.ndarray of shape (n_features,)
        Subtracted from each row. It is the mean, as in scikit-learn, for precision; for sparse rows it is zero.
    tuning : tuple of (int, float)
        Number of launch parameters (tiles) measured in this fit, and the seconds that this took.
    may_tune : bool
        Whether this rank has computed long enough to measure launch parameters.
    """

    def __init__(
        self,
        task: Task,
        rows: AnyRows,
        bounds: list[int],
        weights: np.ndarray | None,
        unit: float | None = None,
    ) -> None:
        self.task = task
        self.comm = task.comm
        self.bounds = bounds
        self.weights = weights
        self.first = bounds[self.comm.rank]
        self.n_samples = bounds[-1]
        self.kernels = kernels_for(rows)
        self.rows, self.unit, self.mean = rows, unit or 1.0, np.zeros(rows.n_features)
        size = self._sum(rows)
        # Rows that are far larger than those that were looked at have a large mean.
        if unit is None and not (ordinary(size, rows.dtype) and np.abs(self.mean).max() < largest_of(rows.dtype)):
            self.unit = unit_of(task, rows)
            self.rows = self.kernels.divided(rows, self.unit)
            self._sum(self.rows)
        self.shift = self.kernels.shift_for(rows, self.mean)
        self.tuning = (0, 0.0)
        self.may_tune = False
        self._untuned = True  # whether tiles may be left to measure
        self._begin()

    def _sum(self, rows: AnyRows) -> float:
        """Compute the mean of all rows; return a number that is about as large as those in a few of them."""
        some = np.linspace(0, rows.n_samples - 1, min(_SOME, rows.n_samples), dtype=np.int64)
        size = float(np.abs(self.kernels.take(rows, some)).max(initial=0.0))
        # This reduction also carries the request to stop, because the driver may have spent seconds on kernels before.
        sums = self.comm.allreduce(np.append(self.kernels.column_sums(rows), [size, self.task.cancelled()]))
        if sums[-1]:
            raise Interrupted
        self.mean = sums[:-2] / self.n_samples
        return float(sums[-2])

    def outward(self, centers: np.ndarray) -> np.ndarray:
        """Return centres, from which nothing was subtracted, of the rows as they were given."""
        return centers if self.unit == 1 else centers * self.unit

    def resume(self, task: Task) -> None:
        """Continue in another task, which has the same rows, but another communicator and another clock."""
        self.task, self.comm = task, task.comm
        self._begin()

    def _begin(self) -> None:
        self.history: list[tuple[int, int, float, float, float]] = []
        self._lengths = self.task.engine.record["lengths"]
        self._started = time.perf_counter()
        self._shown = 0.0

    @functools.cached_property
    def squares(self) -> np.ndarray:
        """Sums over all rows, without weights, of squared differences from the mean, by column: (n_features,)."""
        return self.comm.allreduce(self.kernels.column_sums(self.rows, self.mean, squared=True))

    @functools.cached_property
    def total_squares(self) -> float:
        """Weighted sum of the squared norms of the rows less the shift: the inertia of one centre at the shift."""
        if self.weights is None:
            away = np.square(self.mean - self.shift).sum()
            return float(self.squares.sum() + self.n_samples * away)
        labels = self.kernels.new_labels(self.task.device, self.rows.n_samples)
        origin = np.zeros((1, self.rows.n_features), self.rows.dtype)
        self.kernels.assign(self.rows, self.shift, origin, labels, again=False)
        return float(self.comm.allreduce(np.array([self.kernels.inertia(self.rows, self.shift, origin, labels)]))[0])

    def tolerance(self, tol: float) -> float:
        """Return the bound on the squared movement of the centres: `tol` times the mean variance of the columns."""
        return float(tol * np.mean(self.squares / self.n_samples)) if tol else 0.0

    def tune(self, centers: np.ndarray) -> None:
        """Measure launch parameters, on all ranks together."""
        self.task.show(doing="measuring which tile is the fastest")
        tried, seconds = tune(self.task, self.rows, self.shift, centers)
        self.tuning = (self.tuning[0] + tried, self.tuning[1] + seconds)
        self.may_tune = False

    def computed(self, n_clusters: int, seconds: float) -> None:
        """Count seconds of computing. A share of them may be spent on measuring launch parameters."""
        tuner, rows = self.task.engine.tuner, self.rows
        if isinstance(rows, Rows) and rows.n_samples >= BLOCK:
            enough = tuner.computed(size_class(rows.dtype, rows.n_features, n_clusters), seconds)
            if enough and self._untuned:
                self.may_tune = self._untuned = bool(tuner.missing(rows.dtype, rows.n_features, n_clusters))

    def take(self, index: np.ndarray) -> np.ndarray:
        """Return, on every rank, the rows with these indices among all rows, less the shift: (n, n_features)."""
        mine = (index >= self.first) & (index < self.first + self.rows.n_samples)
        found = np.zeros((len(index), self.rows.n_features), self.rows.dtype)
        if mine.any():
            found[mine] = self.kernels.take(self.rows, index[mine] - self.first, self.shift)
        # Exactly one rank has each row, and the other ranks add zeros, so the sum is exact.
        return self.comm.allreduce(found)

    def subset(self, places: np.ndarray) -> Problem:
        """Return the problem of some of the rows, which continues the history of this one.

        `places` are the indices (n,), int64, of these rows in this rank's block, in ascending order.
        """
        counts = self.comm.allgather_arrays(np.array([len(places)]))[:, 0]
        weights = None if self.weights is None else np.ascontiguousarray(self.weights[places])
        rows = self.kernels.subset(self.rows, places)
        part = Problem(self.task, rows, [0, *np.cumsum(counts).tolist()], weights, self.unit)
        part.history, part._started, part._shown = self.history, self._started, self._shown
        return part

    def note(self, run: int, iteration: int, inertia: float, center_shift: float) -> None:
        """Add an iteration to the history, and show it on the board."""
        now = time.perf_counter()
        inertia, center_shift = inertia * self.unit * self.unit, center_shift * self.unit * self.unit
        self.history.append((run, iteration, inertia, center_shift, now - self._started))
        self._lengths[(run - 1) % RUNS] = iteration
        if iteration == 1 or now - self._shown > _SHOWN:
            self._shown = now
            self.task.show(run=run, iteration=iteration, metrics=(inertia, center_shift))


def fit(
    problem: Problem,
    init: str | list[np.ndarray],
    n_clusters: int,
    n_init: int,
    max_iter: int,
    tol: float,
    random: np.random.RandomState,
    resume: dict[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> Outcome:
    """Run k-means `n_init` times, and choose the best run as scikit-learn does.

    Parameters
    ----------
    problem : Problem
    init : {"k-means++", "random"} or list of numpy.ndarray of shape (n_clusters, n_features)
        A list has the initial centres of each run, without the shift subtracted.
    n_clusters, n_init, max_iter : int
        Number of clusters, number of runs, and largest number of iterations of a run.
    tol : float
        Relative tolerance, as in scikit-learn.
    random : numpy.random.RandomState
    resume : dict, optional
        A state that `keep` got in a fit of the same rows with the same parameters. This fit continues from the state.
    keep : callable, optional
        Called from time to time with the state of the fit: ``run`` and ``iteration`` (the numbers of runs and
        iterations that have ended), ``centers`` of the run, less the ``shift``, its ``inertia``, the ``best`` run
        before it, and ``random``, the state of the generator.

    Returns
    -------
    Outcome

    Raises
    ------
    Interrupted
        On all ranks together, if the task was asked to stop, with the last complete outcome and its ``state``.
    """
    tolerance = problem.tolerance(tol)
    best: Outcome | None = None
    first = 0
    if resume:
        first, best = resume["run"], _labelled(problem, resume["best"])
        random.set_state(resume["random"])
    for run in range(first, n_init):
        going_on = resume if run == first else None
        if going_on:
            centers = going_on["centers"]
        elif isinstance(init, str):
            centers = start(problem, init, n_clusters, random)
        else:
            centers = (init[run] / problem.unit - problem.shift).astype(problem.rows.dtype)
        if run == first and problem.task.engine.tuner.mode == "all":
            problem.tune(centers)
        state = {
            "run": run,
            "best": best and {name: getattr(best, name) for name in _KEPT},
            "random": random.get_state(),
        }
        outcome = lloyd(problem, centers, max_iter, tolerance, state, going_on["iteration"] if going_on else 0, keep)
        outcome.labels.trim()
        better = best is None or outcome.inertia < best.inertia
        if better and not (best is not None and _same_clustering(problem, outcome.labels, best.labels, n_clusters)):
            best = outcome
    assert best is not None
    return best


def _labelled(problem: Problem, best: dict[str, Any] | None) -> Outcome | None:
    """Return the best run of a resumed fit, with labels."""
    if best is None:
        return None
    labels = problem.kernels.new_labels(problem.task.device, problem.rows.n_samples)
    _assign_last(problem, best["centers"], labels, best["emptied"])
    return Outcome(labels=labels, **best)


def _assign_last(problem: Problem, centers: np.ndarray, labels: Any, emptied: bool) -> None:
    """Compute the labels at the end of a run.

    The centre of a cluster that was empty may equal another centre, up to rounding, and then all rows near them are
    equally close to both. These rows get the labels of `predict`, which uses rows and centres without the shift.
    """
    rows, assign = problem.rows, problem.kernels.assign
    if emptied:
        assign(rows, np.zeros_like(problem.shift), centers + problem.shift, labels, again=False)
    else:
        assign(rows, problem.shift, centers, labels)


class _Stopped(Interrupted):
    """A fit was stopped after an iteration. Its labels stay on the device until the task asks for them."""

    def __init__(self, result: dict[str, Any], centers: np.ndarray, labels: Any, emptied: bool) -> None:
        super().__init__(result)
        self.centers, self.labels, self.emptied = centers, labels, emptied


def lloyd(
    problem: Problem,
    centers: np.ndarray,
    max_iter: int,
    tolerance: float,
    state: dict[str, Any],
    done: int = 0,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> Outcome:
    """Run Lloyd's iterations from given centres.

    Parameters
    ----------
    problem : Problem
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, less the shift.
    max_iter : int
        Largest number of iterations.
    tolerance : float
        The run ends once the centres have moved by at most this, squared and summed.
    state : dict
        The number of the ``run``, and what else `keep` gets.
    done : int
        Iterations of this run that were done before.
    keep : callable
        As for `fit`.

    Returns
    -------
    Outcome

    Raises
    ------
    Interrupted
        As `fit`.
    """
    labels = problem.kernels.new_labels(problem.task.device, problem.rows.n_samples)
    ending = ""
    strict = emptied = False
    before = None
    iteration = done - 1
    kept = time.perf_counter()
    for iteration in range(done, max_iter):
        began = time.perf_counter()
        turn = iterate(problem, centers, labels)
        problem.computed(len(centers), time.perf_counter() - began)
        problem.note(state["run"] + 1, iteration + 1, turn.inertia, turn.center_shift)
        centers, emptied = turn.centers, turn.emptied
        now = {
            **state,
            "iteration": iteration + 1,
            "centers": centers,
            "inertia": turn.inertia,
            "shift": problem.shift,
            "unit": problem.unit,
        }
        if turn.cancelled:
            found = {
                "centers": problem.outward(centers + problem.shift),
                "inertia": turn.inertia * problem.unit * problem.unit,
                "n_iter": iteration + 1,
            }
            raise _Stopped({**found, "state": now}, centers, labels, turn.emptied)
        if not turn.changed:
            ending = f"Converged at iteration {iteration}: strict convergence."
            strict = True
            break
        if turn.center_shift <= tolerance:
            moved, most = (each * problem.unit * problem.unit for each in (turn.center_shift, tolerance))
            ending = f"Converged at iteration {iteration}: center shift {moved} within tolerance {most}."
            break
        if time.perf_counter() - kept > _KEEP:
            keep(now)
            kept = time.perf_counter()
        before = now
        if turn.may_tune:
            problem.tune(centers)
    if before is not None:
        keep(before)  # if the next initialisation is interrupted, the fit is resumed at the end of this run
    if emptied or not strict:
        _assign_last(problem, centers, labels, emptied)
    reached = inertia(problem, centers, labels)
    return Outcome(centers, labels, reached, iteration + 1, state["run"] + 1, ending, emptied)


def iterate(problem: Problem, centers: np.ndarray, labels: Any) -> Turn:
    """Run one iteration: label each row with its nearest centre, then move the centres to the means of their rows."""
    k, d = centers.shape
    sums, weights, changes = problem.kernels.lloyd_step(problem.rows, problem.shift, centers, labels)
    _clear_absent(problem, labels, sums, weights)
    # Each iteration has a single reduction: sums, weights, changed labels, the request to stop, and whether to tune.
    mine = np.empty(k * (d + 1) + 3)
    table = mine[:-3].reshape(k, d + 1)
    table[:, :d], table[:, d] = sums, weights
    mine[-3:] = changes, problem.task.cancelled(), problem.may_tune
    every = problem.comm.allreduce(mine)
    totals, moved = every[:-3].reshape(k, d + 1), np.empty_like(centers)
    before, center_shift = finish(problem.total_squares, totals, centers, moved)
    emptied = center_shift < 0
    if emptied:
        _relocate(problem, centers, labels, totals[:, :d], totals[:, d])
        center_shift = move_centers(totals, centers, moved)
    return Turn(moved, before, center_shift, emptied, *(bool(each) for each in every[-3:]))


def inertia(problem: Problem, centers: np.ndarray, labels: Any) -> float:
    """Compute the inertia of all rows, from the differences between the rows and the centres of their clusters."""
    mine = problem.kernels.inertia(problem.rows, problem.shift, centers, labels)
    return float(problem.comm.allreduce(np.array([mine]))[0])


def start(problem: Problem, init: str, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Return initial centres, less the shift, of shape (n_clusters, n_features). `init` is "k-means++" or "random"."""
    return _starts[init](problem, n_clusters, random)


def _clear_absent(problem: Problem, labels: Any, sums: np.ndarray, weights: np.ndarray) -> None:
    """Set the sums and weights of clusters in which this rank has no row of positive weight to zero.

    The kernel subtracts rows that leave a cluster from its sums. With weights that are not whole numbers this leaves a
    rounding error, with which an empty cluster would not appear to be empty.
    """
    if problem.weights is not None:
        host = problem.kernels.labels_to_host(labels, problem.rows.n_samples)
        absent = count_positive(host, problem.weights, len(weights)) == 0
        sums[absent] = weights[absent] = 0


def _relocate(problem: Problem, centers: np.ndarray, labels: Any, sums: np.ndarray, weights: np.ndarray) -> None:
    """Move to each empty cluster the row that is farthest from its own centre; changes `sums` and `weights`.

    The function gathers the distances of all rows on one rank, so that it chooses the same rows as scikit-learn, also
    if distances are equal. It is called rarely. It differs from scikit-learn in two cases, which in scikit-learn depend
    on rounding: a row at its own centre is not moved, and a cluster whose rows have all been moved has the weight zero.
    """
    comm, rows = problem.comm, problem.rows
    empty = np.flatnonzero(weights == 0)
    own = problem.kernels.labels_to_host(labels, rows.n_samples)
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


def _same_clustering(problem: Problem, labels: Any, best: Any, n_clusters: int) -> bool:
    """Return whether each cluster of `labels` lies within one cluster of `best`."""
    n = problem.rows.n_samples
    ours, theirs = problem.kernels.labels_to_host(labels, n), problem.kernels.labels_to_host(best, n)
    low = np.full(n_clusters, n_clusters)
    high = np.full(n_clusters, -1)
    np.minimum.at(low, ours, theirs)
    np.maximum.at(high, ours, theirs)
    low = problem.comm.allreduce(low, np.minimum)
    high = problem.comm.allreduce(high, np.maximum)
    return bool(((low == high) | (high == -1)).all())


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
    """Draw centres by greedy k-means++ [2]_: each is the best of a few rows, drawn by squared distance to the others.

    Each rank keeps the distances of its rows. A draw is first located in the sums of the ranks, and then in the
    distances of one rank, so that no rank needs the distances of all rows.
    """
    comm, rows = problem.comm, problem.rows
    trials = 2 + int(np.log(n_clusters))
    centers = np.empty((n_clusters, rows.n_features), rows.dtype)
    centers[0] = problem.take(_draw(problem, random.random_sample(1), np.empty(0, np.int64)))[0]
    state, potential = problem.kernels.start(rows, problem.shift, centers[0])
    offsets = comm.exclusive_sums(potential)
    shown = 0.0
    for c in range(1, n_clusters):
        if time.perf_counter() - shown > _TOLD:
            shown = time.perf_counter()
            problem.task.show(doing=f"choosing the first centres: {c} of {n_clusters}")
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
    owners = place_of(offsets[1:], targets)
    found = np.zeros((len(targets), rows.n_features), rows.dtype)
    for i in np.flatnonzero(owners == comm.rank):
        index = problem.kernels.search(state, float(targets[i] - offsets[comm.rank]))
        found[i] = problem.kernels.take(rows, np.array([index]), problem.shift)[0]
    return comm.allreduce(found)


_starts = {"k-means++": _plusplus_start, "random": _random_start}


@warms_up
def _warm_up(engine: Engine) -> None:
    """Have the device's driver finish the kernels of a first fit of dense rows."""
    block = np.zeros((2, 2), np.float32)
    rows = Rows.upload(engine.device, block)
    dense.lloyd_step(rows, np.zeros(2, np.float32), block, dense.new_labels(engine.device, 2))


@task("KMeans.fit", metrics=("inertia", "center_shift"))
def _kmeans_fit(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    target: dict[str, Any],
    random: Any,
    checkpoint: str,
    **parameters: Any,
) -> dict[str, Any]:
    kernels, dtype, n_features = kind_of(task, source)
    first = kernels.first_kernels(
        task.device, dtype, n_features, parameters["n_clusters"], parameters["init"] == "k-means++", weights is not None
    )
    task.show(doing="finishing kernels for the device")
    build_together(task.device, first, task.comm.rank)
    bounds = source["bounds"]
    sample_weight = weights_of(task, weights, bounds)
    rows = rows_of(task, source, sample_weight)
    problem = Problem(task, rows, bounds, sample_weight)
    generator = np.random.RandomState()
    generator.set_state(random)
    # Keep the shared memory open, because the notebook may end before the fit does.
    with task.checkpoint(checkpoint) if task.comm.rank == 0 else nullcontext() as kept, held_open(target) as target:
        try:
            keep = kept.write if kept is not None else lambda state: None
            best = fit(problem, random=generator, keep=keep, **parameters)
        except Interrupted as interrupted:
            if isinstance(interrupted, _Stopped):
                task.device.while_compiling = lambda: None  # the labels may need one more kernel
                _assign_last(problem, interrupted.centers, interrupted.labels, interrupted.emptied)
                write_block(task, target, bounds, parts(problem.rows, interrupted.labels))
            interrupted.result["history"] = problem.history
            raise
        used = np.zeros(len(best.centers), np.int64)
        for labels in parts(rows, best.labels):
            used[labels] = 1
        write_block(task, target, bounds, parts(rows, best.labels))
    return {
        "centers": problem.outward(best.centers + problem.shift),
        "inertia": best.inertia * problem.unit * problem.unit,
        "n_iter": best.n_iter,
        "distinct": int(np.count_nonzero(task.comm.allreduce(used))),
        "history": problem.history,
        "run": best.run,
        "ending": best.ending,
        "converged": best.ending != "",
        "random": generator.get_state(),
        "rows": rows.n_samples,
        "tile": task.show_tile(rows, len(best.centers)),
        "tuning": problem.tuning,
    }


def parts(rows: AnyRows, labels: Any) -> Iterator[np.ndarray]:
    """Yield the labels on the host, a part at a time."""
    return (kernels_for(rows).labels_to_host(labels, last, first) for first, last in pieces(rows.n_samples, 4))


def _in_range(task: Task, rows: AnyRows, centers: np.ndarray) -> tuple[AnyRows, np.ndarray, float]:
    """Return rows and centres divided by a power of two, and this; it is 1 unless the centres are large or small."""
    largest = float(np.abs(centers).max())
    unit = 1.0 if ordinary(largest, centers.dtype) or not largest else unit_of(task, rows, largest)
    return kernels_for(rows).divided(rows, unit), centers / centers.dtype.type(unit), unit


@task("KMeans.predict")
def _kmeans_predict(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    target: dict[str, Any] | None,
    centers: np.ndarray,
) -> dict[str, Any]:
    """Compute the labels if `target` is given; otherwise the inertia."""
    rows, centers, unit = _in_range(task, rows_of(task, source, weights_of(task, weights, source["bounds"])), centers)
    shift = np.zeros(rows.n_features, rows.dtype)
    kernels = kernels_for(rows)
    tile = task.show_tile(rows, len(centers))
    labels = kernels.new_labels(task.device, rows.n_samples)
    kernels.assign(rows, shift, centers, labels, again=False)
    if target is not None:
        write_block(task, target, source["bounds"], parts(rows, labels))
        return {"rows": rows.n_samples, "tile": tile}
    inertia = kernels.inertia(rows, shift, centers, labels)
    every = float(task.comm.allreduce(np.array([inertia]))[0]) * unit * unit
    return {"inertia": every, "rows": rows.n_samples, "tile": tile}


@task("KMeans.transform")
def _kmeans_transform(
    task: Task, source: dict[str, Any], weights: None, target: dict[str, Any], centers: np.ndarray
) -> dict[str, Any]:
    rows, centers, unit = _in_range(task, rows_of(task, source), centers)
    made = kernels_for(rows).transform(rows, centers)
    write_block(task, target, source["bounds"], made if unit == 1 else (part * rows.dtype.type(unit) for part in made))
    return {"rows": rows.n_samples}
