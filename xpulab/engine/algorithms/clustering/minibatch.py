"""k-means on small batches of the rows, on all ranks.

All ranks draw the same rows, and each rank labels those that it has. One reduction adds the sums, weights and inertia
of a batch. The rest of a step is done on every rank alike, with the numbers of all ranks.

References
----------
.. [1] D. Sculley, "Web-scale k-means clustering", WWW 2010, 1177-1178.
.. [2] scikit-learn's ``sklearn/cluster/_kmeans.py`` and ``_k_means_minibatch.pyx``: the order of random draws, the
   reassignment of centres and the end of the loop follow them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.batches import DrawnBatches, Draws
from xpulab.engine.algorithms.clustering.comparing import parts
from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.encoding import chosen_of
from xpulab.engine.comm import Interrupted
from xpulab.engine.dataset import Data, PassedRows, kind_of, rows_of, weights_of, write_block
from xpulab.engine.engine import ArrivedRows, Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.kmeans.sparse_gather import on_cpu, picked
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.kernels.runtime.launch import build_together
from xpulab.sharing.sources import BlockRows, SharedArray, Source, Target

__all__ = ["Options", "State", "Total", "fit", "update"]

_KEEP = 0.05  # seconds between two checkpoints
_DETAILED = 2000  # steps that are all in the history; of later steps there are fewer, so that it does not grow too long


@dataclass
class State:
    """The state of a fit between two steps; the same on all ranks."""

    centers: np.ndarray  # (n_clusters, n_features), float64
    counts: np.ndarray  # weights of the rows so far by centre (n_clusters,), in the dtype of the rows
    random: Any  # state of the generator
    iteration: int = 0  # steps that have ended
    since: int = 0  # rows since the last step that could reassign centres
    average: float | None = None  # weighted average of the mean inertia of the batches
    least: float | None = None
    stale: int = 0  # steps without a lower average
    run: int = 0  # there is one run

    def outward(self, problem: Problem) -> dict[str, Any]:
        """Return the fields, those of distances as of the rows as they were given."""
        if problem.unit == 1:
            return asdict(self)
        return asdict(self._times(problem.unit))

    @classmethod
    def inward(cls, fields: dict[str, Any], problem: Problem) -> State:
        """Return the state of `outward` again."""
        found = cls(**fields)
        return found if problem.unit == 1 else found._times(1 / problem.unit)

    def _times(self, unit: float) -> State:
        average, least = (each if each is None else each * unit * unit for each in (self.average, self.least))
        return replace(self, centers=self.centers * unit, average=average, least=least)


@dataclass(frozen=True)
class Options:
    """Parameters of a fit, as scikit-learn names them; `tol` is the absolute tolerance."""

    n_steps: int
    batch_size: int
    reassignment_ratio: float
    max_no_improvement: int | None
    tol: float
    verbose: int


@dataclass(frozen=True)
class Total:
    """The sums of one batch over all ranks, with rows and centres less the shift."""

    sums: np.ndarray  # (n_clusters, n_features)
    weights: np.ndarray  # (n_clusters,)
    inertia: float
    cancelled: bool

    @classmethod
    def of(cls, problem: Problem, found: tuple[np.ndarray, np.ndarray, float]) -> Total:
        """Add the results of `fresh_step` of all ranks, with the request to stop, in one reduction."""
        sums, weights, inertia = found
        k, d = sums.shape
        mine = np.empty(k * (d + 1) + 2)
        mine[: k * d].reshape(k, d)[:] = sums
        mine[k * d : -2] = weights
        mine[-2:] = inertia, problem.task.cancelled()
        every = problem.comm.allreduce(mine)
        return cls(every[: k * d].reshape(k, d), every[k * d : -2], float(every[-2]), bool(every[-1]))


def update(problem: Problem, state: State, total: Total) -> np.ndarray:
    """Return the centres after a batch; changes the counts of `state`."""
    some = total.weights > 0
    before = state.counts.astype(np.float64)[:, None]
    state.counts[some] += total.weights[some].astype(state.counts.dtype)
    shift = problem.shift.astype(np.float64)
    sums = total.sums + total.weights[:, None] * shift
    centers = state.centers.copy()
    centers[some] = (centers[some] * before[some] + sums[some]) / state.counts[some, None].astype(np.float64)
    return centers


def low_counts(counts: np.ndarray, ratio: float, n_rows: int) -> np.ndarray:
    """Return which centres get new places: those with few rows, but at most half as many as the batch has rows."""
    low: np.ndarray = counts < ratio * counts.max()
    if low.sum() > 0.5 * n_rows:
        low[np.argsort(counts)[int(0.5 * n_rows) :]] = False
    return low


def reassign(
    problem: Problem,
    state: State,
    centers: np.ndarray,
    ratio: float,
    random: np.random.RandomState,
    n_rows: int,
    rows: AnyRows,
    mine: np.ndarray,
    places: np.ndarray,
) -> int:
    """Move centres with low counts to rows of the batch, and return how many; changes `centers` and the counts.

    The batch has `n_rows` rows. This rank has those with the numbers `mine`, in ascending order, at `places` of `rows`.
    """
    low = low_counts(state.counts, ratio, n_rows)
    count = int(low.sum())
    if count:
        chosen = random.choice(n_rows, replace=False, size=count)
        found = np.zeros((count, centers.shape[1]))
        at = np.searchsorted(mine, chosen)
        here = np.flatnonzero(mine[np.minimum(at, len(mine) - 1)] == chosen) if len(mine) else np.empty(0, np.int64)
        if len(here):
            found[here] = kernels_for(rows).take(rows, places[at[here]])
        centers[low] = problem.comm.allreduce(found)
    # As in scikit-learn, the counts change even if no centre moves, and not to values so low that they move again.
    state.counts[low] = np.min(state.counts[~low])
    return count


def fit(
    problem: Problem,
    state: State,
    options: Options,
    draws: Draws,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> list[str]:
    """Run steps until the inertia does not fall any more, or the centres stay where they are.

    Parameters
    ----------
    problem : Problem
    state : State
        Changed in place.
    options : Options
    draws : Draws
    keep : callable, optional
        Called from time to time with the fields of the state.

    Returns
    -------
    list of str
        What scikit-learn prints, if `verbose` is set.

    Raises
    ------
    Interrupted
        On all ranks together, if the task was asked to stop, with the ``state`` after the last step.
    """
    random = np.random.RandomState()
    random.set_state(state.random)
    size = options.batch_size
    batches = DrawnBatches(problem, draws, size)
    said: list[str] = []
    kept = time.perf_counter()
    ended = False
    while state.iteration < options.n_steps and not ended:
        mine, places = batches.draw(random, options.n_steps - state.iteration)
        total = Total.of(problem, _labelled(problem, state.centers, batches, places))
        state.since += size
        may_reassign = bool((state.counts == 0).any()) or state.since >= 10 * len(state.counts)
        centers = update(problem, state, total)
        if may_reassign:
            state.since = 0
            if options.reassignment_ratio > 0:
                other = batches.generator(random)
                ratio = options.reassignment_ratio
                count = reassign(problem, state, centers, ratio, other, size, batches.rows, mine, places)
                if count and options.verbose:
                    said.append(f"[MiniBatchKMeans] Reassigning {count} cluster centers.")
        moved = float(np.sum((centers - state.centers) ** 2)) if options.tol > 0 else 0.0
        state.centers = centers
        ended = _ended(state, options, problem.n_samples, total.inertia / options.batch_size, moved, said)
        last = ended or total.cancelled or state.iteration == options.n_steps
        if last or state.iteration % (1 + state.iteration // _DETAILED) == 0:
            average = math.nan if state.average is None else state.average
            problem.note(1, state.iteration, total.inertia / options.batch_size, average)
        if total.cancelled or time.perf_counter() - kept > _KEEP:
            state.random = random.get_state()
            keep(state.outward(problem))
            kept = time.perf_counter()
        if total.cancelled and not ended:
            raise Interrupted({"state": state.outward(problem)})
    state.random = random.get_state()
    return said


def _labelled(
    problem: Problem, centers: np.ndarray, batches: DrawnBatches, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Label this rank's rows of a batch, and return their sums, weights and inertia."""
    k, d = centers.shape
    if not len(places):
        return np.zeros((k, d)), np.zeros(k), 0.0
    rows, labels = batches.take(places)
    found: tuple[np.ndarray, np.ndarray, float] = kernels_for(rows).fresh_step(
        rows, problem.shift, _shifted(problem, centers), labels
    )
    return found


