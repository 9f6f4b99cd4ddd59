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
from xpulab.engine.algorithms.clustering.places import first_rows, nearest_pixel, rows_inside
from xpulab.engine.algorithms.clustering.problem import Problem
from xpulab.engine.algorithms.clustering.starts import start
from xpulab.engine.dataset import rows_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.explorer.counting import View
from xpulab.kernels.kmeans.histogram import count_pixels, ranges
from xpulab.kernels.row_passes import take
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import DrawnRowOfRank, Explored
from xpulab.sharing.sources import HandleRows, Target

__all__ = [
    "Held", "chosen_rows", "drawn_row", "facts", "held_for", "picture", "restart", "select", "selected", "step",
    "whole_fit",
]  # fmt: skip


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
    chosen : numpy.ndarray of int64, or None
        Indices of the chosen rows in this rank's block; None for all of its rows.
    drawn : tuple of (dict, numpy.ndarray), optional
        What a picture shows, and the first row of each of its pixels.
    clusters : numpy.ndarray of int64, optional
        The clusters of the chosen rows, -1 for noise, if `labels` says something else.
    inside : numpy.ndarray of bool, optional
        Which of the chosen rows are inside of the user's shape.
    """

    handle: str
    points: int
    problem: Problem
    labels: Any
    centers: np.ndarray
    chosen: np.ndarray | None = None
    drawn: tuple[View, np.ndarray] | None = None
    clusters: np.ndarray | None = None
    inside: np.ndarray | None = None

    def clusters_of(self, start: int, stop: int) -> np.ndarray:
        """Return the clusters of the chosen rows from `start` up to, not including, `stop`."""
        if self.clusters is not None:
            return self.clusters[start:stop]
        return self.problem.kernels.labels_on_cpu(self.labels, stop, start)

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


def facts(task: Task, source: HandleRows) -> dict[str, np.ndarray]:
    """Return the range, the mean and the standard deviation of each column, over all ranks."""
    rows = rows_of(task, source)
    assert isinstance(rows, Rows)
    problem = Problem(task, rows, source.bounds, None, unit=1.0)  # pictures have the rows as they are
    low, high = ranges(rows)
    columns = np.array(task.comm.allgather((low, high)))
    return {
        "low": columns[:, 0].min(axis=0),
        "high": columns[:, 1].max(axis=0),
        "mean": problem.mean,
        "deviation": np.sqrt(problem.squares / problem.n_samples),
    }


def held_for(task: Task, explorer: str, source: HandleRows, points: int) -> Held:
    """Return the state that this rank keeps for an explorer. It is created again if other rows are chosen."""
    held = task.engine.handles.get(explorer)
    if held is not None and (held.handle, held.points) == (source.handle, points):
        held.problem.resume(task)
        return held
    rows, bounds = rows_of(task, source), source.bounds
    assert isinstance(rows, Rows)
    mine = None
    if points < bounds[-1]:
        mine = chosen_rows(bounds[task.comm.rank], bounds[task.comm.rank + 1], points, bounds[-1])
        rows = Rows.upload(task.device, take(rows, mine))
        bounds = [0, *np.cumsum(task.comm.allgather(len(mine))).tolist()]
    problem = Problem(task, rows, bounds, None, unit=1.0)
    problem.shift = _coarse(problem)
    labels = problem.kernels.new_labels(task.device, rows.n_samples)
    centers = np.empty((0, rows.n_features), rows.dtype)
    task.engine.handles[explorer] = held = Held(source.handle, points, problem, labels, centers, mine)
    return held


def _coarse(problem: Problem) -> np.ndarray:
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
        held.centers = start(problem, init, n_clusters, np.random.RandomState(random_state))
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
    found = kmeans.iterate(problem, held.centers, held.labels)
    held.centers = found.centers
    problem.kernels.lloyd_step(problem.rows, problem.shift, held.centers, held.labels)
    inertia = kmeans.inertia(problem, held.centers, held.labels)
    return inertia, found.center_shift <= problem.tolerance(tol)


def picture(held: Held, view: View) -> np.ndarray:
    """Count rows by cluster and pixel: (n_clusters, lines, columns) on rank 0, (0, lines, columns) on other ranks."""
    rows = held.problem.rows
    assert isinstance(rows, Rows)
    counts = count_pixels(rows, held.labels, len(held.centers), **view)
    total = held.problem.comm.reduce(counts)
    return counts[:0] if total is None else total


def drawn_row(held: Held, first: int, view: View, at: tuple[float, float], reach: float) -> DrawnRowOfRank:
    """Return the first of this rank's rows in the drawn pixel that is nearest to a place.

    The rows of the pixels are looked up once for each view: the next place takes no pass over the rows.

    Parameters
    ----------
    held : Held
    first : int
        Number of the first row of this rank's block among those of all ranks.
    view : dict
        As for `picture`.
    at : tuple of two floats
        The place, in the units of the two features.
    reach : float
        The largest distance, in pixels.
    """
    rows = held.problem.rows
    assert isinstance(rows, Rows)
    if held.drawn is None or held.drawn[0] != view:
        held.drawn = view, first_rows(rows, **view)
    pixels = held.drawn[1]
    lines, columns = view["shape"]
    (x, y), low, high = at, view["low"], view["high"]
    near = nearest_pixel(
        pixels, (x - low[0]) / (high[0] - low[0]) * columns, (y - low[1]) / (high[1] - low[1]) * lines, reach
    )
    if near is None:
        return {"square": math.inf, "number": -1, "pixel": (-1, -1), "values": np.empty(0), "cluster": -1}
    square, line, column = near
    index = int(pixels[line, column])
    number = first + int(index if held.chosen is None else held.chosen[index])
    cluster = int(held.clusters_of(index, index + 1)[0])
    values = take(rows, [index])[0].astype(np.float64)
    return {"square": square, "number": number, "pixel": (line, column), "values": values, "cluster": cluster}


def select(held: Held, features: tuple[int, int], corners: np.ndarray | None, n_own: int) -> np.ndarray:
    """Remember which rows are inside of a shape, and return it for each row of this rank's block: (n_own,) of bool."""
    rows, selected = held.problem.rows, np.zeros(n_own, bool)
    assert isinstance(rows, Rows)
    held.inside = None if corners is None else rows_inside(rows, features, corners)
    if held.inside is not None:
        selected[slice(None) if held.chosen is None else held.chosen] = held.inside
    return selected


