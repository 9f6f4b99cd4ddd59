"""k-means on all ranks: Lloyd's algorithm, for any communicator and device.

Each rank has a block of rows. All values that control the loop (convergence, empty clusters, the draws of an
initialisation, the request to stop) are results of reductions, so that all ranks take the same decisions. The same code
works with one rank.

References
----------
.. [1] S. P. Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28 (1982), 129-137.
.. [2] scikit-learn's ``sklearn/cluster/_kmeans.py``: what is computed follows it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.comparing import parts
from xpulab.engine.algorithms.clustering.emptied import clear_absent, relocate
from xpulab.engine.algorithms.clustering.gathered import Fitted, on_rank_0
from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.clustering.scalable import ROUNDS
from xpulab.engine.algorithms.clustering.starts import State, start_of_run
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import PassedRows, kind_of, rows_of, weights_of, write_block
from xpulab.engine.engine import Engine, Task, warms_up
from xpulab.engine.hosts.helper import SentCheckpoint
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import dense, few
from xpulab.kernels.kmeans.choice import AnyRows
from xpulab.kernels.on_cpu.host import finish, move_centers
from xpulab.kernels.rows import Rows, are_few
from xpulab.kernels.runtime.launch import build_together
from xpulab.sharing.checkpoint import Checkpoint
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["Iteration", "Outcome", "fit", "inertia", "iterate", "lloyd"]

#: Seconds between two checkpoints. After the loss of an engine, a fit repeats the iterations since the last one.
_KEEP = 0.05

#: What the report says of initial centres that are those of k-means++ only for rows that the devices keep.
_BY_PASSES = (
    f"the initial centres were drawn by k-means|| in {ROUNDS + 1} passes, because not all rows fit into the engines' "
    "memory"
)
_BY_SAMPLE = (
    "the initial centres were drawn by k-means++ from {:,} rows (init_size), because not all rows fit into the "
    "engines' memory"
)

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
    emptied: bool = False  # `Iteration.emptied` of the last iteration


@dataclass
class Iteration:
    """The result of one iteration, or of several: the new centres, and values that control the loop."""

    centers: np.ndarray
    course: list[tuple[float, float]]  # of each iteration: the inertia of the old centres, and their squared movement
    emptied: bool  # a cluster had no row of positive weight, so its new centre is not a mean of rows
    changed: bool
    cancelled: bool
    may_tune: bool  # a rank has computed long enough to measure launch shapes

    @property
    def inertia(self) -> float:
        """The inertia of the centres before the last iteration."""
        return self.course[-1][0]

    @property
    def center_shift(self) -> float:
        """The squared movement of the centres in the last iteration."""
        return self.course[-1][1]


def fit(
    problem: Problem,
    init: str | list[np.ndarray],
    n_clusters: int,
    n_init: int,
    max_iter: int,
    tol: float,
    random: np.random.RandomState,
    resume: State | None = None,
    keep: Callable[[State], None] = lambda state: None,
    init_size: int | None = None,
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
        before it, and ``random``, the state of the generator. While the first centres of a run are chosen, it has
        what `Chosen` has, and ``random`` is the state before the choice.
    init_size : int, optional
        As for `start`.

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
        state = {"run": run, "best": best and {name: getattr(best, name) for name in _KEPT}}
        if going_on and "drawn" not in going_on:
            centers = going_on["centers"]
        elif isinstance(init, str):
            centers = start_of_run(problem, init, n_clusters, random, init_size, state, going_on, keep)
        else:
            centers = (init[run] / problem.unit - problem.shift).astype(problem.rows.dtype)
        if run == first and problem.task.engine.tuner.mode == "all" and not problem.in_passes:
            problem.tune(centers)
        done = going_on["iteration"] if going_on else 0
        if run + 1 == n_init:
            problem.expect_passes(max_iter - done + 2)
        try:  # the generator's state is copied only for a state that is kept: it takes as long as an iteration may
            outcome = lloyd(
                problem, centers, max_iter, tolerance, state, done,
                lambda now: keep({**now, "random": random.get_state()}),
            )  # fmt: skip
        except _Stopped as stopped:
            stopped.state["random"] = random.get_state()
            raise
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

    def __init__(
        self, result: dict[str, object], state: dict[str, object], centers: np.ndarray, labels: Any, emptied: bool
    ) -> None:
        super().__init__(result)
        self.state = state  # that of the result
        self.centers, self.labels, self.emptied = centers, labels, emptied


def lloyd(
    problem: Problem,
    centers: np.ndarray,
    max_iter: int,
    tolerance: float,
    state: State,
    done: int = 0,
    keep: Callable[[State], None] = lambda state: None,
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
    whole = problem.few(len(centers))
    while done < max_iter:
        began = time.perf_counter()
        if whole is not None:
            found = _iterate_often(problem, whole, centers, labels, max_iter - done, tolerance)
        else:
            found = iterate(problem, centers, labels)
        problem.computed(len(centers), time.perf_counter() - began)
        problem.note_several(state["run"] + 1, done, found.course, began)
        centers, emptied = found.centers, found.emptied
        done += len(found.course)
        now = {
            **state,
            "iteration": done,
            "centers": centers,
            "inertia": found.inertia,
            "shift": problem.shift,
            "unit": problem.unit,
        }
        if found.cancelled:
            result = {
                "centers": problem.outward(centers + problem.shift),
                "inertia": found.inertia * problem.unit * problem.unit,
                "n_iter": done,
            }
            raise _Stopped({**result, "state": now}, now, centers, labels, found.emptied)
        if not found.changed:
            ending = f"Converged at iteration {done - 1}: strict convergence."
            strict = True
            break
        if found.center_shift <= tolerance:
            moved, most = (each * problem.unit * problem.unit for each in (found.center_shift, tolerance))
            ending = f"Converged at iteration {done - 1}: center shift {moved} within tolerance {most}."
            break
        if time.perf_counter() - problem.kept > _KEEP:
            keep(now)
            problem.kept = time.perf_counter()
        before = now
        if found.may_tune:
            keep(now)  # an interrupt ends the measuring, which knows nothing of the fit
            problem.tune(centers)
    if before is not None and whole is None:
        keep(before)  # if the next initialisation is interrupted, the fit is resumed at the end of this run
    if emptied or not strict:
        _assign_last(problem, centers, labels, emptied)
    reached = inertia(problem, centers, labels)
    return Outcome(centers, labels, reached, done, state["run"] + 1, ending, emptied)


def iterate(problem: Problem, centers: np.ndarray, labels: Any) -> Iteration:
    """Run one iteration: label each row with its nearest centre, then move the centres to the means of their rows."""
    k, d = centers.shape
    sums, weights, changes = problem.kernels.lloyd_step(problem.rows, problem.shift, centers, labels)
    clear_absent(problem, labels, sums, weights)
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
        relocate(problem, centers, labels, totals[:, :d], totals[:, d])
        center_shift = move_centers(totals, centers, moved)
    return Iteration(moved, [(before, center_shift)], emptied, *(bool(each) for each in every[-3:]))


def _iterate_often(
    problem: Problem, rows: Rows, centers: np.ndarray, labels: Any, most: int, tolerance: float
) -> Iteration:
    """Run iterations over rows that are few, up to the last one of the run, or for a millisecond."""
    if problem.task.cancelled():
        most = 1
    centers, totals, course, changed = few.iterations(
        rows, problem.shift, centers, labels, problem.total_squares, most, tolerance
    )
    moved, passed = centers, list(zip(*course.T.tolist(), strict=True))
    emptied = passed[-1][1] < 0
    if emptied:
        moved = np.empty_like(centers)
        relocate(problem, centers, labels, totals[:, :-1], totals[:, -1])
        passed[-1] = passed[-1][0], move_centers(totals, centers, moved)
    return Iteration(moved, passed, emptied, changed > 0, problem.task.cancelled(), may_tune=False)


def inertia(problem: Problem, centers: np.ndarray, labels: Any) -> float:
    """Compute the inertia of all rows, from the differences between the rows and the centres of their clusters."""
    mine = problem.kernels.inertia(problem.rows, problem.shift, centers, labels)
    return float(problem.comm.allreduce(np.array([mine]))[0])


def _same_clustering(problem: Problem, labels: Any, best: Any, n_clusters: int) -> bool:
    """Return whether each cluster of `labels` lies within one cluster of `best`."""
    low = np.full(n_clusters, n_clusters)
    high = np.full(n_clusters, -1)
    for ours, theirs in zip(parts(problem.rows, labels), parts(problem.rows, best), strict=True):
        np.minimum.at(low, ours, theirs)
        np.maximum.at(high, ours, theirs)
    low = problem.comm.allreduce(low, np.minimum)
    high = problem.comm.allreduce(high, np.maximum)
    return bool(((low == high) | (high == -1)).all())


@functools.cache
def _generator() -> np.random.RandomState:
    """Return the generator of all fits, because a new one takes 60 µs to draw the state that a fit replaces."""
    return np.random.RandomState()


@warms_up
def _warm_up(engine: Engine) -> None:
    """Have the device's driver finish the kernels of a first fit of dense rows."""
    block = np.zeros((2, 2), np.float32)
    rows = Rows.upload(engine.device, block)
    dense.lloyd_step(rows, np.zeros(2, np.float32), block, dense.new_labels(engine.device, 2))


