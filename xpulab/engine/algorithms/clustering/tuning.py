"""Measures launch shapes in a fit. Ranks with equal devices share the measurements, and each gets all results."""

from __future__ import annotations

import time

import numpy as np

from xpulab.engine.comm import Interrupted
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.choice import AnyRows
from xpulab.kernels.kmeans.launch_shapes import LaunchShape, size_class
from xpulab.kernels.layout import BLOCK
from xpulab.kernels.rows import Rows

__all__ = ["share", "tune"]


def tune(task: Task, rows: AnyRows, shift: np.ndarray, centers: np.ndarray) -> tuple[int, float]:
    """Measure as many launch shapes for these sizes as time allows; with mode "all", all of them.

    All ranks call this together, and measure at the same time, because they also compute at the same time.

    Parameters
    ----------
    task : Task
    rows : Rows or SparseRows
        This rank's block; sparse rows have no launch shapes.
    shift : numpy.ndarray of shape (n_features,)
        Subtracted from the rows.
    centers : numpy.ndarray of shape (n_clusters, n_features)
        The centres, less the shift.

    Returns
    -------
    tried : int
        Number of launch shapes that all ranks have measured together.
    seconds : float
        Seconds that this took.

    Raises
    ------
    Interrupted
        If the task was asked to stop. The measurements until then are kept.
    """
    started = time.perf_counter()
    tuner, comm, tried = task.engine.tuner, task.comm, 0
    k, d = centers.shape
    name = size_class(rows.dtype, d, k)
    again = isinstance(rows, Rows) and tuner.mode != "0"
    while again:
        assert isinstance(rows, Rows)
        # A rank with too few rows for a measurement measures nothing, and gets the results of the other ranks.
        missing = tuner.missing(rows.dtype, d, k) if rows.n_samples >= BLOCK else []
        offers = comm.allgather((tuner.key, missing))
        if not any(shapes for _, shapes in offers):
            break
        mine = share(offers, comm.rank)
        speeds = tuner.measure(rows, shift, centers, mine, task.cancelled) if mine else {}
        found = comm.allgather((tuner.key, speeds, task.cancelled()))
        tried += sum(len(each) for _, each, _ in found)
        learned = {shape: speed for key, each, _ in found if key == tuner.key for shape, speed in each.items()}
        if learned:
            tuner.learn(name, learned)
        if any(cancelled for *_, cancelled in found):
            raise Interrupted
        again = tuner.mode == "all" and any(each for _, each, _ in found)
    seconds = time.perf_counter() - started
    tuner.measured(name, seconds)
    return tried, seconds


def share(offers: list[tuple[str, list[LaunchShape]]], rank: int) -> list[LaunchShape]:
    """Return the launch shapes that a rank has to measure.

    Ranks with equal devices share the launch shapes that none of them has measured.

    Parameters
    ----------
    offers : list of (str, list of LaunchShape)
        For each rank the key of its device, and the launch shapes that it has not measured.
    rank : int

    Returns
    -------
    list of LaunchShape
    """
    key, missing = offers[rank]
    if not missing:
        return []
    members = [other for other, (theirs, shapes) in enumerate(offers) if theirs == key and shapes]
    return offers[members[0]][1][members.index(rank) :: len(members)]