def selected(held: Held) -> np.ndarray | None:
    """Return the number of selected rows of each cluster, over all ranks; None if the user has drawn no shape.

    The last number is that of noise.
    """
    if held.inside is None:
        return None
    comm, labels = held.problem.comm, held.clusters_of(0, len(held.inside))[held.inside]
    n_clusters = len(held.centers)
    if held.clusters is not None:
        n_clusters = int(comm.allreduce(np.array([labels.max(initial=-1) + 1]), np.maximum)[0])
    return comm.allreduce(np.bincount(np.where(labels < 0, n_clusters, labels), minlength=n_clusters + 1))


def whole_fit(held: Held, n_clusters: int, max_iter: int, tol: float, random_state: int) -> float:
    """Return the inertia of a whole fit. It does not change the explorer's centres and labels."""
    random = np.random.RandomState(random_state)
    return kmeans.fit(held.problem, "k-means++", n_clusters, 1, max_iter, tol, random).inertia


@task("explore.facts")
def _explore_facts(task: Task, source: HandleRows) -> dict[str, np.ndarray]:
    return facts(task, source)


@task("explore.update")
def _explore_update(
    task: Task,
    explorer: str,
    source: HandleRows,
    points: int,
    begin: dict[str, Any] | None,
    tol: float | None,
    view: View,
    target: Target,
) -> Explored:
    """Choose new centres if `begin` is given, run an iteration if `tol` is given, and count the picture."""
    held = held_for(task, explorer, source, points)
    result: Explored = {"converged": False, "selected": None}
    if begin is not None:
        result["inertia"] = restart(held, **begin)
    if tol is not None:
        result["inertia"], result["converged"] = step(held, tol)
    counts = picture(held, view)
    write_block(task, target, [0, *[target.shape[0]] * task.comm.size], [counts])
    result["centers"], result["selected"] = held.centers + held.problem.shift, selected(held)
    return result


@task("explore.row")
def _explore_row(
    task: Task,
    explorer: str,
    source: HandleRows,
    points: int,
    view: View,
    at: tuple[float, float],
    reach: float,
) -> DrawnRowOfRank:
    held = held_for(task, explorer, source, points)
    return drawn_row(held, source.bounds[task.comm.rank], view, at, reach)


@task("explore.select")
def _explore_select(
    task: Task,
    explorer: str,
    source: HandleRows,
    points: int,
    features: tuple[int, int],
    corners: np.ndarray | None,
    target: Target,
) -> Explored:
    """Write which rows are inside of a shape, and count them by cluster."""
    held, bounds = held_for(task, explorer, source, points), source.bounds
    n_own = bounds[task.comm.rank + 1] - bounds[task.comm.rank]
    write_block(task, target, bounds, [select(held, features, corners, n_own)])
    return {"selected": selected(held)}


@task("explore.fit")
def _explore_fit(
    task: Task, explorer: str, source: HandleRows, points: int, parameters: dict[str, Any]
) -> dict[str, float]:
    held = held_for(task, explorer, source, points)
    return {"inertia": whole_fit(held, **parameters)}