@task("KMeans.fit", metrics=("inertia", "center_shift"))
def _kmeans_fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    target: Target,
    random: Any,
    checkpoint: str,
    **parameters: Any,
) -> dict[str, Any]:
    kernels, dtype, n_features = kind_of(task, source)
    bounds, k = source.bounds, parameters["n_clusters"]
    together = kernels is dense and are_few(bounds[-1], n_features, k) and task.engine.tuner.mode != "all"
    if not together:
        first = kernels.first_kernels(
            task.device, dtype, n_features, k, parameters["init"] == "k-means++", weights is not None
        )
        task.show(doing="finishing kernels for the device")
        build_together(task.device, first, task.comm.rank)
    sample_weight = weights_of(task, weights, bounds)
    rows = rows_of(task, source, sample_weight)

    def fitted(rows: AnyRows, bounds: list[int], sample_weight: np.ndarray | None) -> Fitted:
        with task.checkpoint(checkpoint) if task.comm.rank == 0 else nullcontext() as kept:
            return _fitted(task, rows, bounds, sample_weight, random, kept, **parameters)

    # Keep the shared memory open, because the notebook may end before the fit does.
    with target.held_open() as target:
        if together and isinstance(rows, Rows):
            result, labels, stopped = on_rank_0(task, rows, bounds, sample_weight, fitted)
        else:
            result, labels, stopped = fitted(rows, bounds, sample_weight)
        write_block(task, target, bounds, labels)
    if stopped:
        raise Interrupted(result)
    return {**result, "rows": rows.n_samples, "launch_shape": task.show_launch_shape(rows, k)}