def _shifted(problem: Problem, centers: np.ndarray) -> np.ndarray:
    return (centers - problem.shift).astype(problem.rows.dtype)


def _ended(state: State, options: Options, n_samples: int, inertia: float, moved: float, said: list[str]) -> bool:
    """Count a step, and return whether the loop ends. `inertia` is the mean of the batch, `moved` is squared."""
    state.iteration += 1
    step = f"{state.iteration}/{options.n_steps}"
    tell = said.append if options.verbose else lambda line: None
    if state.iteration == 1:  # its inertia is that of the initial centres
        tell(f"Minibatch step {step}: mean batch inertia: {inertia}")
        return False
    if state.average is None:
        state.average = inertia
    else:
        alpha = min(options.batch_size * 2.0 / (n_samples + 1), 1)
        state.average = state.average * (1 - alpha) + inertia * alpha
    tell(f"Minibatch step {step}: mean batch inertia: {inertia}, ewa inertia: {state.average}")
    if options.tol > 0 and moved <= options.tol:
        tell(f"Converged (small centers change) at step {step}")
        return True
    if state.least is None or state.average < state.least:
        state.stale, state.least = 0, state.average
    else:
        state.stale += 1
    if options.max_no_improvement is not None and state.stale >= options.max_no_improvement:
        tell(f"Converged (lack of improvement in inertia) at step {step}")
        return True
    return False


