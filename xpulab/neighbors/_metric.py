"""The distances that the ranks compute, and scikit-learn's names and parameters for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Distance", "distance_of"]

#: scikit-learn's name -> the ranks' name, and the power of the ranks' distance that is returned for this name.
_NAMES = {
    "euclidean": ("euclidean", 1),
    "l2": ("euclidean", 1),
    "sqeuclidean": ("euclidean", 2),
    "manhattan": ("manhattan", 1),
    "cityblock": ("manhattan", 1),
    "l1": ("manhattan", 1),
    "chebyshev": ("chebyshev", 1),
    "infinity": ("chebyshev", 1),
    "cosine": ("cosine", 1),
    "minkowski": ("minkowski", 1),
}


@dataclass(frozen=True)
class Distance:
    """A distance. The ranks compare a power of it, which needs no root.

    Attributes
    ----------
    name : str
        The ranks' name of the metric.
    p : float
        The power of "minkowski".
    power : float
        The ranks compare the returned distance raised to this power.
    degree : int
        Rows that are multiplied by a factor have returned distances that are multiplied by the factor to this power.
    """

    name: str
    p: float
    power: float
    degree: int = 1

    @property
    def metric(self) -> tuple[str, float]:
        """The argument for the ranks: name and `p`."""
        return self.name, self.p

    def of(self, compared: np.ndarray, unit: float) -> np.ndarray:
        """Return the distances for the numbers that the ranks compared, of rows that were divided by the unit."""
        found: np.ndarray = compared
        if self.power != 1:
            found = np.sqrt(compared) if self.power == 2 else compared ** (1 / self.power)
        if unit == 1:
            return found
        with np.errstate(over="ignore", under="ignore"):
            return found * np.float64(unit) ** self.degree


def distance_of(estimator: Any, instead: str = "") -> Distance:
    """Return the distance for an estimator's parameters, and set its `effective_metric_` and the metric's parameters.

    Parameters
    ----------
    estimator : sklearn.neighbors.NearestNeighbors, or another estimator of neighbours
    instead : str, optional
        The class that an error recommends for other metrics; scikit-learn's class of the same name by default.

    Returns
    -------
    Distance

    Raises
    ------
    ValueError
        For metrics and parameters that are not supported, or that scikit-learn rejects.
    """
    metric, given = estimator.metric, dict(estimator.metric_params or {})
    if not isinstance(metric, str) or metric not in _NAMES:
        raise ValueError(
            f"metric={metric!r} is not computed on the engines; expected one of {', '.join(map(repr, _NAMES))}; for "
            f"other metrics use {instead or f'sklearn.neighbors.{type(estimator).__name__}'}"
        )
    estimator._check_algorithm_metric()
    p = given.pop("p", estimator.p) if metric == "minkowski" else None
    if given.pop("w", None) is not None:
        raise ValueError(
            "metric_params has weights 'w' of the features, which are not computed on the engines; pass the columns "
            "times w ** (1 / p) instead"
        )
    if given:
        raise ValueError(
            f"metric_params={estimator.metric_params!r} was given; expected only 'p', and only for metric='minkowski'"
        )
    name, power = _NAMES[metric]
    estimator.effective_metric_, estimator.effective_metric_params_ = metric, {}
    if metric == "minkowski":
        p = 2 if p is None else p
        if not p > 0:
            raise ValueError(f"p={p!r} was given; expected a number above 0 for the Minkowski metric")
        name = {1: "manhattan", 2: "euclidean", np.inf: "chebyshev"}.get(p, "minkowski")
        estimator.effective_metric_ = name
        if name == "minkowski":
            estimator.effective_metric_params_ = {"p": p, "w": None}
            _look_at_power(estimator.algorithm, p)
    compared = {"euclidean": 2.0, "minkowski": float(p or 2)}.get(name, 1.0)
    return Distance(name, float(p) if name == "minkowski" and p else 2.0, compared / power, power)


def _look_at_power(algorithm: str, p: float) -> None:
    """Raise scikit-learn's error, or show its warning, if the power is below 1."""
    if p >= 1:
        return
    if algorithm in ("kd_tree", "ball_tree"):
        raise ValueError(
            f'algorithm="{algorithm}" does not support 0 < p < 1 for the Minkowski metric. To resolve this problem '
            'either set p >= 1 or algorithm="brute".'
        )
    warnings.warn(
        "Mind that for 0 < p < 1, Minkowski metrics are not distance metrics. Continuing the execution with "
        "`algorithm='brute'`.",
        stacklevel=6,
    )
