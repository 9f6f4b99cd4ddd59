"""The explorer's part on the ranks: k-means on some of the rows that are here, and the picture of its clusters.

Between two tasks the ranks keep the rows in view and their labels, so that a look at two other features computes no
distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.engine import kmeans
from xpulab.engine.engine import Task
from xpulab.engine.sources import rows_of
from xpulab.kernels.histogram import count_pixels, ranges
from xpulab.kernels.rows import Rows, take

__all__ = ["Held", "chosen_rows", "facts", "fit", "held_for", "picture"]


@dataclass(eq=False)
class Held:
    """What a rank keeps for one explorer, under the explorer's name among the engine's handles.

    Attributes
    ----------
    handle : str
        Of the rows.
    points : int
        How many of all ranks' rows are in view.
    problem : Problem
        Those rows of this rank.
    outcome : Outcome or None
        Of the fit that was pictured last.
    """

    handle: str
    points: int
    problem: kmeans.Problem
    outcome: kmeans.Outcome | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on the device, the labels aside."""
        return self.problem.rows.nbytes if self.points < self.problem.n_samples else 0


def chosen_rows(first: int, last: int, points: int, n_samples: int) -> np.ndarray:
    """Which of the rows from `first` to `last` are among `points` of all `n_samples` rows.

    The rows are taken in steps of the golden ratio, around and around, until there are `points`: exactly as many as
    asked for, the same for any number of ranks, even over sorted and over periodic rows, and with more points the same
    ones and some more.

    Returns
    -------
    numpy.ndarray of int64
        Ascending, from 0 for the row `first`.
    """
    step = round(n_samples * (math.sqrt(5) - 1) / 2)
    while math.gcd(step, n_samples) > 1:
        step += 1
    # The row i is the (i * inverse)-th that is taken.
    inverse = pow(step, -1, n_samples)
    return np.flatnonzero(np.arange(first, last, dtype=np.int64) * inverse % n_samples < points)


def facts(task: Task, source: dict[str, Any]) -> dict[str, Any]:
    """The range, the mean and the standard deviation of each column, over all ranks."""
    rows = rows_of(task, source)
    assert isinstance(rows, Rows)
    problem = kmeans.Problem(task, rows, source["bounds"], None)
    low, high = ranges(rows)
    columns = np.array(task.comm.allgather((low, high)))
    return {
        "low": columns[:, 0].min(axis=0),
        "high": columns[:, 1].max(axis=0),
        "mean": problem.mean,
        "deviation": np.sqrt(problem.squares / problem.n_samples),
    }


def held_for(task: Task, explorer: str, source: dict[str, Any], points: int) -> Held:
    """What this rank keeps for an explorer; made anew when the rows in view are others than before."""
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
    problem = kmeans.Problem(task, rows, bounds, None)
    problem.shift = _coarse(problem)
    task.engine.handles[explorer] = held = Held(source["handle"], points, problem)
    return held


def _coarse(problem: kmeans.Problem) -> np.ndarray:
    """A place near the mean, to about a standard deviation, that is the same for any number of ranks to the last bit.

    The mean itself is a sum, whose rounding depends on how the rows are cut; so would labels at a near-tie, and pixels.
    """
    deviation = np.sqrt(problem.squares / problem.n_samples)
    grid = np.exp2(np.floor(np.log2(np.where(deviation > 0, deviation, 1))))
    return (np.round(problem.mean / grid) * grid).astype(problem.rows.dtype)


def fit(
    problem: kmeans.Problem, init: str | np.ndarray, n_clusters: int, max_iter: int, tol: float, random_state: int
) -> tuple[kmeans.Outcome, dict[str, Any]]:
    """Centres after `max_iter` iterations from a start, with none the start itself; and what the notebook gets."""
    start = init if isinstance(init, str) else [init]
    outcome = kmeans.fit(problem, start, n_clusters, 1, max_iter, tol, np.random.RandomState(random_state))
    return outcome, {
        "centers": outcome.centers + problem.shift,
        "inertia": outcome.inertia,
        "converged": bool(problem.history) and problem.history[-1][3] <= problem.tolerance(tol),
    }


def picture(held: Held, view: dict[str, Any]) -> np.ndarray:
    """Rows of all ranks by cluster and pixel on rank 0, nothing elsewhere: shape (n_clusters or 0, lines, columns)."""
    problem, outcome = held.problem, held.outcome
    assert outcome is not None
    assert isinstance(problem.rows, Rows)
    counts = count_pixels(problem.rows, outcome.labels, len(outcome.centers), **view)
    total = problem.comm.reduce(counts)
    return counts[:0] if total is None else total
