"""Computes means and variances of two sets of rows together, and quantiles from neighbouring values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["interpolated", "merged", "midway"]

Floats = npt.NDArray[np.float64]


def merged(
    mean: Floats | float, variance: Floats | float | None, seen: Floats, new_mean: Floats, squares: Floats, new: Floats
) -> tuple[Floats, Floats | None, Floats]:
    """Merge the means, variances and sums of weights of earlier and new rows, by equations 1.5a and 1.5b of [1]_.

    As in scikit-learn, mean and variance of a column of NaN only are NaN, and the variance becomes NaN if all new
    values of a column are NaN.

    Parameters
    ----------
    mean, variance : numpy.ndarray of shape (n_features,), or 0.0 before the first rows
        Mean and variance of the earlier rows. If the variance is None, the resulting variance is None, too.
    seen : numpy.ndarray of shape (n_features,)
        Sum of the weights of the earlier values.
    new_mean, squares, new : numpy.ndarray of shape (n_features,)
        Mean of the new values, sum of their squared differences from it, and sum of their weights. Mean and squares of
        a column without values are NaN.

    Returns
    -------
    tuple of numpy.ndarray of shape (n_features,)
        Mean, variance, and the sum of the weights.

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
       recommendations", The American Statistician 37 (1983), 242-247.
    """
    total = seen + new
    away = new_mean - mean
    first = seen == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(new != 0, away * (new / total), 0.0)
        together = np.where(first & ~np.isnan(mean), new_mean, mean + shift)
        if variance is None:
            return together, None, total
        between = np.where(first, 0.0, seen * (new / total) * np.square(away))
        before = np.where(first, 0.0, variance * seen)
        return together, (before + squares + between) / total, total


def midway(lower: npt.NDArray[Any], upper: npt.NDArray[Any], fraction: Floats) -> npt.NDArray[Any]:
    """Return medians as `numpy.median`: the lower of two neighbouring values if the fraction is 0, else their mean.

    Parameters
    ----------
    lower, upper : numpy.ndarray of shape (n_features,)
        Neighbouring values, in the dtype of the rows.
    fraction : numpy.ndarray of float64 of shape (n_features,)
        Position of the median between them, from 0 to 1.

    Returns
    -------
    numpy.ndarray of shape (n_features,), in the dtype of the rows
    """
    return np.where(fraction == 0, lower, (lower + upper) / lower.dtype.type(2))


def interpolated(lower: npt.NDArray[Any], upper: npt.NDArray[Any], fraction: Floats) -> npt.NDArray[Any]:
    """Return the value between two neighbouring values of a sorted column, rounded as in `numpy.percentile`.

    Parameters
    ----------
    lower, upper : numpy.ndarray of shape (n_features,)
        Neighbouring values, in the dtype of the rows.
    fraction : numpy.ndarray of float64 of shape (n_features,)
        Position between them, from 0 to 1.

    Returns
    -------
    numpy.ndarray of float64 of shape (n_features,)
    """
    gap = upper - lower
    found = np.asarray(lower + gap * fraction)
    np.subtract(upper, gap * (1 - fraction), out=found, where=fraction >= 0.5)
    np.copyto(found, lower, where=lower == upper)
    return found
