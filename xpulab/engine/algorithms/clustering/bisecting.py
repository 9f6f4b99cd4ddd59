"""Bisecting k-means on all ranks: k-means splits one cluster of the resident rows after the other into two.

Each rank has the places of its own rows in each leaf of the tree. A rank copies the rows of the leaf that is split on
its device, so no row travels again. Which leaf is next follows from reductions.

References
----------
.. [1] M. Steinbach, G. Karypis and V. Kumar, "A comparison of document clustering techniques", KDD 2000 workshop on
   text mining.
.. [2] scikit-learn's ``sklearn/cluster/_bisect_k_means.py``: what is computed, and the order of random draws,
   follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.kmeans import Outcome, inertia, lloyd
from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.clustering.ranges import ordinary, unit_of
from xpulab.engine.algorithms.clustering.starts import start
from xpulab.engine.dataset import PassedRows, kind_of, rows_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.kmeans.sparse import SparseRows
from xpulab.kernels.runtime.launch import build_together
from xpulab.sharing.answers import OwnRows
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["Leaf", "Options", "bisect"]


@dataclass(frozen=True)
class Options:
    """Parameters of a fit, as scikit-learn names them."""

    n_clusters: int
    init: str
    n_init: int
    max_iter: int
    tol: float
    bisecting_strategy: str


@dataclass(frozen=True, eq=False)
class Leaf:
    """A cluster. All but `places`, the indices of this rank's rows in it, is equal on all ranks."""

    places: np.ndarray  # int64
    score: float
    inertia: float


def bisect(
    problem: Problem, options: Options, random: np.random.RandomState
) -> tuple[list[Leaf], list[tuple[int, np.ndarray, np.ndarray]]]:
    """Split clusters until there are as many as asked for.

    Parameters
    ----------
    problem : Problem
    options : Options
    random : numpy.random.RandomState

    Returns
    -------
    leaves : list of Leaf
        The clusters in the order of the tree.
    splits : list of tuple
        For each split the index of the leaf in the list of the leaves so far, which its two parts replace; the centres
        of the parts (2, n_features), float64, less the shift; and their scores (2,).

    Raises
    ------
    ValueError
        If a cluster to split has fewer than two rows of positive weight, on all ranks together.
    Interrupted
        If the task was asked to stop, on all ranks together.
    """
    leaves = [Leaf(np.arange(problem.rows.n_samples), 0.0, _spread(problem) if options.n_clusters == 1 else 0.0)]
    splits = []
    for number in range(options.n_clusters - 1):
        chosen = max(range(len(leaves)), key=lambda i: leaves[i].score)  # of equal scores the first
        part = problem if number == 0 else problem.subset(leaves[chosen].places)
        _require_two(part, options.init)
        best = _best_of(part, options, random, number * options.n_init)
        sides, scores, centers = _sides(problem, part, leaves[chosen].places, best, options.bisecting_strategy)
        splits.append((chosen, centers, scores))
        leaves[chosen : chosen + 1] = sides
    return leaves, splits


def _spread(problem: Problem) -> float:
    """Return the inertia of all rows as one cluster, whose centre is the mean without weights, as in scikit-learn."""
    center = (problem.mean - problem.shift).astype(problem.rows.dtype)[None]
    labels = problem.kernels.new_labels(problem.task.device, problem.rows.n_samples)
    problem.kernels.assign(problem.rows, problem.shift, center, labels, again=False)
    return inertia(problem, center, labels)


def _require_two(part: Problem, init: str) -> None:
    """Raise the same error on all ranks, if fewer than two rows of positive weight could be drawn."""
    if init != "random":
        return
    mine = part.rows.n_samples if part.weights is None else np.count_nonzero(part.weights)
    there = int(part.comm.allreduce(np.array([mine]))[0])
    if there < 2:
        raise ValueError(
            "Cannot take a larger sample than population when replace is False: the next cluster to split has "
            f"{there} rows of positive weight, and init='random' draws two of them; lower n_clusters, or use "
            "init='k-means++'"
        )


def _best_of(part: Problem, options: Options, random: np.random.RandomState, run: int) -> Outcome:
    """Run k-means with two clusters `n_init` times, and return the best run."""
    best: Outcome | None = None
    for attempt in range(options.n_init):
        centers = start(part, options.init, 2, random)
        state = {"run": run + attempt, "best": None, "random": None}
        outcome = lloyd(part, centers, options.max_iter, options.tol / part.unit / part.unit, state)
        outcome.labels.trim()
        if best is None or outcome.inertia < best.inertia * (1 - 1e-6):  # as in scikit-learn
            best = outcome
    assert best is not None
    return best


