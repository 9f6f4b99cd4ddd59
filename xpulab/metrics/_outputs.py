"""Compares true values of one or more outputs with predictions, and averages what the engines have found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.estimator.rows import require_weight
from xpulab.metrics._columns import (
    Values,
    checked_column,
    checked_score_weights,
    columns_of,
    read_by_engines,
    require_aligned,
    sums,
)
from xpulab.sharing.answers_of_scores import Losses

__all__ = ["Compared", "averaged", "compared", "explained", "mean_losses", "quantile"]

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Compared:
    """Columns of true values and of predictions, as the engines get them.

    Attributes
    ----------
    function : str
        Name of the metric.
    truth, predicted : numpy.ndarray of shape (n_samples, n_outputs) or ShardedArray
    weights : numpy.ndarray or ScannedColumn of shape (n_samples,) or None
    how : str, numpy.ndarray or None
        How to average the outputs: None for no average, a name, or weights.
    """

    function: str
    truth: Any
    predicted: Any
    weights: Any
    how: Any

    @property
    def n_outputs(self) -> int:
        """Number of columns."""
        return columns_of(self.truth)

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.truth.shape[0])

    def ask(self, task: str, **arguments: Any) -> dict[str, Any]:
        """Run a task on the engines, and return the result of rank 0.

        Raises
        ------
        ZeroDivisionError
            If the weights add up to zero.
        """
        found = sums(self.function, task, self.truth, self.predicted, self.weights, **arguments)
        require_weight(found.get("weight", 1))
        return found


def compared(
    function: str, y_true: Values, y_pred: Values, sample_weight: Values | None, multioutput: npt.ArrayLike | None
) -> Compared:
    """Check true values, predictions, weights, and how to average the outputs."""
    y_true, y_pred = read_by_engines(y_true, y_pred)
    truth, predicted = checked_column(y_true, "y_true"), checked_column(y_pred, "y_pred")
    require_aligned(truth, predicted)
    n_outputs = columns_of(truth)
    if n_outputs != columns_of(predicted):
        raise ValueError(f"y_true and y_pred have different number of output ({n_outputs}!={columns_of(predicted)})")
    how = "uniform_average" if multioutput is None else multioutput
    if not isinstance(how, str):
        how = np.asarray(how, np.float64)
        if n_outputs == 1:
            raise ValueError("Custom weights are useful only in multi-output cases.")
        if how.shape != (n_outputs,):
            raise ValueError(f"There must be equally many custom weights ({len(how)}) as outputs ({n_outputs}).")
    weights = checked_score_weights(sample_weight, truth)
    return Compared(function, truth, predicted, weights, None if isinstance(how, str) and how == "raw_values" else how)


def mean_losses(
    columns: Compared, loss: str, parameter: float = 0.0, instead: _Array | None = None
) -> tuple[_Array, Losses]:
    """Return the mean losses by column, and what else the task has found."""
    found: Any = columns.ask("metrics.losses", loss=loss, parameter=float(parameter), instead=instead)
    return found["total"] / found["weight"], found


def averaged(values: _Array, how: Any) -> Any:
    """Return the average of the outputs, or the values of all outputs."""
    if how is None:
        return values
    return float(np.average(values, weights=how if isinstance(how, np.ndarray) else None))


def explained(errors: _Array, spread: _Array, how: Any, force_finite: bool) -> Any:
    """Return 1 less the share of the errors in the spread, averaged over the outputs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = 1 - errors / spread
    if force_finite:
        scores = np.where(spread != 0, scores, np.where(errors == 0, 1.0, 0.0))
    if isinstance(how, str) and how == "variance_weighted":
        how = spread if spread.any() else "uniform_average"
    return averaged(scores, how)


def quantile(values: _Array, weights: _Array, share: float) -> float:
    """Return a quantile of distinct values in ascending order, as scikit-learn takes it of rows with weights.

    Where the weights below the quantile are exactly its share, it is the mean of the values on both sides.
    """
    values, weights = values[weights != 0], weights[weights != 0]
    if not len(values):
        return float("nan")
    below = np.cumsum(weights)
    wanted = share * below[-1] or np.nextafter(0.0, 1.0)
    place = min(int(np.searchsorted(below, wanted)), len(values) - 1)
    if below[place] - wanted > np.finfo(np.float64).eps:
        return float(values[place])
    return float((values[place] + values[min(place + 1, len(values) - 1)]) / 2)
