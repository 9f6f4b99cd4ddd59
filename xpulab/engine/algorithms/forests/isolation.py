"""Isolation forests: the rows of which trees are grown, and the scores that all rows have."""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.forests.forest import followed
from xpulab.engine.dataset import Data, PassedRows, data_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.sharing.answers import DrawnRows, Percentile
from xpulab.sharing.sources import SharedArray, Source

__all__: list[str] = []


@task("isolation.rows")
def _rows(task: Task, source: Source, weights: SharedArray | PassedRows | None, chosen: SharedArray) -> DrawnRows:
    """Return some rows, whose numbers `chosen` has in ascending order."""
    data = Data(task, source)
    numbers = chosen.open()
    first, last = data.bounds[task.comm.rank : task.comm.rank + 2]
    own = numbers[(numbers >= first) & (numbers < last)] - first
    every = task.comm.gather_blocks(np.ravel(data.rows_at(own)).astype(np.float32))
    return {"rows": data.n_own, "drawn": every}


@task("isolation.percentile")
def _percentile(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    forest: str,
    sent: dict[str, SharedArray] | None,
    unit: float,
    share: float,
) -> Percentile:
    """Return a percentile of the scores of all rows, for a mean depth of `unit` of rows that are no outliers."""
    data = data_of(task, source)
    depths = followed(task, data, forest, sent)
    scores = -np.exp2(-depths[:, 0] / unit) if unit else -np.full(len(depths), 0.5)
    every = task.comm.gather_blocks(scores)
    return {"rows": data.n_own, "percentile": None if every is None else float(np.percentile(every, share))}
