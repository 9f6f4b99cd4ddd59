"""Naive Bayes by counts: the sums of the rows of each class, and linear functions of rows, for dense and sparse rows.

The processors of the engines' hosts compute them in float64, as scikit-learn does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.class_sums import parts_of, sums_of
from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.naive_bayes.joint import KINDS
from xpulab.engine.dataset import Data, PassedRows, kind_of, rows_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans import sparse
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import ClassSums, OwnRows
from xpulab.sharing.sources import SharedArray, Source, Target

__all__: list[str] = []  # this module only registers tasks


@task("class_sums")
def _class_sums(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    known: np.ndarray | None,
    n_classes: int,
    threshold: float | None,
) -> ClassSums:
    """Return the sums of the rows of each class, and of their weights, and the smallest number."""
    if kind_of(task, source)[0] is sparse:
        rows, labels = rows_of(task, source, weights_of(task, weights, source.bounds)), rows_of(task, targets)
        assert isinstance(rows, SparseRows)
        assert isinstance(labels, Rows)
        parts: Any = [(rows, labels)]
        n_own, data = rows.n_samples, None
    else:
        data = Data(task, source, weights, targets)
        n_own, parts = data.n_own, data.parts()
    sums, totals, least = np.zeros((n_classes, source.n_features)), np.zeros(n_classes), 0.0
    for part, of_part in parts:
        task.check()
        codes = codes_of(of_part, known).astype(np.int64)
        found, smallest = sums_of(part, codes, n_classes, threshold)
        sums, least = sums + found, min(least, smallest)
        totals += np.bincount(codes, part.weights_on_cpu(), n_classes)
    sums, totals = task.comm.allreduce(sums), task.comm.allreduce(totals)
    if data is not None:
        data.require_finite(sums)
    least = float(task.comm.allreduce(np.array([least]), np.minimum)[0])
    return {"rows": n_own, "sums": sums, "weight": totals, "least": least}


@task("class_functions")
def _class_functions(
    task: Task,
    source: Source,
    weights: None,
    target: Target,
    coef: np.ndarray,
    intercept: np.ndarray,
    threshold: float | None,
    kind: str,
) -> OwnRows:
    """Write what `KINDS` makes of ``rows @ coef.T + intercept``, with a line of `coef` for each class."""
    rows = rows_of(task, source)
    assert isinstance(rows, Rows | SparseRows)
    factor = np.ascontiguousarray(coef.T)

    def made() -> Iterator[np.ndarray]:
        for _, part in parts_of(rows, threshold):
            with task.device.computing():
                found = KINDS[kind](part @ factor + intercept)
            yield found

    write_block(task, target, source.bounds, made())
    return {"rows": rows.n_samples}
