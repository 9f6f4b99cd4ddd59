"""k-means over the ranks: Lloyd's algorithm and its starts, written against a communicator and a device.

Each rank holds a block of rows. What steers the loop (convergence, empty clusters, the picks of a start, the request to
stop) comes from reductions only, so that every rank takes the same turn; with one rank the same code runs alone.

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
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.tuning import tune
from xpulab.engine.dataset import held_open, kind_of, pieces, rows_of, weights_of, write_block
from xpulab.engine.engine import Engine, Interrupted, Task, task, warms_up
from xpulab.kernels import dense
from xpulab.kernels.choice import AnyRows, kernels_for
from xpulab.kernels.host import count_positive, finish, move_centers
from xpulab.kernels.launch import build_together
from xpulab.kernels.plusplus import place_of
from xpulab.kernels.rows import BLOCK, Rows
from xpulab.kernels.tiles import size_class
from xpulab.sharing.board import RUNS
from xpulab.sharing.checkpoint import Checkpoint

__all__ = ["Outcome", "Problem", "Turn", "fit", "inertia", "iterate", "start"]

_SHOWN = 2e-3  # seconds between two updates of the board, which no view reads more often
_TOLD = 0.05  # seconds between two states that are described in words
#: Seconds between two states that are kept. After the loss of an engine a fit repeats the iterations since then.
_KEEP = 0.05

#: Values that are kept of the best run; its labels are computed again from them.
_KEPT = ("centers", "inertia", "n_iter", "emptied", "ending")


@dataclass
class Outcome:
    """One run of Lloyd's algorithm; `labels` stay on the device, everything else is the same on all ranks."""

    centers: np.ndarray
    labels: Any
    inertia: float
    n_iter: int
    run: int = 0  # number of the run in the history; 0 for an outcome of no run
    ending: str = ""  # why it ended before the last iteration
    emptied: bool = False  # in its last iteration, as in `Turn`


@dataclass
class Turn:
    """One iteration: the new centres, the inertia before they move, and the values that decide what comes next."""

    centers: np.ndarray
    inertia: float
    center_shift: float
    emptied: bool  # a cluster had no row of positive weight, so that its centre went elsewhere than to a mean
    changed: bool
    cancelled: bool
    may_tune: bool  # some rank has computed long enough to measure a tile


