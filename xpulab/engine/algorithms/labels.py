"""The labels of rows on the engines, and the numbers of their classes."""

from __future__ import annotations

import functools

import numpy as np

from xpulab.engine.dataset import Data, PassedRows, weights_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.rows import Rows
from xpulab.kernels.streamed import RowsInParts, on_cpu
from xpulab.sharing.answers import Classes
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["chosen_among", "codes_of"]


def codes_of(targets: Rows | RowsInParts, classes: np.ndarray | None) -> np.ndarray:
    """Return the numbers of the classes of this rank's rows, (n_samples,): the targets, or their places in `classes`.

    -1 for a label that is no class.
    """
    labels = np.concatenate([np.empty(0, targets.dtype), *(some[:, 0] for _, some in on_cpu(targets))])
    if classes is None:
        return labels
    places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[places] == labels, places, -1)


def chosen_among(n: int, chosen: np.ndarray, first: int) -> np.ndarray:
    """Return which of `n` rows, of which `first` is the index of the first, are among the chosen indices of rows."""
    found = np.zeros(n, bool)
    found[chosen[(chosen >= first) & (chosen < first + n)] - first] = True
    return found


@task("labels.classes")
def _classes(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, chosen: SharedArray | None = None
) -> Classes:
    """Return the distinct labels in the rows of all ranks, or in those chosen, and the sums of the weights of each."""
    data = Data(task, source)
    labels, mine = codes_of(data.block, None), weights_of(task, weights, source.bounds)
    data.require_finite()
    if chosen is not None:
        there = chosen_among(len(labels), chosen.open(), source.bounds[task.comm.rank])
        labels, mine = labels[there], None if mine is None else mine[there]
    classes = functools.reduce(np.union1d, task.comm.allgather(np.unique(labels)))
    mine = np.bincount(np.searchsorted(classes, labels), mine, len(classes))
    return {"rows": data.n_own, "classes": classes, "totals": task.comm.allreduce(mine.astype(np.float64))}
