"""The losses of gradient boosting, as scikit-learn has them in ``sklearn/_loss``; an engine does not import it.

Each function gets some rows: targets (n,) and raw predictions (k, n) of the trees so far. `gradients` writes first and
second derivatives of the loss with respect to the raw predictions, and `values` returns the losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LOSSES", "Loss", "weighted_percentile"]

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes
    ----------
    gradients : callable
        Gets targets, raw predictions, and the quantile; returns gradients and second derivatives of shape (k, n).
    values : callable
        Gets the same, and returns the losses (n,).
    by_quantile : bool
        Whether leaves get a quantile of their rows' residuals.
    """

    gradients: Callable[[_Array, _Array, float], tuple[_Array, _Array]]
    values: Callable[[_Array, _Array, float], _Array]
    by_quantile: bool = False


def _squared(y: _Array, raw: _Array, _: float) -> tuple[_Array, _Array]:
    return raw - y, np.ones_like(raw)


def _squared_values(y: _Array, raw: _Array, _: float) -> _Array:
    return 0.5 * (raw[0] - y) ** 2


def _absolute(y: _Array, raw: _Array, _: float) -> tuple[_Array, _Array]:
    return np.where(raw > y, 1.0, -1.0), np.ones_like(raw)


def _absolute_values(y: _Array, raw: _Array, _: float) -> _Array:
    return np.abs(raw[0] - y)


def _pinball(y: _Array, raw: _Array, quantile: float) -> tuple[_Array, _Array]:
    return np.where(y >= raw, -quantile, 1 - quantile), np.ones_like(raw)


def _pinball_values(y: _Array, raw: _Array, quantile: float) -> _Array:
    return np.where(y >= raw[0], quantile * (y - raw[0]), (1 - quantile) * (raw[0] - y))


def _poisson(y: _Array, raw: _Array, _: float) -> tuple[_Array, _Array]:
    mean = np.exp(raw)
    return mean - y, mean


def _poisson_values(y: _Array, raw: _Array, _: float) -> _Array:
    return np.exp(raw[0]) - y * raw[0]


def _gamma(y: _Array, raw: _Array, _: float) -> tuple[_Array, _Array]:
    share = y * np.exp(-raw)
    return 1 - share, share


def _gamma_values(y: _Array, raw: _Array, _: float) -> _Array:
    return raw[0] + y * np.exp(-raw[0])


def _binomial(y: _Array, raw: _Array, _: float) -> tuple[_Array, _Array]:
    small = np.exp(-np.maximum(raw, -37))
    whole = 1 + small
    gradient, hessian = ((1 - y) - y * small) / whole, small / whole**2
    if (far := raw <= -37).any():
        hessian[far] = np.exp(raw[far])
        gradient[far] = hessian[far] - np.broadcast_to(y, raw.shape)[far]
    return gradient, hessian


def _binomial_values(y: _Array, raw: _Array, _: float) -> _Array:
    # log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
    return np.log1p(np.exp(-np.abs(raw[0]))) + np.maximum(raw[0], 0) - y * raw[0]


def _multinomial(y: _Array, raw: _Array, _: float) -> tuple[_Array, _Array]:
    shares = np.exp(raw - raw.max(axis=0))
    shares /= shares.sum(axis=0)
    return shares - (y == np.arange(len(raw))[:, None]), shares * (1 - shares)


def _multinomial_values(y: _Array, raw: _Array, _: float) -> _Array:
    most = raw.max(axis=0)
    of_class: _Array = raw[y.astype(np.intp), np.arange(len(y))]
    return np.log(np.exp(raw - most).sum(axis=0)) + most - of_class


#: Names of the losses; "binomial" and "multinomial" are scikit-learn's "log_loss".
LOSSES = {
    "absolute_error": Loss(_absolute, _absolute_values, by_quantile=True),
    "binomial": Loss(_binomial, _binomial_values),
    "gamma": Loss(_gamma, _gamma_values),
    "multinomial": Loss(_multinomial, _multinomial_values),
    "poisson": Loss(_poisson, _poisson_values),
    "quantile": Loss(_pinball, _pinball_values, by_quantile=True),
    "squared_error": Loss(_squared, _squared_values),
}


def weighted_percentile(values: _Array, weights: _Array, percents: _Array, average: bool = False) -> _Array:
    """Return percentiles of weighted numbers, as scikit-learn's ``_weighted_percentile``; NaN if all weights are 0.

    Parameters
    ----------
    values, weights : numpy.ndarray of shape (n,)
    percents : numpy.ndarray
    average : bool
        Whether a percentile that lies between two numbers is their mean; otherwise it is the lower one.
    """
    if not (weights != 0).any():
        return np.full(len(percents), np.nan)
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    sums, last = np.cumsum(weights), len(values) - 1
    wanted = percents / 100 * sums[-1]
    wanted[wanted == 0] = np.nextafter(0, 1)
    places = np.clip(np.searchsorted(sums, wanted), 0, last)
    found = values[places]
    if not average:
        return found
    between = sums[places] - wanted <= np.finfo(np.float64).eps
    following = np.searchsorted(sums, sums[places], side="right")  # the next one with a weight
    following = np.where(following > last, places, following)
    return np.where(between, (found + values[following]) / 2, found)
