"""Rows compared with given centres: their labels, their inertia, and their distances to each centre."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.algorithms.clustering.ranges import ordinary, unit_of
from xpulab.engine.dataset import PassedRows, keep_rows, pieces, rows_of, weights_of, write_block
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.kmeans.choice import AnyRows, kernels_for
from xpulab.kernels.rows import Rows
from xpulab.sharing.answers import Found, OwnRows
from xpulab.sharing.sources import Handle, SharedArray, Source, Target

__all__ = ["parts"]


def parts(rows: AnyRows, labels: Any) -> Iterator[np.ndarray]:
    """Yield the labels on the host, a part at a time."""
    return (kernels_for(rows).labels_on_cpu(labels, last, first) for first, last in pieces(rows.n_samples, 4))


def _in_range(task: Task, rows: AnyRows, centers: np.ndarray) -> tuple[AnyRows, np.ndarray, float]:
    """Return rows and centres divided by a power of two, and this; it is 1 unless the centres are large or small."""
    largest = float(np.abs(centers).max())
    unit = 1.0 if ordinary(largest, centers.dtype) or not largest else unit_of(task, rows, largest)
    return kernels_for(rows).divided(rows, unit), centers / centers.dtype.type(unit), unit


@task("KMeans.predict")
def _kmeans_predict(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, target: Target | None, centers: np.ndarray
) -> Found:
    """Compute the labels if `target` is given; otherwise the inertia."""
    rows, centers, unit = _in_range(task, rows_of(task, source, weights_of(task, weights, source.bounds)), centers)
    shift = np.zeros(rows.n_features, rows.dtype)
    kernels = kernels_for(rows)
    shape = task.show_launch_shape(rows, len(centers))
    labels = kernels.new_labels(task.device, rows.n_samples)
    kernels.assign(rows, shift, centers, labels, again=False)
    if target is not None:
        write_block(task, target, source.bounds, parts(rows, labels))
        return {"rows": rows.n_samples, "launch_shape": shape}
    inertia = kernels.inertia(rows, shift, centers, labels)
    every = float(task.comm.allreduce(np.array([inertia]))[0]) * unit * unit
    return {"inertia": every, "rows": rows.n_samples, "launch_shape": shape}


@task("KMeans.transform")
def _kmeans_transform(
    task: Task, source: Source, weights: None, centers: np.ndarray, target: Target | None = None,
    kept: Handle | None = None,
) -> OwnRows:  # fmt: skip
    rows, centers, unit = _in_range(task, rows_of(task, source), centers)
    made = kernels_for(rows).transform(rows, centers)
    if unit != 1:
        made = (part * rows.dtype.type(unit) for part in made)
    if target is not None:
        write_block(task, target, source.bounds, made)
    if kept is not None:
        distances = np.concatenate([np.empty((0, len(centers)), rows.dtype), *made])
        keep_rows(task, Rows.upload(task.device, distances), kept)
    return {"rows": rows.n_samples}
