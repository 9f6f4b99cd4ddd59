"""Merges the means and covariances of two sets of rows, and computes a root of the precision matrix."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import linalg

__all__ = ["about", "joined", "root"]

Floats = npt.NDArray[np.float64]


def joined(
    n: int, mean: Floats, covariance: Floats, m: int, other_mean: Floats, other_covariance: Floats
) -> tuple[Floats, Floats]:
    """Return the mean and the covariance of two sets of rows together [1]_.

    Parameters
    ----------
    n, m : int
        Number of rows of each set.
    mean, other_mean : numpy.ndarray of shape (n_features,)
        Means of each set.
    covariance, other_covariance : numpy.ndarray of shape (n_features, n_features)
        Covariances of each set, with the divisor n or m.

    Returns
    -------
    tuple of numpy.ndarray
        Mean (n_features,) and covariance (n_features, n_features).

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
       recommendations", The American Statistician 37 (1983), 242-247; equations 1.5a and 1.5b, for two columns.
    """
    away, share = other_mean - mean, m / (n + m)
    within = covariance * (1 - share) + other_covariance * share
    return mean + away * share, within + np.outer(away, away) * (share * (1 - share))


def about(point: Floats, n: float, mean: Floats, gram: Floats) -> Floats:
    """Return the mean products of the columns minus `point` (n_features,), from their mean and centred products."""
    away = mean - point
    return gram / n + np.outer(away, away)


def root(precision: npt.NDArray[np.floating]) -> Floats:
    """Return a matrix R of shape (n_features, k) with ``R @ R.T == precision``, which must be positive semidefinite.

    Eigenvalues that differ from 0 only by rounding count as 0. k is the number of the other eigenvalues, at least 1.
    """
    values, vectors = linalg.eigh(np.asarray(precision, np.float64))
    kept = values > max(values.max(initial=0.0), 0.0) * len(values) * np.finfo(np.float64).eps
    if not kept.any():
        return np.zeros((len(values), 1))
    found: Floats = vectors[:, kept] * np.sqrt(values[kept])
    return found
