"""Sums from which metrics are computed. Each rank adds up its rows on the host in float64, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xpulab.engine.dataset import Data, data_of, pieces
from xpulab.engine.engine import Task, task
from xpulab.kernels.row_passes import consecutive, take
from xpulab.kernels.rows import Rows

__all__ = ["confusion", "distinct", "log_losses", "regression_sums"]


def _pairs(data: Data) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows, targets and weights on the host, a part at a time."""
    rows, targets = data.rows, data.targets
    assert targets is not None
    weights = rows.host_weights()
    row_bytes = max(rows.n_features, targets.n_features) * 8
    for first, last in pieces(rows.n_samples, row_bytes):
        places = np.arange(first, last)
        yield take(rows, places), take(targets, places), weights[first:last]


def regression_sums(task: Task, data: Data) -> dict[str, np.ndarray]:
    """Sum by column the weights, the squared errors, and the squared differences of true values from their mean.

    The rows of `data` are the true values, and its targets are the predictions.
    """
    t = data.rows.n_features
    sums = np.zeros((2, t))
    for truth, _, weights in _pairs(data):
        sums[0] += weights.sum()
        sums[1] += weights @ truth.astype(np.float64)
    weight, total = task.comm.allreduce(sums)
    mean = np.divide(total, weight, out=np.zeros(t), where=weight != 0)
    task.check()
    squares = np.zeros((2, t))
    for truth, predicted, weights in _pairs(data):
        exact = truth.astype(np.float64)
        squares[0] += weights @ np.square(exact - predicted)
        squares[1] += weights @ np.square(exact - mean)
    errors, spread = task.comm.allreduce(squares)
    return {"weight": weight, "errors": errors, "spread": spread}


def distinct(task: Task, rows: Rows) -> np.ndarray:
    """Return the distinct numbers in the rows of all ranks, in ascending order."""
    found = np.empty(0, rows.dtype)
    for first, last in pieces(rows.n_samples, rows.n_features * rows.dtype.itemsize):
        found = np.union1d(found, consecutive(rows, first, last))
    return np.unique(np.concatenate(task.comm.allgather(found)))


def confusion(task: Task, data: Data, labels: np.ndarray) -> np.ndarray:
    """Sum the weights by true and predicted label: float64 of shape (n_labels, n_labels).

    Rows whose true or predicted label is not in `labels` are ignored. `labels` must be in ascending order.
    """
    k = len(labels)
    counts = np.zeros(k * k)
    for truth, predicted, weights in _pairs(data):
        true, known = _places(labels, truth[:, 0])
        guess, also = _places(labels, predicted[:, 0])
        count = known & also
        counts += np.bincount(true[count] * k + guess[count], weights[count], k * k)
    return task.comm.allreduce(counts).reshape(k, k)


def agreeing(task: Task, data: Data) -> tuple[float, float]:
    """Sum of the weights of rows that equal their targets in all columns, and of all rows."""
    sums = np.zeros(2)
    for truth, predicted, weights in _pairs(data):
        sums += weights[(truth == predicted).all(axis=1)].sum(), weights.sum()
    equal, every = task.comm.allreduce(sums)
    return float(equal), float(every)


def log_losses(task: Task, data: Data, labels: np.ndarray) -> dict[str, Any]:
    """Sum of the losses, sum of the weights, and the largest difference from 1 of a row's sum of probabilities.

    The rows of `data` are the probabilities, and its targets are the labels. As in scikit-learn, probabilities are
    clipped to at least the machine epsilon of their dtype.
    """
    eps = float(np.finfo(data.rows.dtype).eps)
    sums, worst, low, high = np.zeros(2), 0.0, np.inf, -np.inf
    unknown = False
    for probabilities, truth, weights in _pairs(data):
        given = probabilities.astype(np.float64)
        low, high = min(low, given.min(initial=np.inf)), max(high, given.max(initial=-np.inf))
        if given.shape[1] == 1:
            given = np.hstack([1 - given, given])
        worst = max(worst, float(np.abs(given.sum(axis=1) - 1).max(initial=0.0)))
        place, known = _places(labels, truth[:, 0])
        unknown |= not known.all()
        given = np.clip(given, eps, 1 - eps)
        given /= given.sum(axis=1, keepdims=True)
        width = given.shape[1]
        sums += weights @ -np.log(given[np.arange(len(place)), np.minimum(place, width - 1)]), weights.sum()
    total, weight = task.comm.allreduce(sums)
    worst, high, low, missing = task.comm.allreduce(np.array([worst, high, -low, float(unknown)]), np.maximum)
    return {
        "total": float(total),
        "weight": float(weight),
        "worst": float(worst),
        "lowest": -float(low),
        "highest": float(high),
        "unknown": bool(missing),
    }


def _places(labels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each value in the labels (in ascending order), and whether the labels contain the value."""
    place = np.minimum(np.searchsorted(labels, values), len(labels) - 1)
    return place, labels[place] == values


@task("metrics.regression")
def _regression(
    task: Task, source: dict[str, Any], weights: dict[str, Any] | None, targets: dict[str, Any]
) -> dict[str, Any]:
    data = data_of(task, source, weights, targets)
    return {"rows": data.rows.n_samples, **regression_sums(task, data)}


@task("metrics.distinct")
def _distinct(task: Task, source: dict[str, Any], weights: None) -> dict[str, Any]:
    rows = data_of(task, source).rows
    return {"rows": rows.n_samples, "labels": distinct(task, rows)}


@task("metrics.confusion")
def _confusion(
    task: Task, source: dict[str, Any], weights: dict[str, Any] | None, targets: dict[str, Any], labels: np.ndarray
) -> dict[str, Any]:
    data = data_of(task, source, weights, targets)
    return {"rows": data.rows.n_samples, "counts": confusion(task, data, labels)}


@task("metrics.agreeing")
def _agreeing(
    task: Task, source: dict[str, Any], weights: dict[str, Any] | None, targets: dict[str, Any]
) -> dict[str, Any]:
    data = data_of(task, source, weights, targets)
    equal, every = agreeing(task, data)
    return {"rows": data.rows.n_samples, "equal": equal, "weight": every}


@task("metrics.log_loss")
def _log_loss(
    task: Task, source: dict[str, Any], weights: dict[str, Any] | None, targets: dict[str, Any], labels: np.ndarray
) -> dict[str, Any]:
    data = data_of(task, source, weights, targets)
    return {"rows": data.rows.n_samples, **log_losses(task, data, labels)}