class Problem:
    """The rows of all ranks as one data set.

    Parameters
    ----------
    task : Task
    rows : Rows or SparseRows
        This rank's block.
    bounds : list of int
        Rank r holds the rows from bounds[r] to bounds[r + 1].
    weights : numpy.ndarray or None
        This rank's sample weights on the host, None for ones.

    Attributes
    ----------
    kernels : module
        `xpulab.kernels.dense` or `xpulab.kernels.sparse`.
    mean : numpy.ndarray of float64 of shape (n_features,)
        Of all rows.
    shift : numpy.ndarray of shape (n_features,)
        What is subtracted from each row: the mean, as scikit-learn does for precision, and zero for sparse rows.
    tuning : tuple of (int, float)
        Tiles tried in this fit, and the seconds that took.
    may_tune : bool
        Whether this rank has computed long enough to measure a tile.
    """

    def __init__(self, task: Task, rows: AnyRows, bounds: list[int], weights: np.ndarray | None) -> None:
        self.task = task
        self.comm = task.comm
        self.rows = rows
        self.bounds = bounds
        self.weights = weights
        self.first = bounds[self.comm.rank]
        self.n_samples = bounds[-1]
        self.kernels = kernels_for(rows)
        # The request to stop comes along, as everywhere: drivers may have finished kernels until now.
        sums = self.comm.allreduce(np.append(self.kernels.column_sums(rows), task.cancelled()))
        if sums[-1]:
            raise Interrupted
        self.mean = sums[:-1] / self.n_samples
        self.shift = self.kernels.shift_for(rows, self.mean)
        self.tuning = (0, 0.0)
        self.may_tune = False
        self._untuned = True  # until it is known that all tiles are measured
        self._begin()

    def resume(self, task: Task) -> None:
        """Go on in another task: the rows are the same, the communicator and the clock are not."""
        self.task, self.comm = task, task.comm
        self._begin()

    def _begin(self) -> None:
        self.history: list[tuple[int, int, float, float, float]] = []
        self._lengths = self.task.engine.record["lengths"]
        self._started = time.perf_counter()
        self._shown = 0.0

    @functools.cached_property
    def squares(self) -> np.ndarray:
        """Sum over all rows, weights aside, of the squared distance to the mean, by column: (n_features,)."""
        return self.comm.allreduce(self.kernels.column_sums(self.rows, self.mean, squared=True))

    @functools.cached_property
    def total_squares(self) -> float:
        """Weighted sum of the rows' squared norms: the inertia of one centre at the shift."""
        if self.weights is None:
            away = np.square(self.mean - self.shift).sum()
            return float(self.squares.sum() + self.n_samples * away)
        labels = self.kernels.new_labels(self.task.device, self.rows.n_samples)
        origin = np.zeros((1, self.rows.n_features), self.rows.dtype)
        self.kernels.assign(self.rows, self.shift, origin, labels, again=False)
        return float(self.comm.allreduce(np.array([self.kernels.inertia(self.rows, self.shift, origin, labels)]))[0])

    def tolerance(self, tol: float) -> float:
        """The bound on the centres' squared movement: `tol` times the mean variance of the columns."""
        return float(tol * np.mean(self.squares / self.n_samples)) if tol else 0.0

    def tune(self, centers: np.ndarray) -> None:
        """Measure tiles, on all ranks together."""
        self.task.show(doing="measuring which tile is the fastest")
        tried, seconds = tune(self.task, self.rows, self.shift, centers)
        self.tuning = (self.tuning[0] + tried, self.tuning[1] + seconds)
        self.may_tune = False

    def computed(self, n_clusters: int, seconds: float) -> None:
        """Count seconds of computing, of which some may be spent on measuring tiles that are not measured yet."""
        tuner, rows = self.task.engine.tuner, self.rows
        if isinstance(rows, Rows) and rows.n_samples >= BLOCK:
            enough = tuner.computed(size_class(rows.dtype, rows.n_features, n_clusters), seconds)
            if enough and self._untuned:
                self.may_tune = self._untuned = bool(tuner.missing(rows.dtype, rows.n_features, n_clusters))

    def take(self, index: np.ndarray) -> np.ndarray:
        """Rows by their place in the whole data set, centred, on every rank: shape (len(index), n_features)."""
        mine = (index >= self.first) & (index < self.first + self.rows.n_samples)
        found = np.zeros((len(index), self.rows.n_features), self.rows.dtype)
        if mine.any():
            found[mine] = self.kernels.take(self.rows, index[mine] - self.first, self.shift)
        # Exactly one rank has each row, and the other ranks add zeros: the sum is exact.
        return self.comm.allreduce(found)

    def note(self, run: int, iteration: int, inertia: float, center_shift: float) -> None:
        """Keep and show where the run is."""
        now = time.perf_counter()
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
    """The best of `n_init` runs, as scikit-learn chooses it.

    Parameters
    ----------
    init : {"k-means++", "random"} or list of numpy.ndarray
        Uncentred centres, one array a run, if a list.
    resume : dict, optional
        A state that `keep` got in a fit of the same rows with the same parameters: this one goes on from there.
    keep : callable, optional
        Called now and then with where the fit stands: ``run`` and ``iteration`` (how many have ended), the run's
        ``centers``, less the ``shift``, and ``inertia``, the ``best`` run before it, and ``random``, the generator's
        state.

    Raises
    ------
    Interrupted
        On all ranks together, with the last complete outcome, and its ``state``.
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
            centers = (init[run] - problem.shift).astype(problem.rows.dtype)
        if run == first and problem.task.engine.tuner.mode == "all":
            problem.tune(centers)
        state = {
            "run": run,
            "best": best and {name: getattr(best, name) for name in _KEPT},
            "random": random.get_state(),
        }
        outcome = _lloyd(problem, centers, max_iter, tolerance, state, going_on["iteration"] if going_on else 0, keep)
        outcome.labels.trim()
        better = best is None or outcome.inertia < best.inertia
        if better and not (best is not None and _same_clustering(problem, outcome.labels, best.labels, n_clusters)):
            best = outcome
    assert best is not None
    return best


def _labelled(problem: Problem, best: dict[str, Any] | None) -> Outcome | None:
    """The best run of a fit that is resumed."""
    if best is None:
        return None
    labels = problem.kernels.new_labels(problem.task.device, problem.rows.n_samples)
    _assign_last(problem, best["centers"], labels, best["emptied"])
    return Outcome(labels=labels, **best)


def _assign_last(problem: Problem, centers: np.ndarray, labels: Any, emptied: bool) -> None:
    """The labels that a run ends with.

    Centres of clusters that were empty may stand where others do, to rounding, and all rows there are at a tie. They
    get the labels that `predict` gives them, which has the uncentred rows and centres.
    """
    rows, assign = problem.rows, problem.kernels.assign
    if emptied:
        assign(rows, np.zeros_like(problem.shift), centers + problem.shift, labels, again=False)
    else:
        assign(rows, problem.shift, centers, labels)


class _Stopped(Interrupted):
    """A fit that was stopped after an iteration. Its labels stay on the device until the task asks for them."""

    def __init__(self, result: dict[str, Any], centers: np.ndarray, labels: Any, emptied: bool) -> None:
        super().__init__(result)
        self.centers, self.labels, self.emptied = centers, labels, emptied


def _lloyd(
    problem: Problem,
    centers: np.ndarray,
    max_iter: int,
    tolerance: float,
    state: dict[str, Any],
    done: int = 0,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> Outcome:
    """Lloyd's iterations from given centres, of which `done` have been made."""
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
        }
        if turn.cancelled:
            found = {"centers": centers + problem.shift, "inertia": turn.inertia, "n_iter": iteration + 1}
            raise _Stopped({**found, "state": now}, centers, labels, turn.emptied)
        if not turn.changed:
            ending = f"Converged at iteration {iteration}: strict convergence."
            strict = True
            break
        if turn.center_shift <= tolerance:
            ending = (
                f"Converged at iteration {iteration}: center shift {turn.center_shift} within tolerance {tolerance}."
            )
            break
        if time.perf_counter() - kept > _KEEP:
            keep(now)
            kept = time.perf_counter()
        before = now
        if turn.may_tune:
            problem.tune(centers)
    if before is not None:
        keep(before)  # an interrupt may come while the next run is begun, and this one ends again from here
    if emptied or not strict:
        _assign_last(problem, centers, labels, emptied)
    reached = inertia(problem, centers, labels)
    return Outcome(centers, labels, reached, iteration + 1, state["run"] + 1, ending, emptied)


