"""Sums from which metrics are computed. Each rank adds up its rows on the host in float64, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xpulab.engine.dataset import Data, PassedRows
from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.kernels.row_passes import consecutive
from xpulab.kernels.streamed import on_cpu
from xpulab.sharing.answers_of_scores import Agreeing, Losses, LossesOfColumns, ProbabilityLoss, ProbabilityLosses
from xpulab.sharing.sources import SharedArray, Source

__all__ = ["agreeing", "losses", "pairs_of", "places", "probability_losses", "regression_sums"]


def pairs_of(data: Data) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows, targets and weights on the host, a part at a time."""
    rows, targets = data.block, data.targets
    assert targets is not None
    weights = rows.weights_on_cpu()
    for first, some in on_cpu(rows):
        last = first + len(some)
        yield some, consecutive(targets, first, last), weights[first:last]
    data.require_finite()


def regression_sums(task: Task, data: Data) -> dict[str, np.ndarray]:
    """Sum by column the weights, the squared errors, and the squared differences of values from their means.

    The rows of `data` are the true values, and its targets are the predictions. `spread` is that of the true values,
    and `unexplained` that of the errors.
    """
    t = data.n_features
    sums = np.zeros((3, t))
    for truth, predicted, weights in pairs_of(data):
        exact = truth.astype(np.float64)
        sums[0] += weights.sum()
        sums[1] += weights @ exact
        sums[2] += weights @ (exact - predicted)
    weight, *totals = task.comm.allreduce(sums)
    mean, bias = np.divide(totals, weight, out=np.zeros((2, t)), where=weight != 0)
    task.check()
    squares = np.zeros((3, t))
    for truth, predicted, weights in pairs_of(data):
        exact = truth.astype(np.float64)
        error = exact - predicted
        squares += weights @ np.square(error), weights @ np.square(exact - mean), weights @ np.square(error - bias)
    errors, spread, unexplained = task.comm.allreduce(squares)
    return {"weight": weight, "mean": mean, "errors": errors, "spread": spread, "unexplained": unexplained}


def _tweedie(y: np.ndarray, guess: np.ndarray, power: float) -> np.ndarray:
    """Return the deviances of a Tweedie distribution, as `sklearn.metrics.mean_tweedie_deviance` defines them."""
    if power == 0:
        return np.square(y - guess)
    if power == 1:
        ratio = np.where(y == 0, 1.0, y / guess)
        return 2 * (y * np.log(ratio) - y + guess)
    if power == 2:
        return 2 * (np.log(guess / y) + y / guess - 1)
    above = np.maximum(y, 0.0) if power < 0 else y
    return 2 * (
        np.power(above, 2 - power) / ((1 - power) * (2 - power))
        - y * np.power(guess, 1 - power) / (1 - power)
        + np.power(guess, 2 - power) / (2 - power)
    )


def _pinball(y: np.ndarray, guess: np.ndarray, alpha: float) -> np.ndarray:
    error = y - guess
    return np.where(error >= 0, alpha * error, (alpha - 1) * error)


def _percentage(y: np.ndarray, guess: np.ndarray, _: float) -> np.ndarray:
    return np.abs(guess - y) / np.maximum(np.abs(y), np.finfo(np.float64).eps)


#: The losses of true values and predictions, with a parameter that some of them have.
_LOSSES: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "absolute": lambda y, guess, _: np.abs(guess - y),
    "percentage": _percentage,
    "pinball": _pinball,
    "squared_log": lambda y, guess, _: np.square(np.log1p(y) - np.log1p(guess)),
    "tweedie": _tweedie,
}


def losses(task: Task, data: Data, loss: str, parameter: float = 0.0, instead: np.ndarray | None = None) -> Losses:
    """Sum the losses of all rows by column, and find the lowest true value and prediction, and the largest loss.

    `instead` are predictions of the columns that are the same for all rows, in place of the targets.
    """
    t = data.n_features
    sums, ends = np.zeros((2, t)), np.full((3, t), -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):  # values for which a loss is not defined raise an error later
        for truth, targets, weights in pairs_of(data):
            if not len(truth):
                continue
            exact = truth.astype(np.float64)
            guess = targets.astype(np.float64) if instead is None else np.broadcast_to(instead, truth.shape)
            found = _LOSSES[loss](exact, guess, parameter)
            sums[0] += weights.sum()
            sums[1] += weights @ found
            ends = np.maximum(ends, [(-exact).max(axis=0), (-guess).max(axis=0), found.max(axis=0)])
    weight, total = task.comm.allreduce(sums)
    truth_end, guess_end, largest = task.comm.allreduce(ends, np.maximum)
    return {"weight": weight, "total": total, "lowest": -truth_end, "lowest_guess": -guess_end, "largest": largest}