def _labels(problem: Problem, centers: np.ndarray) -> tuple[Any, float]:
    """Label all rows with their nearest centre, as `predict` does; return the labels and the inertia."""
    origin = np.zeros_like(problem.shift)
    labels = problem.kernels.new_labels(problem.task.device, problem.rows.n_samples)
    problem.kernels.assign(problem.rows, origin, centers, labels, again=False)
    mine = problem.kernels.inertia(problem.rows, origin, centers, labels)
    return labels, float(problem.comm.allreduce(np.array([mine]))[0]) * problem.unit * problem.unit


def _inward(problem: Problem, centers: np.ndarray) -> np.ndarray:
    """Return the centres of rank 0, in the units of the problem."""
    return problem.task.comm.bcast(centers).astype(np.float64) / problem.unit


def _problem(task: Task, source: Source, weights: SharedArray | PassedRows | None, n_clusters: int) -> Problem:
    """Read the rows, after the driver has finished the first kernels."""
    kernels, dtype, n_features = kind_of(task, source)
    task.show(doing="finishing kernels for the device")
    build_together(
        task.device, kernels.first_kernels(task.device, dtype, n_features, n_clusters, False, True), task.comm.rank
    )
    sample_weight = weights_of(task, weights, source.bounds)
    return Problem(task, rows_of(task, source, sample_weight), source.bounds, sample_weight)


@task("MiniBatchKMeans.rows")
def _rows(task: Task, source: Source, weights: SharedArray | PassedRows | None, chosen: np.ndarray) -> dict[str, Any]:
    """Return some rows of a handle or of files, with their weights, in the order of their indices `chosen`."""
    of_files = isinstance(source, BlockRows | ArrivedRows)  # the latter on hosts that do not have the files
    if of_files:
        distinct, places = np.unique(chosen, return_inverse=True)
        rows: AnyRows = Rows.upload(task.device, chosen_of(task, Data(task, source), distinct))
    else:
        rows = rows_of(task, source)
    sample_weight = weights_of(task, weights, source.bounds)
    first = source.bounds[task.comm.rank]
    mine = (chosen >= first) & (chosen < source.bounds[task.comm.rank + 1])
    own = chosen[mine] - first
    some = np.ones(len(chosen), rows.dtype) if weights is None else np.zeros(len(chosen), rows.dtype)
    if sample_weight is not None:
        some[mine] = sample_weight[own]
    if of_files:
        own = places[mine] - np.searchsorted(distinct, first)
    # Exactly one rank has each row, and the other ranks add zeros, so the sums are exact.
    summed = some if weights is None else task.comm.allreduce(some)
    if isinstance(rows, SparseRows):
        return {"chosen": _picked_of_all(task, rows, mine, own), "weights": summed}
    found = np.zeros((len(chosen), rows.n_features), rows.dtype)
    if mine.any():
        found[mine] = kernels_for(rows).take(rows, own)
    return {"chosen": task.comm.allreduce(found), "weights": summed}