def _fitted(
    task: Task,
    rows: AnyRows,
    bounds: list[int],
    weights: np.ndarray | None,
    random: Any,
    kept: Checkpoint | SentCheckpoint | None,
    **parameters: Any,
) -> Fitted:
    """Fit the rows of all ranks of the communicator; return the result, the labels on the host, and if it was stopped.

    `random` is the state of a generator, and `parameters` are those of `fit`.
    """
    problem: Problem | None = None
    generator = _generator()
    generator.set_state(random)
    try:
        problem = Problem(task, rows, bounds, weights)
        keep = kept.write if kept is not None else lambda state: None
        best = fit(problem, random=generator, keep=keep, **parameters)
    except Interrupted as interrupted:
        labels: list[np.ndarray] = []
        if problem is not None:
            interrupted.result["history"] = problem.history
        if isinstance(interrupted, _Stopped) and problem is not None:
            task.device.while_compiling = lambda: None  # the labels may need one more kernel
            _assign_last(problem, interrupted.centers, interrupted.labels, interrupted.emptied)
            labels = list(parts(problem.rows, interrupted.labels))
        return interrupted.result, labels, True
    used = np.zeros(len(best.centers), np.int64)
    for part in parts(rows, best.labels):
        used[part] = 1
    result = {
        "centers": problem.outward(best.centers + problem.shift),
        "n_iter": best.n_iter,
        "distinct": int(np.count_nonzero(task.comm.allreduce(used))),
        "history": problem.history,
        "final": {"inertia": best.inertia * problem.unit * problem.unit},
        "run": best.run,
        "ending": best.ending,
        "converged": best.ending != "",
        "random": generator.get_state(),
        "tuning": problem.tuning,
        "notes": _notes(parameters) if problem.in_passes else [],
    }
    return result, parts(rows, best.labels), False


def _notes(parameters: Mapping[str, Any]) -> list[str]:
    """Return what the report says of the start by k-means++ of rows that are not all kept."""
    if not isinstance(parameters["init"], str) or parameters["init"] != "k-means++":
        return []
    size = parameters.get("init_size")
    return [_BY_PASSES if size is None else _BY_SAMPLE.format(max(size, parameters["n_clusters"]))]