def agreeing(task: Task, data: Data) -> tuple[float, float, np.ndarray]:
    """Sum the weights of rows that equal their targets in all columns, and of all rows.

    The third result has the largest magnitude of the rows, and that of the targets.
    """
    sums, largest = np.zeros(2), np.zeros(2)
    for truth, predicted, weights in pairs_of(data):
        sums += weights[(truth == predicted).all(axis=1)].sum(), weights.sum()
        largest = np.maximum(largest, [np.abs(each).max(initial=0.0) for each in (truth, predicted)])
    equal, every = task.comm.allreduce(sums)
    return float(equal), float(every), task.comm.allreduce(largest, np.maximum)


def probability_losses(task: Task, data: Data, labels: np.ndarray, classes: np.ndarray) -> ProbabilityLosses:
    """Sum the logarithmic and the squared losses of probabilities, and the weights.

    The rows of `data` are the probabilities, and its targets are the labels: `labels` has all of them in ascending
    order, and `classes` the column that has the probabilities of each. A single column has those of class 1. For
    logarithms probabilities are clipped, as in scikit-learn, to at least the machine epsilon of their dtype.
    """
    eps = float(np.finfo(data.dtype).eps)
    sums, worst, low, high = np.zeros(3), 0.0, np.inf, -np.inf
    for probabilities, truth, weights in pairs_of(data):
        given = probabilities.astype(np.float64)
        low, high = min(low, given.min(initial=np.inf)), max(high, given.max(initial=-np.inf))
        if given.shape[1] == 1:
            given = np.hstack([1 - given, given])
        worst = max(worst, float(np.abs(given.sum(axis=1) - 1).max(initial=0.0)))
        own = np.arange(len(given)), classes[places(labels, truth[:, 0])[0]]
        missed = given.copy()
        missed[own] -= 1
        given = np.clip(given, eps, 1 - eps)
        given /= given.sum(axis=1, keepdims=True)
        sums += weights @ -np.log(given[own]), weights @ np.square(missed).sum(axis=1), weights.sum()
    total, squares, weight = task.comm.allreduce(sums)
    worst, high, low = task.comm.allreduce(np.array([worst, high, -low]), np.maximum)
    return {
        "total": float(total),
        "squares": float(squares),
        "weight": float(weight),
        "worst": float(worst),
        "lowest": -float(low),
        "highest": float(high),
    }


def places(labels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each value in the labels (in ascending order), and whether the labels contain the value."""
    place = np.minimum(np.searchsorted(labels, values), len(labels) - 1)
    return place, labels[place] == values


@task("metrics.regression")
def _regression(
    task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source
) -> dict[str, Any]:
    data = Data(task, source, weights, targets)
    return {"rows": data.n_own, **regression_sums(task, data)}


@task("metrics.agreeing")
def _agreeing(task: Task, source: Source, weights: SharedArray | PassedRows | None, targets: Source) -> Agreeing:
    data = Data(task, source, weights, targets)
    equal, every, largest = agreeing(task, data)
    return {"rows": data.n_own, "equal": equal, "weight": every, "largest": largest}


@task("metrics.probabilities")
def _probabilities(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    labels: np.ndarray,
    classes: np.ndarray,
) -> ProbabilityLoss:
    data = Data(task, source, weights, targets)
    return {"rows": data.n_own, **probability_losses(task, data, labels, classes)}


@task("metrics.losses")
def _losses(
    task: Task,
    source: Source,
    weights: SharedArray | PassedRows | None,
    targets: Source,
    loss: str,
    parameter: float = 0.0,
    instead: np.ndarray | None = None,
) -> LossesOfColumns:
    data = Data(task, source, weights, targets)
    return {"rows": data.n_own, **losses(task, data, loss, parameter, instead)}
