"""Statistics from the moments of columns, and the moments of two sets of rows together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["OPTIONS", "joined", "statistics"]

#: The statistics, under the names of scikit-learn-intelex.
OPTIONS = (
    "min", "max", "sum", "mean", "variance", "variation", "sum_squares", "standard_deviation", "sum_squares_centered",
    "second_order_raw_moment",
)  # fmt: skip

Facts = Mapping[str, npt.NDArray[np.float64]]


def statistics(facts: Facts) -> dict[str, npt.NDArray[np.float64]]:
    """Compute all statistics of columns.

    Parameters
    ----------
    facts : mapping of str to numpy.ndarray of float64 of shape (n_features,)
        ``count``, ``mean``, ``squares`` (sum of the squared differences from the mean), ``lengths`` (its root, also
        where the sum is too large or too small for float64), ``minimum`` and ``maximum``.

    Returns
    -------
    dict of str to numpy.ndarray of float64 of shape (n_features,)
        The statistics, under the names in `OPTIONS`. The variance has the divisor n_samples - 1; variance and standard
        deviation are NaN for a single row. The variation is the standard deviation divided by the mean, and NaN if the
        mean is 0.
    """
    n, mean, squares = facts["count"], facts["mean"], facts["squares"]
    limits = np.finfo(np.float64)
    exact = (squares > limits.tiny / limits.eps) & (squares < np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        raw = squares + n * np.square(mean)
        variance = np.where(n > 1, squares / (n - 1), np.nan)
        deviation = np.where(exact, np.sqrt(variance), facts["lengths"] / np.sqrt(n - 1))
        variation = np.where(mean != 0, deviation / mean, np.nan)
    return {
        "min": facts["minimum"],
        "max": facts["maximum"],
        "sum": n * mean,
        "mean": mean,
        "variance": variance,
        "variation": variation,
        "sum_squares": raw,
        "standard_deviation": deviation,
        "sum_squares_centered": squares,
        "second_order_raw_moment": raw / n,
    }


def joined(facts: Facts, others: Facts) -> dict[str, npt.NDArray[np.float64]]:
    """Return the moments of two sets of rows together [1]_.

    Parameters
    ----------
    facts, others : mapping of str to numpy.ndarray of float64 of shape (n_features,)
        The moments of each set, as for `statistics`.

    Returns
    -------
    dict of str to numpy.ndarray of float64 of shape (n_features,)

    References
    ----------
    .. [1] T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance: analysis and
       recommendations", The American Statistician 37 (1983), 242-247; equations 1.5a and 1.5b.
    """
    n, m = facts["count"], others["count"]
    away, share = others["mean"] - facts["mean"], m / (n + m)
    lengths = np.hypot(np.hypot(facts["lengths"], others["lengths"]), np.sqrt(n * share) * away)
    return {
        "count": n + m,
        "mean": facts["mean"] + away * share,
        "squares": facts["squares"] + others["squares"] + n * share * np.square(away),
        "lengths": lengths,
        "minimum": np.minimum(facts["minimum"], others["minimum"]),
        "maximum": np.maximum(facts["maximum"], others["maximum"]),
    }
