"""Targets and weights of rows by their classes, for linear models that classify."""

from __future__ import annotations

import numpy as np

from xpulab.engine.algorithms.labels import codes_of
from xpulab.engine.algorithms.passes import any_data, whole_rows
from xpulab.engine.dataset import Data, PassedRows, rows_of, weights_of
from xpulab.engine.engine import Task
from xpulab.kernels.kmeans.sparse_rows import SparseRows
from xpulab.kernels.rows import Rows
from xpulab.sharing.linear_models import OfClasses
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["any_data_of_classes", "data_of_classes"]


def data_of_classes(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    of_classes: OfClasses | None,
) -> Data:
    """Return dense rows, with the targets and weights of their classes; with None, the targets that are given."""
    data = Data(task, source, weights, targets)
    if of_classes is not None:
        assert data.targets is not None
        data.targets, data.sample_weight = _by_class(data.targets, data.sample_weight, of_classes)
    return data


def any_data_of_classes(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    of_classes: OfClasses | None,
) -> tuple[Rows | SparseRows, Rows]:
    """Return dense or sparse rows and their targets, as `data_of_classes`."""
    if of_classes is None:
        return any_data(task, source, weights, targets)
    labels = rows_of(task, targets)
    assert isinstance(labels, Rows)
    made, mine = _by_class(labels, weights_of(task, weights, source.bounds), of_classes)
    return whole_rows(task, source, mine), made


def _by_class(labels: Rows, weights: np.ndarray | None, of_classes: OfClasses) -> tuple[Rows, np.ndarray | None]:
    """Return targets and weights for the labels of this rank's rows."""
    codes = codes_of(labels, of_classes.known).astype(np.intp)
    targets = Rows.upload(labels.device, of_classes.targets[codes].astype(labels.dtype))
    if of_classes.weights is None:
        return targets, weights
    mine = of_classes.weights[codes]
    return targets, mine if weights is None else mine * weights
