"""Targets of forests that are on the engines: each host gets those of all rows, and facts about them.

A tree depends on the targets of all rows in their order. What is added up over the rows is added as one process adds
an array, so that forests of handles are those of arrays.
"""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.columns import distinct
from xpulab.engine.dataset import data_of, on_host
from xpulab.engine.engine import Task
from xpulab.engine.host_arrays import shared_by_host, take_from_other_hosts
from xpulab.engine.registry import task
from xpulab.sharing.answers import Categories, ForestScore, Range, Total
from xpulab.sharing.sources import HandleTargets, SharedArray, Source

__all__ = ["opened_shares", "opened_targets"]


def opened_targets(task: Task, y: SharedArray | HandleTargets) -> np.ndarray:
    """Return the targets of all rows, or the numbers of their classes: float64 of shape (n_samples, n_outputs).

    The notebook has sent them, or they are those of a handle; all ranks call this together.
    """
    if isinstance(y, SharedArray):
        return y.open()
    data = data_of(task, y.source)
    first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
    with shared_by_host(task, (data.n_samples, data.n_features), np.float64) as whole:
        mine = whole[first:last]
        mine[:] = on_host(data.rows, np.float64)
        for column, labels in zip(mine.T, y.classes or [], strict=False):
            column[:] = np.searchsorted(labels, column)
        if y.middle is not None:
            mine -= y.middle
        take_from_other_hosts(task, mine, whole, data.bounds)
        task.comm.allgather(None)  # all have written
    whole.flags.writeable = False
    return whole


def opened_shares(
    shares: SharedArray | None, y: SharedArray | HandleTargets | None, target: np.ndarray | None
) -> np.ndarray | None:
    """Return the weights of all rows, times those of their classes; None if all are 1.

    Parameters
    ----------
    shares : SharedArray or None
        Weights of all rows, float64 of shape (n_samples,).
    y, target : Any
        The targets, and what `opened_targets` has returned for them.
    """
    given = None if shares is None else shares.open()
    if target is None or not isinstance(y, HandleTargets) or y.weights is None:
        return given
    codes = target.T.astype(np.int64)
    of_classes = np.prod([weights[of] for weights, of in zip(y.weights, codes, strict=True)], axis=0, dtype=np.float64)
    return of_classes if given is None else given * of_classes


@task("forest.classes")
def _classes(task: Task, source: Source, weights: None, shares: SharedArray | None) -> Categories:
    """Return the classes of each output, and the number of their rows, or the sum of the weights of these."""
    rows = data_of(task, source).rows
    found = distinct(task, rows)
    classes, counts = ([each[part] for each in found] for part in (0, 1))
    if shares is not None:
        target = opened_targets(task, HandleTargets(source, classes))
        codes = target.T.astype(np.int64)
        counts = [np.bincount(of, shares.open(), len(labels)) for of, labels in zip(codes, classes, strict=True)]
    return {"rows": rows.n_samples, "values": classes, "counts": counts}


@task("forest.range")
def _range(task: Task, source: Source, weights: None) -> Range:
    """Return the least and the largest target of each output, and their mean."""
    target = opened_targets(task, HandleTargets(source))
    first, last = source.bounds[task.comm.rank : task.comm.rank + 2]
    return {
        "rows": last - first,
        "least": target.min(axis=0),
        "largest": target.max(axis=0),
        "mean": target.mean(axis=0),
    }


@task("forest.weight")
def _weight(task: Task, source: Source, weights: None, y: HandleTargets, shares: SharedArray | None) -> Total:
    """Return the sum of the weights of all rows."""
    every = opened_shares(shares, y, opened_targets(task, y))
    assert every is not None
    first, last = source.bounds[task.comm.rank : task.comm.rank + 2]
    return {"rows": last - first, "total": float(every.sum())}


@task("forest.score")
def _score(task: Task, source: Source, weights: None, y: HandleTargets, predicted: SharedArray) -> ForestScore:
    """Compare the targets of all rows with predictions of the same shape.

    Of classes, the rows are counted that are right for all outputs. Of numbers, the squared errors are added, and the
    squared differences of the targets from their mean.
    """
    target, guess = opened_targets(task, y), predicted.open()
    first, last = source.bounds[task.comm.rank : task.comm.rank + 2]
    if y.classes is not None:
        return {"rows": last - first, "right": int((target == guess).all(axis=1).sum())}
    errors = np.sum((target - guess) ** 2, axis=0)
    return {"rows": last - first, "errors": errors, "spread": np.sum((target - target.mean(axis=0)) ** 2, axis=0)}
