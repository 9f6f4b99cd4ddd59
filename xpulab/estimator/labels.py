"""Checks labels of classes, and turns each row's label into the number of its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length

from xpulab.checks import check_classification_targets, check_y, place_named
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn, beside
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.rows import checked_targets
from xpulab.sharing.answers import Classes

__all__ = ["Labels", "checked_labels", "encoded", "places_of"]

_STRINGS = "OUS"


@dataclass(frozen=True)
class Labels:
    """The labels of rows, as the engines take them.

    Attributes
    ----------
    classes : numpy.ndarray of shape (n_classes,)
        The distinct labels, in ascending order.
    targets : numpy.ndarray of shape (n_samples,) or ShardedArray
        The number of each row's class; of a handle, the labels themselves.
    known : numpy.ndarray of shape (n_classes,) or None
        The distinct labels of a handle, in the dtype of its rows; None if the targets are numbers of classes.
    totals : numpy.ndarray of shape (n_classes,)
        Sum of the weights of the rows of each class.
    """

    classes: npt.NDArray[Any]
    targets: npt.NDArray[Any] | ShardedArray
    known: npt.NDArray[Any] | None
    totals: npt.NDArray[Any]

    @classmethod
    def of(cls, estimator: Proxy, cluster: Ranks, y: Any, weights: Any) -> Labels:
        """Find the classes of labels that `checked_labels` has checked. Those of a handle stay on the engines."""
        if isinstance(y, ShardedArray):
            found: Classes = estimator._ask(cluster, "classes", "labels.classes", y, sample_weight=weights).results[0]
            if not isinstance(y, ScannedColumn):  # which can be read again, with all digits
                y.require_exact(found["classes"])
            labels = y.labels(found["classes"])
            if labels is None:
                return cls.of(estimator, cluster, y.gather(), weights)
            classes = encoded(np.repeat(labels, 3))[0]  # three of each: scikit-learn warns of too many
            return cls(classes, y, found["classes"], found["totals"])
        classes, targets = encoded(y)
        every = weights.gather() if isinstance(weights, ShardedArray) else weights
        return cls(classes, targets, None, np.bincount(targets, every, len(classes)))


def checked_labels(estimator: BaseEstimator, cluster: Ranks, y: Any, X: Any) -> Any:
    """Check labels before anything is sent.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    cluster : Ranks
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
    y = beside(y, X, cluster, X.dtype)
    if isinstance(y, ShardedArray) and not y.stays:  # a rank's own labels, which may be strings
        y = y.gather()
    if y is None or isinstance(y, ShardedArray):
        return checked_targets(estimator, cluster, y, X, multi_output=False, labels=True)
    with place_named(y):
        y = check_y(y, multi_output=False, y_numeric=False, estimator=estimator)
    check_consistent_length(np.empty((X.shape[0], 0)), y)
    return y


def encoded(y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
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
    # scikit-learn sorts the labels that it checks, so this passes three of each class, and none of whole numbers, which
    # it takes. If there are so many classes that it may warn, it gets all labels.
    if 3 * len(classes) > len(y):
        check_classification_targets(y)
    elif y.dtype.kind not in "biu":
        check_classification_targets(np.repeat(classes, 3))
    return classes, codes


def _whole(y: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return the labels as int64, if they are whole numbers in a range that is small enough to count them."""
    if y.dtype.kind not in "biuf":
        return None
    low, high = y.min(), y.max()
    limit = 2**53
    if not (-limit < low and high < limit and float(high) - float(low) < 1000 + len(y)):
        return None
    numbers = y.astype(np.int64)
    return numbers if y.dtype.kind != "f" or bool((numbers == y).all()) else None


def places_of(y: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
    found: npt.NDArray[Any] = np.where(classes[place] == labels, place, -1)[codes]
    return found
