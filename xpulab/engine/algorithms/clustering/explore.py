"""The explorer's tasks on the ranks: k-means on some of the rows that the ranks keep, and a picture of its clusters.

Between two tasks the ranks keep the chosen rows and their labels, so that a picture of two other features needs no
distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering import kmeans
from xpulab.engine.dataset import rows_of, write_block
from xpulab.engine.engine import Task, task
from xpulab.kernels.kmeans.histogram import count_pixels, ranges
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows

__all__ = ["Held", "chosen_rows", "facts", "held_for", "picture", "restart", "step", "whole_fit"]


@dataclass(eq=False)
class Held:
    """The state that a rank keeps for one explorer, under the explorer's name among the engine's handles.

    Attributes
    ----------
    handle : str
        Id of the rows' handle.
    points : int
        Number of chosen rows, over all ranks.
    problem : Problem
        This rank's chosen rows.
    labels : Labels
        Labels of these rows, for `centers`.
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, less the shift of `problem`.
    """

    handle: str
    points: int
    problem: kmeans.Problem
    labels: Any
    centers: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes on the device for the labels, and for the rows if they are copies."""
        copied = self.problem.rows.nbytes if self.points < self.problem.n_samples else 0
        return copied + self.labels.current.nbytes + self.labels.listed.nbytes


def chosen_rows(first: int, last: int, points: int, n_samples: int) -> np.ndarray:
    """Choose `points` of all `n_samples` rows, and return those between `first` and `last`.

    The choice goes through all rows, modulo their number, in steps of about the golden ratio of this number. It is
    spread evenly over sorted and over periodic rows, and it is the same for any number of ranks. A choice of more
    points contains every choice of fewer points.

    Parameters
    ----------
    first, last : int
        The rows of this rank: from `first` up to, not including, `last`.
    points : int
        Number of rows to choose.
    n_samples : int
        Number of rows of all ranks.

    Returns
    -------
    numpy.ndarray of int64
        Indices of chosen rows, relative to `first`, in ascending order.
    """
    step = round(n_samples * (math.sqrt(5) - 1) / 2)
    while math.gcd(step, n_samples) > 1:
        step += 1
    # Row i is chosen in step i * inverse, modulo n_samples.
    inverse = pow(step, -1, n_samples)
    return np.flatnonzero(np.arange(first, last, dtype=np.int64) * inverse % n_samples < points)


def facts(task: Task, source: dict[str, Any]) -> dict[str, Any]:
    """Return the range, the mean and the standard deviation of each column, over all ranks."""
    rows = rows_of(task, source)
    assert isinstance(rows, Rows)
    problem = kmeans.Problem(task, rows, source["bounds"], None, unit=1.0)  # pictures have the rows as they are
    low, high = ranges(rows)
    columns = np.array(task.comm.allgather((low, high)))
    return {
        "low": columns[:, 0].min(axis=0),
        "high": columns[:, 1].max(axis=0),
        "mean": problem.mean,
        "deviation": np.sqrt(problem.squares / problem.n_samples),
    }


def held_for(task: Task, explorer: str, source: dict[str, Any], points: int) -> Held:
    """Return the state that this rank keeps for an explorer. It is created again if other rows are chosen."""
    held = task.engine.handles.get(explorer)
    if held is not None and (held.handle, held.points) == (source["handle"], points):
        held.problem.resume(task)
        return held
    rows, bounds = rows_of(task, source), source["bounds"]
    assert isinstance(rows, Rows)
    if points < bounds[-1]:
        mine = chosen_rows(bounds[task.comm.rank], bounds[task.comm.rank + 1], points, bounds[-1])
        rows = Rows.upload(task.device, take(rows, mine))
        bounds = [0, *np.cumsum(task.comm.allgather(len(mine))).tolist()]
    problem = kmeans.Problem(task, rows, bounds, None, unit=1.0)
    problem.shift = _coarse(problem)
    labels = problem.kernels.new_labels(task.device, rows.n_samples)
    centers = np.empty((0, rows.n_features), rows.dtype)
    task.engine.handles[explorer] = held = Held(source["handle"], points, problem, labels, centers)
    return held


