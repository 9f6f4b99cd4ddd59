"""What both discriminant analyses ask of a covariance: which of scikit-learn's are computed, and their shrinkage.

References
----------
.. [1] O. Ledoit, M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", Journal of
   Multivariate Analysis 88 (2004), 365-411: the share of the identity from the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.sharing.linear_models import ScatterOfEach

__all__ = ["covariance_of", "require_computed", "shrunk"]

_Floats = npt.NDArray[np.float64]


def require_computed(estimator: Any, refused: str) -> None:
    """Raise scikit-learn's errors about parameters of the covariance that do not fit together, and ours.

    Parameters
    ----------
    estimator : object
        Up to scikit-learn 1.7, `QuadraticDiscriminantAnalysis` has no such parameters.
    refused : str
        What its class says about an estimator of covariances with the solver "svd".
    """
    shrinkage, given = getattr(estimator, "shrinkage", None), getattr(estimator, "covariance_estimator", None)
    if getattr(estimator, "solver", "svd") == "svd":
        if shrinkage is not None:
            raise NotImplementedError("shrinkage not supported with 'svd' solver.")
        if given is not None:
            raise ValueError(refused)
    if shrinkage is not None and given is not None:
        raise ValueError("covariance_estimator and shrinkage parameters are not None. Only one of the two can be set.")
    if given is not None:
        raise ValueError(
            f"covariance_estimator={given!r} was given; the engines compute None, and a `shrinkage`: choose that, or "
            f"use sklearn.discriminant_analysis.{type(estimator).__name__}"
        )


def shrunk(covariance: _Floats, shrinkage: float | None) -> _Floats:
    """Return a covariance with a share of the identity, scaled to its mean variance."""
    if shrinkage is None:
        return covariance
    n = len(covariance)
    return (1 - shrinkage) * covariance + shrinkage * (np.trace(covariance) / n) * np.eye(n)


def covariance_of(scatters: ScatterOfEach, number: int, shrinkage: float | str | None) -> _Floats:
    """Return the covariance of a class, with a share of the identity or, with "auto", of the mean variances.

    With "auto", the share is that of the least expected squared error for the standardized columns [1]_.
    """
    count = scatters.counts[number]
    covariance: _Floats = scatters.within[number] / count
    if not isinstance(shrinkage, str):
        return shrunk(covariance, shrinkage)
    assert scatters.scales is not None
    assert scatters.lengths is not None
    n, scale = len(covariance), np.outer(scatters.scales[number], scatters.scales[number])
    standard = covariance / scale
    squares, middle = np.square(standard).sum(), np.trace(standard) / n
    spread = squares / n - middle**2  # of the eigenvalues
    error = min((scatters.lengths[number] / count - squares) / (n * count), spread)
    return shrunk(standard, error / spread if error and n > 1 else 0.0) * scale
