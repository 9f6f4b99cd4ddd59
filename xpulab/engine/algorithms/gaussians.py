"""The parameters of a mixture of normal distributions, from sums over the rows: NumPy alone, without rows or ranks.

References
----------
.. [1] scikit-learn's ``sklearn/mixture/_gaussian_mixture.py``: the formulas follow it, also the small number that is
   added to the weight of each component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xpulab.kernels.mixture import Densities, Sums

__all__ = ["Parameters", "densities_of", "factors_of", "is_full", "parameters_of"]

_ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical covariance (for instance "
    "caused by singleton or collapsed samples). Try to decrease the number of components, increase reg_covar, or scale "
    "the input data."
)
_PASS_FLOAT64 = " The numerical accuracy can also be improved by passing float64 data instead of float32."


@dataclass(frozen=True)
class Parameters:
    """The parameters of a mixture, in float64 and in the shapes of scikit-learn.

    Attributes
    ----------
    weights : numpy.ndarray of shape (n_components,)
    means : numpy.ndarray of shape (n_components, n_features)
    covariances : numpy.ndarray
        Of the shape for the type of covariance.
    factors : numpy.ndarray
        scikit-learn's ``precisions_cholesky_``, of the same shape.
    """

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    factors: np.ndarray


def is_full(covariance_type: str) -> bool:
    """Return whether the type of covariance needs all products of the columns."""
    return covariance_type in ("full", "tied")


def parameters_of(
    sums: Sums,
    covariance_type: str,
    reg_covar: float,
    dtype: np.dtype[Any],
    others: np.ndarray | None = None,
    factors: np.ndarray | None = None,
) -> Parameters:
    """Compute the parameters that maximise the likelihood for given responsibilities.

    Parameters
    ----------
    sums : Sums
        Over all rows.
    covariance_type : {"full", "tied", "diag", "spherical"}
    reg_covar : float
        Added to the variances.
    dtype : numpy.dtype
        The dtype of the rows, for messages. The sums are in float64 in any case, and so is the number that is added to
        the weight of each component.
    others : numpy.ndarray of shape (n_features, n_features), optional
        Products of the columns of rows that belong to no component; scikit-learn adds them to a tied covariance.
    factors : numpy.ndarray, optional
        Factors that take the place of those of the covariances.

    Returns
    -------
    Parameters
        The weights are not normalised.

    Raises
    ------
    ValueError
        If a covariance is not positive definite.
    """
    c, first, second = sums.centers, sums.first, sums.second
    added = 10 * float(np.finfo(np.float64).eps)
    weights = sums.weight + added
    rest = (added / weights)[:, None]  # the part of each weight that belongs to no row
    step = first / weights[:, None]
    means = c * (1 - rest) + step
    if covariance_type == "full":
        away = c * rest - step  # from the mean to the center
        products = second + _outer(first, away) + _outer(away, first) + sums.weight[:, None, None] * _outer(away, away)
        covariances = products / weights[:, None, None]
    elif covariance_type == "tied":
        # The products of the rows about the origin, minus those of the means, with large terms that cancel left out.
        products = second - _outer(first, step)
        products += rest[:, :, None] * (_outer(c, first) + _outer(first, c) + sums.weight[:, None, None] * _outer(c, c))
        covariances = (products.sum(axis=0) + (0.0 if others is None else others)) / weights.sum()
    else:
        covariances = second / weights[:, None] - step**2 + rest * (2 * c * step + (1 - rest) * c**2)
        if covariance_type == "spherical":
            covariances = covariances.mean(axis=1)
    covariances = covariances + reg_covar * (np.eye(c.shape[1]) if is_full(covariance_type) else 1.0)
    if factors is None:
        factors = factors_of(covariances, covariance_type, dtype)
    return Parameters(weights, means, covariances, factors)


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, :, None] * b[:, None, :]


def factors_of(covariances: np.ndarray, covariance_type: str, dtype: np.dtype[Any]) -> np.ndarray:
    """Return upper triangular factors of the inverses of the covariances, or the inverses of standard deviations.

    Raises
    ------
    ValueError
        If a covariance is not positive definite, or not finite.
    """
    message = _ILL_DEFINED + (_PASS_FLOAT64 if dtype == np.float32 else "")
    if not np.isfinite(covariances).all():
        raise ValueError(message)
    if not is_full(covariance_type):
        if (covariances <= 0).any():
            raise ValueError(message)
        return 1 / np.sqrt(covariances)
    try:
        lower = np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        raise ValueError(message) from None
    solved = np.linalg.solve(lower, np.broadcast_to(np.eye(covariances.shape[-1]), lower.shape))
    return np.triu(solved.swapaxes(-1, -2))


def densities_of(parameters: Parameters, covariance_type: str) -> Densities:
    """Return the densities of the components, times their weights."""
    k, d = parameters.means.shape
    factors = parameters.factors
    if covariance_type == "spherical":
        factors = np.repeat(factors[:, None], d, axis=1)
    elif covariance_type == "tied":
        factors = np.broadcast_to(factors, (k, d, d))
    diagonals = np.einsum("kii->ki", factors) if factors.ndim == 3 else factors
    with np.errstate(divide="ignore"):
        constants = np.log(parameters.weights) + np.log(diagonals).sum(axis=1) - d / 2 * np.log(2 * np.pi)
    return Densities(constants, parameters.means, factors)
