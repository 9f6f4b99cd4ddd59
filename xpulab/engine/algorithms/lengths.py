"""Squared lengths of rows after multiplication by a matrix, for example Mahalanobis distances."""

from __future__ import annotations

import numpy as np

from xpulab.engine.dataset import data_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.project import project
from xpulab.sharing.answers import OwnRows
from xpulab.sharing.sources import Source, Target

__all__: list[str] = []  # this module only registers a task


@task("squared_lengths")
def _squared_lengths(
    task: Task,
    source: Source,
    weights: None,
    matrix: np.ndarray,
    shift: np.ndarray,
    offset: np.ndarray,
    target: Target,
) -> OwnRows:
    """Compute the squared lengths of ``(row - shift) @ matrix + offset``, with a matrix of shape (n_features, k).

    The squares are added up in float64.
    """
    rows = data_of(task, source).rows
    parts = (np.square(part, dtype=np.float64).sum(axis=1) for part in project(rows, matrix, shift, offset))
    write_block(task, target, source.bounds, parts)
    return {"rows": rows.n_samples}
