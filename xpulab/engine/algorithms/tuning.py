"""Tuning before a fit: ranks with equal devices share what there is to measure, and all learn what was found."""

from __future__ import annotations

import time

import numpy as np

from xpulab.engine.engine import Interrupted, Task
from xpulab.kernels.choice import AnyRows
from xpulab.kernels.rows import BLOCK, Rows
from xpulab.kernels.tiles import Tile, size_class

__all__ = ["share", "tune"]

#: Multiply-adds of a rank in the whole fit, below which the ranks do not even ask each other: a tenth of a second.
_LEAST_WORK = 1e10


def tune(
    task: Task, rows: AnyRows, shift: np.ndarray, centers: np.ndarray, n_samples: int, passes: int
) -> tuple[int, float]:
    """Measure tiles for these sizes where some were not yet, and where it pays.

    All ranks measure at the same time, as they compute afterwards.

    Parameters
    ----------
    task : Task
    rows : Rows or SparseRows
        This rank's block; sparse ones have no tiles.
    shift : numpy.ndarray of shape (n_features,)
    centers : numpy.ndarray of shape (n_clusters, n_features)
    n_samples : int
        Rows of all ranks.
    passes : int
        How often they will be looked at, at most.

    Returns
    -------
    tried : int
        Tiles that were measured, on all ranks together.
    seconds : float

    Raises
    ------
    Interrupted
        What was measured until then is kept.
    """
    started = time.perf_counter()
    tuner, comm, tried = task.engine.tuner, task.comm, 0
    k, d = centers.shape
    enough = tuner.mode == "all" or n_samples * float(d * k * passes) / comm.size >= _LEAST_WORK
    while isinstance(rows, Rows) and tuner.mode != "0" and enough:
        # Too few rows to measure with: this rank learns what the others find.
        missing = tuner.missing(rows.dtype, d, k) if rows.n_samples >= BLOCK else []
        offers = comm.allgather((tuner.key, missing))
        if not any(tiles for _, tiles in offers):
            break
        mine = share(offers, comm.rank)
        speeds = tuner.measure(rows, shift, centers, mine, passes, task.cancelled) if mine else {}
        found = comm.allgather((tuner.key, speeds, task.cancelled()))
        tried += sum(len(each) for _, each, _ in found)
        learned = {tile: speed for key, each, _ in found if key == tuner.key for tile, speed in each.items()}
        if learned:
            tuner.learn(size_class(rows.dtype, d, k), learned)
        if any(cancelled for *_, cancelled in found):
            raise Interrupted
        enough = tuner.mode == "all" and any(each for _, each, _ in found)
    return tried, time.perf_counter() - started


def share(offers: list[tuple[str, list[Tile]]], rank: int) -> list[Tile]:
    """The tiles that a rank measures, of those that the ranks with a device like its own have in common.

    Parameters
    ----------
    offers : list of (str, list of Tile)
        For each rank the key of its device, and what it has not measured.
    rank : int
    """
    key, missing = offers[rank]
    if not missing:
        return []
    members = [other for other, (theirs, tiles) in enumerate(offers) if theirs == key and tiles]
    return offers[members[0]][1][members.index(rank) :: len(members)]
