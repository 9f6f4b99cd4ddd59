"""Moments of rows that are multiplied by their weights, as scikit-learn-intelex defines its statistics."""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.passes import moments
from xpulab.engine.dataset import Data, PassedRows, weights_of
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import pieces_on_cpu
from xpulab.kernels.streamed import RowsInParts, changed, on_cpu
from xpulab.sharing.answers import MomentsOfColumns, WeightFacts
from xpulab.sharing.sources import SharedArray, Source

__all__: list[str] = []  # this module only registers tasks


@task("moments_of_weighted")
def _moments_of_weighted(task: Task, source: Source, weights: SharedArray | PassedRows | None) -> MomentsOfColumns:
    """Return the `Moments` of the columns of rows that are multiplied by their weights."""
    data, mine = Data(task, source), weights_of(task, weights, source.bounds)
    rows: Rows | RowsInParts = data.block
    if mine is not None:
        factors = mine
        rows = changed(rows, lambda first, part: _multiplied(part, factors[first : first + part.n_samples]))
    found = moments(task, rows)
    data.require_finite()
    return {"rows": data.n_own, "moments": found}


@task("weights.facts")
def _weight_facts(task: Task, source: Source, weights: None = None) -> WeightFacts:
    """Look through the weights in a column that the ranks read by themselves."""
    data, some, found = Data(task, source), False, None
    for first, part in on_cpu(data.block):
        values = part[:, 0]
        some = some or bool(values.any())
        if found is None and (values < 0).any():
            place = int(np.argmax(values < 0))
            found = float(values[place]), data.bounds[task.comm.rank] + first + place
    data.require_finite()
    every = task.comm.allgather((some, found))
    return {
        "rows": data.n_own,
        "some": any(some for some, _ in every),
        "negative": next((each for _, each in every if each is not None), None),
    }


def _multiplied(rows: Rows, factors: np.ndarray) -> Rows:
    """Multiply each row by its factor. The host computes the rows, because statistics with weights are rare."""
    block = np.empty((rows.n_samples, rows.n_features), rows.dtype)
    first = 0
    for piece in pieces_on_cpu(rows):
        last = first + len(piece)
        np.multiply(piece, factors[first:last, None], out=block[first:last])
        first = last
    return Rows.upload(rows.device, block)
