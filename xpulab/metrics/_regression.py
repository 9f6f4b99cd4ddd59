"""Metrics of regressors over the rows of all engines: squared, absolute and logarithmic errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import UndefinedMetricWarning

from xpulab.metrics._columns import Values, as_in_sklearn
from xpulab.metrics._outputs import averaged, compared, explained, mean_losses, quantile

__all__ = [
    "explained_variance_score",
    "max_error",
    "mean_absolute_error",
    "mean_absolute_percentage_error",
    "mean_squared_error",
    "mean_squared_log_error",
    "median_absolute_error",
    "r2_score",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
]


@as_in_sklearn
def mean_squared_error(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the mean of the squared differences, as `sklearn.metrics.mean_squared_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    errors, how = _squared_errors("mean_squared_error", y_true, y_pred, sample_weight, multioutput)
    return averaged(errors, how)


@as_in_sklearn
def root_mean_squared_error(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the root of the mean of the squared differences, as `sklearn.metrics.root_mean_squared_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    errors, how = _squared_errors("root_mean_squared_error", y_true, y_pred, sample_weight, multioutput)
    return averaged(np.sqrt(errors), how)


@as_in_sklearn
def mean_absolute_error(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the mean of the absolute differences, as `sklearn.metrics.mean_absolute_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    columns = compared("mean_absolute_error", y_true, y_pred, sample_weight, multioutput)
    return averaged(mean_losses(columns, "absolute")[0], columns.how)


@as_in_sklearn
def mean_absolute_percentage_error(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the mean of the relative differences, as `sklearn.metrics.mean_absolute_percentage_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    columns = compared("mean_absolute_percentage_error", y_true, y_pred, sample_weight, multioutput)
    return averaged(mean_losses(columns, "percentage")[0], columns.how)


@as_in_sklearn
def mean_squared_log_error(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the mean of the squared differences of logarithms, as `sklearn.metrics.mean_squared_log_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    errors, how = _log_errors("mean_squared_log_error", y_true, y_pred, sample_weight, multioutput)
    return averaged(errors, how)


@as_in_sklearn
def root_mean_squared_log_error(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the root of the mean squared difference of logarithms, as `sklearn.metrics.root_mean_squared_log_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    errors, how = _log_errors("root_mean_squared_log_error", y_true, y_pred, sample_weight, multioutput)
    return averaged(np.sqrt(errors), how)


@as_in_sklearn
def median_absolute_error(
    y_true: Values,
    y_pred: Values,
    *,
    multioutput: npt.ArrayLike | None = "uniform_average",
    sample_weight: Values | None = None,
) -> Any:
    """Return the median of the absolute differences, as `sklearn.metrics.median_absolute_error`.

    The ranks sort the values, and the distinct ones of all ranks come to this process: 16 bytes for each.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
    multioutput : {"raw_values", "uniform_average"} or array-like of shape (n_outputs,), default="uniform_average"
        "raw_values" returns a value for each output. An array has the weights of the outputs in the mean.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.

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
    columns = compared("median_absolute_error", y_true, y_pred, sample_weight, multioutput)
    tables = columns.ask("metrics.errors", of="errors")["tables"]
    return averaged(np.array([quantile(table["values"], table["weights"], 0.5) for table in tables]), columns.how)


@as_in_sklearn
def max_error(y_true: Values, y_pred: Values) -> float:
    """Return the largest absolute difference, as `sklearn.metrics.max_error`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        The right values and the predictions.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the shapes differ, or for input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    columns = compared("max_error", y_true, y_pred, None, "uniform_average")
    if columns.n_outputs > 1:
        raise ValueError("Multioutput not supported in max_error")
    return float(mean_losses(columns, "absolute")[1]["largest"][0])


@as_in_sklearn
def explained_variance_score(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
    force_finite: bool = True,
) -> Any:
    """Return the share of the variance that predictions explain, as `sklearn.metrics.explained_variance_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    multioutput : {"raw_values", "uniform_average", "variance_weighted"} or array-like, default="uniform_average"
        "raw_values" returns a value for each output. An array has the weights of the outputs in the mean.
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
    columns = compared("explained_variance_score", y_true, y_pred, sample_weight, multioutput)
    found = columns.ask("metrics.regression")
    return explained(found["unexplained"], found["spread"], columns.how, force_finite)


@as_in_sklearn
def r2_score(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
    force_finite: bool = True,
) -> Any:
    """Return the coefficient of determination, as `sklearn.metrics.r2_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
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
    columns = compared("r2_score", y_true, y_pred, sample_weight, multioutput)
    if columns.n_samples < 2:
        warnings.warn("R^2 score is not well-defined with less than two samples.", UndefinedMetricWarning, stacklevel=2)
        return float("nan")
    found = columns.ask("metrics.regression")
    return explained(found["errors"], found["spread"], columns.how, force_finite)


def _squared_errors(
    function: str, y_true: Values, y_pred: Values, sample_weight: Values | None, multioutput: npt.ArrayLike | None
) -> tuple[np.ndarray, Any]:
    columns = compared(function, y_true, y_pred, sample_weight, multioutput)
    found = columns.ask("metrics.regression")
    return found["errors"] / found["weight"], columns.how


def _log_errors(
    function: str, y_true: Values, y_pred: Values, sample_weight: Values | None, multioutput: npt.ArrayLike | None
) -> tuple[np.ndarray, Any]:
    columns = compared(function, y_true, y_pred, sample_weight, multioutput)
    errors, found = mean_losses(columns, "squared_log")
    if min(found["lowest"].min(), found["lowest_guess"].min()) <= -1:
        name = ("Root " if function.startswith("root") else "") + "Mean Squared Logarithmic Error"
        raise ValueError(f"{name} cannot be used when targets contain values less than or equal to -1.")
    return errors, columns.how
