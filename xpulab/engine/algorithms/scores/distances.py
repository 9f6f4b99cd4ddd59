"""Distances of this rank's rows from other rows, for some rows at a time, by functions of scikit-learn and SciPy."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from xpulab.engine.dataset import Data, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.streamed import on_cpu
from xpulab.sharing.answers import OwnRows
from xpulab.sharing.sources import SharedArray, Source, Target

__all__ = ["distances_from"]

_PART_BYTES, _PART_ROWS = 4 << 20, 32  # of the distances that a thread computes at a time, and least number of rows


@task("metrics.distances")
def _distances(
    task: Task,
    source: Source,
    weights: None,
    target: Target,
    others: SharedArray,
    metric: str,
    given: Mapping[str, Any],
) -> OwnRows:
    """Write the distances of each row from all other rows into an array of the notebook.

    Parameters
    ----------
    task : Task
    source : Source
        The rows.
    target : Target
        Of shape (n_samples, n_others).
    others : SharedArray
        The other rows, of shape (n_others, n_features).
    metric : str
        A name that `sklearn.metrics.pairwise_distances` takes.
    given : mapping
        Its other arguments.
    """
    data = Data(task, source)
    write_block(task, target, data.bounds, distances_from(task, data, others.open(), metric, given))
    data.require_finite()
    return {"rows": data.n_own}


def distances_from(
    task: Task, data: Data, others: np.ndarray, metric: str, given: Mapping[str, Any]
) -> Iterator[np.ndarray]:
    """Yield the distances of this rank's rows from others, for some rows at a time."""
    from sklearn.metrics import pairwise_distances  # a start does not wait for it

    step = max(_PART_ROWS, _PART_BYTES // (8 * max(1, len(others))))
    threads = len(os.sched_getaffinity(0))

    def compute(part: np.ndarray) -> np.ndarray:
        found: np.ndarray = pairwise_distances(part, others, metric=metric, ensure_all_finite=False, **given)
        return found

    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.simplefilter("ignore")  # the notebook warns of conversions
        for first, some in on_cpu(data.block):
            task.show(doing="comparing rows", done=first, steps=data.n_own)
            for begin in range(0, len(some), step * threads):
                task.leave_if_cancelled()
                group = some[begin : begin + step * threads]
                with task.on_host():
                    found = list(pool.map(compute, (group[at : at + step] for at in range(0, len(group), step))))
                yield from found
