"""Metrics of regressors over the rows of all engines: `r2_score` and `mean_squared_error`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import UndefinedMetricWarning

from xpulab.metrics._columns import checked_column, checked_weights, columns_of, require_aligned, sums

__all__ = ["mean_squared_error", "r2_score"]


def mean_squared_error(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> Any:
    """Return the mean of the squared differences, as `sklearn.metrics.mean_squared_error`.

    Parameters and result are those of scikit-learn's function.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    multioutput : {"raw_values", "uniform_average"} or array-like of shape (n_outputs,), default="uniform_average"
        "raw_values" returns a value for each output. An array has the weights of the outputs in the mean.

    Returns
    -------
    float or ndarray of float64 of shape (n_outputs,)

    Raises
    ------
    ValueError
        If the shapes differ, or for input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    found, how = _regression("mean_squared_error", y_true, y_pred, sample_weight, multioutput)
    errors = found["errors"] / found["weight"]
    if how is None:
        return errors
    return float(np.average(errors, weights=how if isinstance(how, np.ndarray) else None))


def r2_score(
    y_true: Any,
    y_pred: Any,
    *,
    sample_weight: Any = None,
    multioutput: Any = "uniform_average",
    force_finite: bool = True,
) -> Any:
    """Return the coefficient of determination, with the parameters and the result of `sklearn.metrics.r2_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    multioutput : {"raw_values", "uniform_average", "variance_weighted"}, array-like or None, default="uniform_average"
        "raw_values" returns a value for each output. An array has the weights of the outputs in the mean. None is the
        same as "uniform_average".
    force_finite : bool, default=True
        Whether a constant `y_true` gives 1 (if all predictions are exact) or 0, instead of NaN or minus infinity.

    Returns
    -------
    float or ndarray of float64 of shape (n_outputs,)

    Raises
    ------
    ValueError
        If the shapes differ, or for input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    found, how = _regression("r2_score", y_true, y_pred, sample_weight, multioutput)
    if found["n_samples"] < 2:
        warnings.warn("R^2 score is not well-defined with less than two samples.", UndefinedMetricWarning, stacklevel=2)
        return float("nan")
    errors, spread = found["errors"], found["spread"]
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = 1 - errors / spread
    if force_finite:
        scores = np.where(spread != 0, scores, np.where(errors == 0, 1.0, 0.0))
    if how is None:
        return scores
    if isinstance(how, str) and how == "variance_weighted":
        if not spread.any():
            return float(scores.mean())
        return float(np.average(scores, weights=spread))
    return float(np.average(scores, weights=how if isinstance(how, np.ndarray) else None))


def _regression(
    function: str, y_true: Any, y_pred: Any, sample_weight: Any, multioutput: Any
) -> tuple[dict[str, Any], Any]:
    """Return the sums from the engines, and how to average the outputs: None for no average, a name, or weights."""
    truth, predicted = checked_column(y_true, "y_true"), checked_column(y_pred, "y_pred")
    require_aligned(truth, predicted)
    n_outputs = columns_of(truth)
    if n_outputs != columns_of(predicted):
        raise ValueError(f"y_true and y_pred have different number of output ({n_outputs}!={columns_of(predicted)})")
    known = ("raw_values", "uniform_average", *(["variance_weighted"] if function == "r2_score" else []))
    how: Any = multioutput
    if isinstance(multioutput, str):
        if multioutput not in known:
            raise ValueError(f"multioutput={multioutput!r} was given; expected one of {', '.join(known)}, or weights")
        how = None if multioutput == "raw_values" else multioutput
    elif multioutput is None:
        how = "uniform_average"
    else:
        how = np.asarray(multioutput, np.float64)
        if n_outputs == 1:
            raise ValueError("Custom weights are useful only in multi-output cases.")
        if how.shape != (n_outputs,):
            raise ValueError("There must be equally many custom weights as outputs.")
    weights = checked_weights(sample_weight, truth)
    found = sums(function, "metrics.regression", truth, predicted, weights)
    return {**found, "n_samples": truth.shape[0]}, how
