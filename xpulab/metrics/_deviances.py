"""Metrics of regressors over the rows of all engines: pinball losses, deviances, and the shares that are explained."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import UndefinedMetricWarning

from xpulab.metrics._columns import Values, as_in_sklearn
from xpulab.metrics._outputs import Compared, averaged, compared, explained, mean_losses, quantile

__all__ = [
    "d2_absolute_error_score",
    "d2_pinball_score",
    "d2_tweedie_score",
    "mean_gamma_deviance",
    "mean_pinball_loss",
    "mean_poisson_deviance",
    "mean_tweedie_deviance",
]


@as_in_sklearn
def mean_pinball_loss(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    alpha: float = 0.5,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the mean loss of predicted quantiles, as `sklearn.metrics.mean_pinball_loss`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    alpha : float, default=0.5
        The quantile that the predictions are of, from 0 to 1.
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
    columns = compared("mean_pinball_loss", y_true, y_pred, sample_weight, multioutput)
    return averaged(mean_losses(columns, "pinball", alpha)[0], columns.how)


@as_in_sklearn
def mean_tweedie_deviance(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    power: float = 0,
) -> float:
    """Return the mean deviance of a Tweedie distribution, as `sklearn.metrics.mean_tweedie_deviance`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    power : float, default=0
        The power of the mean that the variance is: 0 for a normal distribution, 1 for Poisson's, 2 for gamma.

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
    columns = compared("mean_tweedie_deviance", y_true, y_pred, sample_weight, "uniform_average")
    return _deviance(columns, power)


@as_in_sklearn
def mean_poisson_deviance(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
) -> float:
    """Return the mean deviance of a Poisson distribution, as `sklearn.metrics.mean_poisson_deviance`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.

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
    columns = compared("mean_poisson_deviance", y_true, y_pred, sample_weight, "uniform_average")
    return _deviance(columns, 1)


@as_in_sklearn
def mean_gamma_deviance(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
) -> float:
    """Return the mean deviance of a gamma distribution, as `sklearn.metrics.mean_gamma_deviance`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.

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
    columns = compared("mean_gamma_deviance", y_true, y_pred, sample_weight, "uniform_average")
    return _deviance(columns, 2)


@as_in_sklearn
def d2_tweedie_score(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    power: float = 0,
) -> float:
    """Return the share of the Tweedie deviance that predictions explain, as `sklearn.metrics.d2_tweedie_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    power : float, default=0
        The power of the mean that the variance is: 0 for a normal distribution, 1 for Poisson's, 2 for gamma.

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
    columns = compared("d2_tweedie_score", y_true, y_pred, sample_weight, "uniform_average")
    if columns.n_outputs > 1:
        raise ValueError("Multioutput not supported in d2_tweedie_score")
    if _too_few(columns):
        return float("nan")
    numerator = _deviance(columns, power)
    mean = columns.ask("metrics.regression")["mean"]
    denominator = mean_losses(columns, "tweedie", power, mean)[0][0]
    return float(1 - numerator / denominator)


@as_in_sklearn
def d2_pinball_score(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    alpha: float = 0.5,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the share of the pinball loss that predictions explain, as `sklearn.metrics.d2_pinball_score`.

    The ranks sort the values, and the distinct ones of all ranks come to this process: 16 bytes for each.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
        The right values and the predictions.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    alpha : float, default=0.5
        The quantile that the predictions are of, from 0 to 1.
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
    columns = compared("d2_pinball_score", y_true, y_pred, sample_weight, multioutput)
    return _d2_pinball(columns, alpha)


@as_in_sklearn
def d2_absolute_error_score(
    y_true: Values,
    y_pred: Values,
    *,
    sample_weight: Values | None = None,
    multioutput: npt.ArrayLike | None = "uniform_average",
) -> Any:
    """Return the share of the absolute error that predictions explain, as `sklearn.metrics.d2_absolute_error_score`.

    The ranks sort the values, and the distinct ones of all ranks come to this process: 16 bytes for each.

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
    columns = compared("d2_absolute_error_score", y_true, y_pred, sample_weight, multioutput)
    return _d2_pinball(columns, 0.5)


def _deviance(columns: Compared, power: float) -> float:
    """Return the mean deviance; raise ValueError if it is not defined for a value."""
    if columns.n_outputs > 1:
        raise ValueError("Multioutput not supported in mean_tweedie_deviance")
    means, found = mean_losses(columns, "tweedie", power)
    truth, guess = found["lowest"][0], found["lowest_guess"][0]
    message = f"Mean Tweedie deviance error with power={power} can only be used on "
    if power < 0 and guess <= 0:
        raise ValueError(message + "strictly positive y_pred.")
    if 1 <= power < 2 and (truth < 0 or guess <= 0):
        raise ValueError(message + "non-negative y and strictly positive y_pred.")
    if power >= 2 and min(truth, guess) <= 0:
        raise ValueError(message + "strictly positive y and y_pred.")
    return float(means[0])


def _d2_pinball(columns: Compared, alpha: float) -> Any:
    if _too_few(columns):
        return float("nan")
    numerator = mean_losses(columns, "pinball", alpha)[0]
    denominator = []
    for table in columns.ask("metrics.errors", of="truth")["tables"]:
        values, weights = table["values"], table["weights"]
        error = values - quantile(values, weights, alpha)
        losses = np.where(error >= 0, alpha * error, (alpha - 1) * error)
        denominator.append(np.average(losses, weights=weights))
    return explained(numerator, np.array(denominator), columns.how, True)


def _too_few(columns: Compared) -> bool:
    if columns.n_samples < 2:
        said = "D^2 score is not well-defined with less than two samples."
        warnings.warn(said, UndefinedMetricWarning, stacklevel=4)
    return columns.n_samples < 2
