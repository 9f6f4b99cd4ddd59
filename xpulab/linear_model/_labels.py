"""Checks labels of classes, and turns each row's label into the number of its class."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length

from xpulab.checks import check_classification_targets, check_y
from xpulab.data import ShardedArray, place_named
from xpulab.deploy.cluster import XPUCluster
from xpulab.estimator.rows import checked_targets

__all__ = ["checked_labels", "encoded", "places_of"]

_STRINGS = "OUS"


def checked_labels(estimator: Any, cluster: XPUCluster, y: Any, X: Any) -> Any:
    """Check labels before anything is sent.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    cluster : XPUCluster
    y : array-like or ShardedArray of shape (n_samples,)
    X : array or ShardedArray
        As `checked_rows` returned it.

    Returns
    -------
    numpy.ndarray of shape (n_samples,), or ShardedArray

    Raises
    ------
    ValueError
        If y is missing, has another length than X, has NaN, or is continuous; for a `ShardedArray` as
        `checked_targets` raises it.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if isinstance(y, ShardedArray) and not y.stays:  # a rank's own labels, which may be strings
        y = y.gather()
    if y is None or isinstance(y, ShardedArray):
        return checked_targets(estimator, cluster, y, X, multi_output=False)
    with place_named(y):
        y = check_y(y, multi_output=False, y_numeric=False, estimator=estimator)
    check_consistent_length(np.empty((X.shape[0], 0)), y)
    return y


def encoded(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels in ascending order, and the number of each row's label: intp of shape (n_samples,).

    Whole numbers in a small range are counted, which takes a tenth of the time of sorting.

    Raises
    ------
    ValueError
        If the labels are not those of classes, such as fractions.
    """
    numbers = _whole(y)
    if numbers is None:
        classes, codes = np.unique(y, return_inverse=True)
        codes = codes.reshape(-1)
    else:
        least = numbers.min()
        numbers = numbers - least
        there = np.bincount(numbers) > 0
        classes = (np.flatnonzero(there) + least).astype(y.dtype)
        codes = (np.cumsum(there) - 1)[numbers]
    # scikit-learn sorts the labels that it checks, so this passes three of each class. If there are so many classes
    # that scikit-learn may warn, it gets all labels.
    check_classification_targets(np.repeat(classes, 3) if 3 * len(classes) <= len(y) else y)
    return classes, codes


def _whole(y: np.ndarray) -> np.ndarray | None:
    """Return the labels as int64, if they are whole numbers in a range that is small enough to count them."""
    if y.dtype.kind not in "biuf":
        return None
    low, high = y.min(), y.max()
    limit = 2**53
    if not (-limit < low and high < limit and float(high) - float(low) < 1000 + len(y)):
        return None
    numbers = y.astype(np.int64)
    return numbers if y.dtype.kind != "f" or bool((numbers == y).all()) else None


def places_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the number of each row's class; -1 for a label that is no class.

    Raises
    ------
    ValueError
        If the labels are strings and the classes numbers, or the reverse.
    """
    if (y.dtype.kind in _STRINGS) != (classes.dtype.kind in _STRINGS):
        kinds = {True: "strings", False: "numbers"}
        given, expected = (kinds[each.dtype.kind in _STRINGS] for each in (y, classes))
        raise ValueError(f"y has labels that are {given}; expected {expected}, as those of the fit: {classes[:5]}")
    labels, codes = encoded(y)
    place = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[place] == labels, place, -1)[codes]