def _picked_of_all(task: Task, rows: SparseRows, mine: np.ndarray, places: np.ndarray) -> tuple[Any, tuple[int, int]]:
    """Return chosen sparse rows of all ranks, in their order, as arguments of SciPy's `csr_matrix`.

    `mine` says which of them this rank has, `places` where.
    """
    every = task.comm.allgather((np.flatnonzero(mine), *picked(on_cpu(rows), places)))
    order = np.argsort(np.concatenate([numbers for numbers, *_ in every]))
    lengths = np.concatenate([np.diff(ends) for *_, ends in every])
    values, columns = (np.concatenate([each[part] for each in every]) for part in (1, 2))
    whole = picked((values, columns, np.concatenate([[0], np.cumsum(lengths)])), order)
    return whole, (len(mine), rows.n_features)


@task("MiniBatchKMeans.fit", metrics=("batch_inertia", "average"))
def _fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    checkpoint: str,
    centers: np.ndarray,
    random: Any,
    total: float | None,
    tol: float,
    options: dict[str, Any],
    target: Target | None = None,
    resume: dict[str, Any] | None = None,
) -> dict[str, Any]:
    problem = _problem(task, source, weights, len(centers))
    dtype = problem.rows.dtype
    bounds = source.bounds
    if resume is not None:
        state = State.inward(resume, problem)
    else:
        state = State(_inward(problem, centers), np.zeros(len(centers), dtype), random)
    draws = Draws(problem, total)
    with (
        task.checkpoint(checkpoint) if task.comm.rank == 0 else nullcontext() as kept,
        target.held_open() if target is not None else nullcontext() as target,
    ):
        keep = kept.write if kept is not None else lambda state: None
        try:
            said = fit(problem, state, Options(tol=problem.tolerance(tol), **options), draws, keep)
        except Interrupted as interrupted:
            interrupted.result["history"] = problem.history
            raise
        centers = state.centers.astype(dtype)
        found: dict[str, Any] = {"centers": problem.outward(centers), "state": state.outward(problem), "said": said}
        if target is not None:
            labels, inertia = _labels(problem, centers)
            found["final"] = {"inertia": inertia}
            write_block(task, target, bounds, parts(problem.rows, labels))
    ended = state.iteration < options["n_steps"]
    return {**found, "history": problem.history, "rows": problem.rows.n_samples, "converged": ended}


@task("MiniBatchKMeans.partial_fit")
def _partial_fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    centers: np.ndarray,
    counts: np.ndarray,
    random: Any,
    ratio: float,
    target: Target | None = None,
) -> dict[str, Any]:
    """Take one step with all rows, and reassign centres if the `ratio` is above zero."""
    problem = _problem(task, source, weights, len(centers))
    rows = problem.rows
    generator = np.random.RandomState()
    generator.set_state(random)
    state = State(_inward(problem, centers), counts.copy(), None)
    labels = problem.kernels.new_labels(task.device, rows.n_samples)
    step = problem.kernels.fresh_step(rows, problem.shift, _shifted(problem, state.centers), labels)
    total = Total.of(problem, step)
    if total.cancelled:
        raise Interrupted
    moved = update(problem, state, total)
    count = 0
    if ratio > 0:
        own = np.arange(rows.n_samples)
        count = reassign(problem, state, moved, ratio, generator, problem.n_samples, rows, problem.first + own, own)
    centers = moved.astype(rows.dtype)
    found: dict[str, Any] = {
        "centers": problem.outward(centers),
        "counts": state.counts,
        "random": generator.get_state(),
    }
    found |= {"rows": rows.n_samples, "reassigned": count}
    if target is not None:
        labels, found["inertia"] = _labels(problem, centers)
        write_block(task, target, source.bounds, parts(rows, labels))
    return found