def iterate(problem: Problem, centers: np.ndarray, labels: Any) -> Turn:
    """Run one iteration: label each row with its nearest centre, then move the centres to the means of their rows."""
    k, d = centers.shape
    sums, weights, changes = problem.kernels.lloyd_step(problem.rows, problem.shift, centers, labels)
    _clear_absent(problem, labels, sums, weights)
    # One reduction an iteration carries everything: sums, weights, changes, the request to stop, the time to tune.
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
    """Of all rows, from the differences to their own centres."""
    mine = problem.kernels.inertia(problem.rows, problem.shift, centers, labels)
    return float(problem.comm.allreduce(np.array([mine]))[0])


def start(problem: Problem, init: str, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Centres to begin with, in the shifted frame: "k-means++" or "random"."""
    return _starts[init](problem, n_clusters, random)


def _clear_absent(problem: Problem, labels: Any, sums: np.ndarray, weights: np.ndarray) -> None:
    """Exact zeros for clusters in which this rank has no row of positive weight.

    The kernel takes rows out of the sums as they leave; with weights that are not whole numbers a rounding error stays,
    and an empty cluster would not look empty.
    """
    if problem.weights is not None:
        host = problem.kernels.labels_to_host(labels, problem.rows.n_samples)
        absent = count_positive(host, problem.weights, len(weights)) == 0
        sums[absent] = weights[absent] = 0


def _relocate(problem: Problem, centers: np.ndarray, labels: Any, sums: np.ndarray, weights: np.ndarray) -> None:
    """Give each empty cluster the row farthest from its centre, out of the row's own; changes `sums` and `weights`.

    Rare, so that gathering one distance a row is worth the same choice as scikit-learn's, ties included. It differs in
    what scikit-learn's sums leave to rounding. A row at its centre is not far, and a cluster that has given all its
    rows away weighs nothing: in scikit-learn's sums something may be left of it, by which its centre is anywhere.
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
    """How many rows of positive weight each cluster has, over all ranks."""
    if problem.weights is None:
        mine = np.bincount(labels, minlength=n_clusters)
    else:
        mine = count_positive(labels, problem.weights, n_clusters)
    return problem.comm.allreduce(mine.astype(np.int64))


def _same_clustering(problem: Problem, labels: Any, best: Any, n_clusters: int) -> bool:
    """Whether each cluster of `labels` lies within one cluster of `best`."""
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
    """Rows for uniform numbers, with a chance in proportion to their weights, `taken` ones aside: NumPy's `choice`."""
    if problem.weights is None:  # the running sum of the weights is the number of rows that are left
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
        # A target that rounding has taken beyond the last sum belongs to the last row that has a weight.
        picks[mine] = problem.first + np.minimum(found, np.searchsorted(sums, sums[-1]))
    return problem.comm.allreduce(picks)


def _random_start(problem: Problem, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Distinct rows by weight, with the same draws as ``RandomState.choice(n, k, replace=False, p=weights)``."""
    chosen = np.empty(0, np.int64)
    while len(chosen) < n_clusters:
        picks = _draw(problem, random.random_sample(n_clusters - len(chosen)), chosen)
        _, first = np.unique(picks, return_index=True)
        chosen = np.concatenate([chosen, picks[np.sort(first)]])
    return problem.take(chosen)


def _plusplus_start(problem: Problem, n_clusters: int, random: np.random.RandomState) -> np.ndarray:
    """Greedy k-means++ [2]_: each centre is the best of a few rows, drawn by squared distance to the centres so far.

    A rank keeps its rows' distances; the draws are searched in the ranks' partial sums, so that no rank holds all rows.
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
        if offsets[-1] == 0:  # no row is left that is elsewhere than a centre
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
    """The rows at which the running sum of the potential reaches the targets."""
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
    # Held from here on: the notebook may end before the fit does.
    with Checkpoint.open(checkpoint) as kept, held_open(target) as target:
        try:
            keep = kept.write if task.comm.rank == 0 else lambda state: None
            best = fit(problem, random=generator, keep=keep, **parameters)
        except Interrupted as interrupted:
            if isinstance(interrupted, _Stopped):
                task.device.while_compiling = lambda: None  # the labels may need a kernel that no iteration needed
                _assign_last(problem, interrupted.centers, interrupted.labels, interrupted.emptied)
                write_block(task, target, bounds, _parts(rows, interrupted.labels))
            interrupted.result["history"] = problem.history
            raise
        used = np.zeros(len(best.centers), np.int64)
        for labels in _parts(rows, best.labels):
            used[labels] = 1
        write_block(task, target, bounds, _parts(rows, best.labels))
    return {
        "centers": best.centers + problem.shift,
        "inertia": best.inertia,
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


def _parts(rows: AnyRows, labels: Any) -> Iterator[np.ndarray]:
    """The labels, some at a time."""
    return (kernels_for(rows).labels_to_host(labels, last, first) for first, last in pieces(rows.n_samples, 4))


@task("KMeans.predict")
def _kmeans_predict(
    task: Task,
    source: dict[str, Any],
    weights: dict[str, Any] | None,
    target: dict[str, Any] | None,
    centers: np.ndarray,
) -> dict[str, Any]:
    """The labels if the task names a place for them, else the inertia."""
    rows = rows_of(task, source, weights_of(task, weights, source["bounds"]))
    shift = np.zeros(rows.n_features, rows.dtype)
    kernels = kernels_for(rows)
    tile = task.show_tile(rows, len(centers))
    labels = kernels.new_labels(task.device, rows.n_samples)
    kernels.assign(rows, shift, centers, labels, again=False)
    if target is not None:
        write_block(task, target, source["bounds"], _parts(rows, labels))
        return {"rows": rows.n_samples, "tile": tile}
    inertia = kernels.inertia(rows, shift, centers, labels)
    return {"inertia": float(task.comm.allreduce(np.array([inertia]))[0]), "rows": rows.n_samples, "tile": tile}


@task("KMeans.transform")
def _kmeans_transform(
    task: Task, source: dict[str, Any], weights: None, target: dict[str, Any], centers: np.ndarray
) -> dict[str, Any]:
    rows = rows_of(task, source)
    write_block(task, target, source["bounds"], kernels_for(rows).transform(rows, centers))
    return {"rows": rows.n_samples}
