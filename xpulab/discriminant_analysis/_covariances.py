"""What both discriminant analyses ask of a covariance: which of scikit-learn's are computed, and their shrinkage."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["require_computed", "shrunk"]

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
    for name, value, computed in (
        ("shrinkage", shrinkage, "None or a number from 0 to 1"),
        ("covariance_estimator", given, "None"),
    ):
        if value is not None and not isinstance(value, numbers.Real):
            raise ValueError(
                f"{name}={value!r} was given; the engines compute {computed}: choose that, or use "
                f"sklearn.discriminant_analysis.{type(estimator).__name__}"
            )


def shrunk(covariance: _Floats, shrinkage: float | None) -> _Floats:
    """Return a covariance with a share of the identity, scaled to its mean variance."""
    if shrinkage is None:
        return covariance
    n = len(covariance)
    return (1 - shrinkage) * covariance + shrinkage * (np.trace(covariance) / n) * np.eye(n)