def _sides(
    problem: Problem, part: Problem, places: np.ndarray, best: Outcome, strategy: str
) -> tuple[list[Leaf], np.ndarray, np.ndarray]:
    """Return the two leaves of a split, their scores, and their centres less the shift of the whole problem."""
    kernels, rows = part.kernels, part.rows
    labels = kernels.labels_on_cpu(best.labels, rows.n_samples)
    distances = kernels.own_distances(rows, part.shift, best.centers, best.labels)
    weighted = distances if part.weights is None else distances * part.weights
    mine = np.stack([np.bincount(labels, minlength=2), np.bincount(labels, weighted, 2)])
    counts, inertias = part.comm.allreduce(mine.astype(np.float64))
    scores = counts if strategy == "largest_cluster" else inertias
    sides = [Leaf(places[labels == i], float(scores[i]), float(inertias[i])) for i in range(2)]
    centers = best.centers + (part.shift.astype(np.float64) - problem.shift)
    return sides, scores, centers


def descend(rows: AnyRows, splits: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """Return the leaf of each row in a tree: int32 of shape (n_samples,).

    `splits` are those of `bisect`, without the scores, and with centres (2, n_features) from which nothing was
    subtracted.
    """
    kernels, device = kernels_for(rows), rows.device
    leaves = [np.arange(rows.n_samples)]
    for chosen, centers in splits:
        places = leaves[chosen]
        left = np.empty(0, bool)
        if len(places):
            part = rows if len(places) == rows.n_samples else kernels.subset(rows, places)
            labels = kernels.new_labels(device, len(places))
            kernels.assign(part, np.zeros(rows.n_features, rows.dtype), centers, labels, again=False)
            left = kernels.labels_on_cpu(labels, len(places)) == 0
        leaves[chosen : chosen + 1] = [places[left], places[~left]]
    return _numbered(leaves, rows.n_samples)


def _numbered(leaves: list[np.ndarray], n: int) -> np.ndarray:
    """Return the number of the leaf of each row."""
    found = np.empty(n, np.int32)
    for number, places in enumerate(leaves):
        found[places] = number
    return found


@task("BisectingKMeans.fit", metrics=("inertia", "center_shift"))
def _fit(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    target: Target,
    random: Any,
    options: dict[str, Any],
) -> dict[str, Any]:
    asked = Options(**options)
    kernels, dtype, n_features = kind_of(task, source)
    task.show(doing="finishing kernels for the device")
    build_together(
        task.device,
        kernels.first_kernels(task.device, dtype, n_features, 2, asked.init == "k-means++", weights is not None),
        task.comm.rank,
    )
    sample_weight = weights_of(task, weights, source.bounds)
    problem = Problem(task, rows_of(task, source, sample_weight), source.bounds, sample_weight)
    generator = np.random.RandomState()
    generator.set_state(random)
    leaves, splits = bisect(problem, asked, generator)
    numbers = _numbered([leaf.places for leaf in leaves], problem.rows.n_samples)
    write_block(task, target, source.bounds, [numbers])
    return {
        "splits": [(chosen, problem.outward(centers), scores) for chosen, centers, scores in splits],
        "shift": problem.outward(problem.shift),
        "dense": not isinstance(problem.rows, SparseRows),
        "mean": problem.outward(problem.mean),
        "final": {"inertia": sum(leaf.inertia for leaf in leaves) * problem.unit * problem.unit},
        "random": generator.get_state(),
        "history": problem.history,
        "rows": problem.rows.n_samples,
    }


@task("BisectingKMeans.predict")
def _predict(
    task: Task, source: Source, weights: None, target: Target, splits: list[tuple[int, np.ndarray]]
) -> OwnRows:
    rows = rows_of(task, source)
    largest = max((float(np.abs(centers).max()) for _, centers in splits), default=0.0)
    if largest and not ordinary(largest, rows.dtype) and (unit := unit_of(task, rows, largest)) != 1:
        rows = kernels_for(rows).divided(rows, unit)
        splits = [(chosen, centers / centers.dtype.type(unit)) for chosen, centers in splits]
    write_block(task, target, source.bounds, [descend(rows, splits)])
    return {"rows": rows.n_samples}