def _coarse(problem: kmeans.Problem) -> np.ndarray:
    """Return a point within about a standard deviation of the mean, which is bitwise the same for any number of ranks.

    The mean itself is a sum, and its rounding depends on how the rows are cut. With it, the labels of rows that are
    nearly equally close to two centres would depend on the number of ranks, and the picture with them.
    """
    deviation = np.sqrt(problem.squares / problem.n_samples)
    grid = np.exp2(np.floor(np.log2(np.where(deviation > 0, deviation, 1))))
    return (np.round(problem.mean / grid) * grid).astype(problem.rows.dtype)


def restart(held: Held, init: str | np.ndarray, n_clusters: int, random_state: int) -> float:
    """Set the centres, which k-means' initialisation draws or `init` has, label the rows, and return the inertia."""
    problem = held.problem
    if isinstance(init, str):
        held.centers = kmeans.start(problem, init, n_clusters, np.random.RandomState(random_state))
    else:
        held.centers = (init - problem.shift).astype(problem.rows.dtype)
    problem.kernels.assign(problem.rows, problem.shift, held.centers, held.labels, again=False)
    return kmeans.inertia(problem, held.centers, held.labels)


def step(held: Held, tol: float) -> tuple[float, bool]:
    """Run one iteration; return the inertia, and whether `KMeans.fit` would end after it.

    The labels are computed together with the sums of the clusters, so that the next iteration adds only the rows that
    change their cluster.
    """
    problem = held.problem
    turn = kmeans.iterate(problem, held.centers, held.labels)
    held.centers = turn.centers
    problem.kernels.lloyd_step(problem.rows, problem.shift, held.centers, held.labels)
    inertia = kmeans.inertia(problem, held.centers, held.labels)
    return inertia, turn.center_shift <= problem.tolerance(tol)


def picture(held: Held, view: dict[str, Any]) -> np.ndarray:
    """Count rows by cluster and pixel: (n_clusters, lines, columns) on rank 0, (0, lines, columns) on other ranks."""
    rows = held.problem.rows
    assert isinstance(rows, Rows)
    counts = count_pixels(rows, held.labels, len(held.centers), **view)
    total = held.problem.comm.reduce(counts)
    return counts[:0] if total is None else total


def whole_fit(held: Held, n_clusters: int, max_iter: int, tol: float, random_state: int) -> float:
    """Return the inertia of a whole fit. It does not change the explorer's centres and labels."""
    random = np.random.RandomState(random_state)
    return kmeans.fit(held.problem, "k-means++", n_clusters, 1, max_iter, tol, random).inertia


@task("explore.facts")
def _explore_facts(task: Task, source: dict[str, Any]) -> dict[str, Any]:
    return facts(task, source)


@task("explore.update")
def _explore_update(
    task: Task,
    explorer: str,
    source: dict[str, Any],
    points: int,
    begin: dict[str, Any] | None,
    tol: float | None,
    view: dict[str, Any],
    target: dict[str, Any],
) -> dict[str, Any]:
    """Choose new centres if `begin` is given, run an iteration if `tol` is given, and count the picture."""
    held = held_for(task, explorer, source, points)
    result: dict[str, Any] = {"converged": False}
    if begin is not None:
        result["inertia"] = restart(held, **begin)
    if tol is not None:
        result["inertia"], result["converged"] = step(held, tol)
    counts = picture(held, view)
    write_block(task, target, [0, *[target["shape"][0]] * task.comm.size], [counts])
    return {**result, "centers": held.centers + held.problem.shift}


@task("explore.fit")
def _explore_fit(
    task: Task, explorer: str, source: dict[str, Any], points: int, parameters: dict[str, Any]
) -> dict[str, Any]:
    held = held_for(task, explorer, source, points)
    return {"inertia": whole_fit(held, **parameters)}
