"""Moments of rows that are multiplied by their weights, as scikit-learn-intelex defines its statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.algorithms.passes import moments
from xpulab.engine.dataset import data_of, weights_of
from xpulab.engine.engine import Task, task
from xpulab.kernels.rows import Rows
from xpulab.kernels.scaling import host_pieces

__all__: list[str] = []  # this module only registers a task


@task("moments_of_weighted")
def _moments_of_weighted(task: Task, source: dict[str, Any], weights: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `Moments` of the columns of rows that are multiplied by their weights."""
    rows = data_of(task, source).rows
    mine = weights_of(task, weights, source["bounds"])
    if mine is not None:
        rows = _multiplied(rows, mine)
    return {"rows": rows.n_samples, "moments": vars(moments(task, rows))}


def _multiplied(rows: Rows, factors: np.ndarray) -> Rows:
    """Multiply each row by its factor. The host computes the rows, because statistics with weights are rare."""
    block = np.empty((rows.n_samples, rows.n_features), rows.dtype)
    first = 0
    for piece in host_pieces(rows):
        last = first + len(piece)
        np.multiply(piece, factors[first:last, None], out=block[first:last])
        first = last
    return Rows.upload(rows.device, block)
