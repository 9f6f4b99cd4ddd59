"""Squared lengths of rows after multiplication by a matrix, for example Mahalanobis distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpulab.engine.dataset import data_of, write_block
from xpulab.engine.engine import Task, task
from xpulab.kernels.project import project

__all__: list[str] = []  # this module only registers a task


@task("squared_lengths")
def _squared_lengths(
    task: Task,
    source: dict[str, Any],
    weights: None,
    matrix: np.ndarray,
    shift: np.ndarray,
    offset: np.ndarray,
    target: dict[str, Any],
) -> dict[str, Any]:
    """Compute the squared lengths of ``(row - shift) @ matrix + offset``, with a matrix of shape (n_features, k).

    The squares are added up in float64.
    """
    rows = data_of(task, source).rows
    parts = (np.square(part, dtype=np.float64).sum(axis=1) for part in project(rows, matrix, shift, offset))
    write_block(task, target, source["bounds"], parts)
    return {"rows": rows.n_samples}
