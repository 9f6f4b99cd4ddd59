"""Metrics of classifiers over the rows of all engines: `accuracy_score`, `confusion_matrix` and `log_loss`."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import sklearn.metrics

from xpulab.checks import check_array, type_of_target
from xpulab.data import ShardedArray, place_named
from xpulab.metrics._columns import checked_column, checked_weights, columns_of, require_aligned, sums

__all__ = ["accuracy_score", "confusion_matrix", "log_loss"]


def accuracy_score(y_true: Any, y_pred: Any, *, normalize: bool = True, sample_weight: Any = None) -> float:
    """Return the share of rows that are predicted correctly, as `sklearn.metrics.accuracy_score`.

    Parameters and result are those of scikit-learn's function.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings in arrays, numbers in handles.
    normalize : bool, default=True
        Whether to return the share of these rows, instead of their number (or the sum of their weights).
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.

    Returns
    -------
    float or int
        Without `normalize` and without weights, scikit-learn before 1.9 returns an int, and this function does with it.

    Raises
    ------
    ValueError
        If the lengths differ, or if there are several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    truth, predicted, _ = _labels_of(y_true, y_pred)
    weights = checked_weights(sample_weight, truth)
    found = sums("accuracy_score", "metrics.agreeing", truth, predicted, weights)
    if normalize:
        return float(found["equal"] / found["weight"]) if found["weight"] else 0.0
    return float(found["equal"]) if weights is not None else _count_type()(found["equal"])


@functools.cache
def _count_type() -> type:
    """Return the type of a number of rows in the installed scikit-learn."""
    return type(sklearn.metrics.accuracy_score([0, 1], [0, 1], normalize=False))


def confusion_matrix(
    y_true: Any, y_pred: Any, *, labels: Any = None, sample_weight: Any = None, normalize: str | None = None
) -> np.ndarray:
    """Return the number of rows by true and predicted label, with the parameters of `sklearn.metrics.confusion_matrix`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings in arrays, numbers in handles.
    labels : array-like of shape (n_labels,), optional
        The labels to count, in the order of the result. By default all labels that occur, in ascending order.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    normalize : {"true", "pred", "all"}, optional
        Divide by the sums of the rows, of the columns, or of all.

    Returns
    -------
    ndarray of shape (n_labels, n_labels)
        int64, or float64 with weights or if normalized.

    Raises
    ------
    ValueError
        If the lengths differ, if there are several columns of labels, or if none of `labels` is in `y_true`.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if normalize not in (None, "true", "pred", "all"):
        raise ValueError(f"normalize={normalize!r} was given; expected 'true', 'pred', 'all' or None")
    truth, predicted, names = _labels_of(y_true, y_pred)
    weights = checked_weights(sample_weight, truth)
    there = _distinct(truth, "confusion_matrix")
    if labels is None:
        asked = np.union1d(there, _distinct(predicted, "confusion_matrix"))
        places = np.arange(len(asked))
        ordered = asked
    else:
        given = np.asarray(labels)
        if given.size == 0:
            raise ValueError("'labels' should contain at least one label.")
        codes = given if names is None else np.searchsorted(names, given).astype(np.float64)
        if names is not None:
            codes = np.where(np.isin(given, names), codes, -1.0 - np.arange(len(given)))
        if not np.isin(codes, there).any():
            raise ValueError("At least one label specified must be in y_true")
        ordered, places = np.unique(codes.astype(np.float64), return_inverse=True)
    found = sums("confusion_matrix", "metrics.confusion", truth, predicted, weights, labels=ordered.astype(np.float64))
    counts = found["counts"][np.ix_(places, places)]
    if normalize is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            axis = {"true": 1, "pred": 0, "all": None}[normalize]
            return np.nan_to_num(counts / counts.sum(axis=axis, keepdims=axis is not None))
    return counts if weights is not None else np.rint(counts).astype(np.int64)


def log_loss(
    y_true: Any,
    y_proba: Any = None,
    *,
    normalize: bool = True,
    sample_weight: Any = None,
    labels: Any = None,
    y_pred: Any = "deprecated",
) -> float:
    """Return the cross-entropy of probabilities, with the parameters and the result of `sklearn.metrics.log_loss`.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings in an array, numbers in a handle.
    y_proba : array-like or ShardedArray of shape (n_samples, n_classes) or (n_samples,)
        Probabilities of the classes in ascending order of the labels. A single column has the probabilities of the
        second class.
    normalize : bool, default=True
        Whether to return the mean instead of the sum.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    labels : array-like, optional
        All labels; needed if some do not occur in `y_true`.
    y_pred : array-like or ShardedArray
        The former name of `y_proba`.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the lengths differ, if a probability is outside of [0, 1], or if the number of labels differs from the number
        of columns.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if not (isinstance(y_pred, str) and y_pred == "deprecated"):
        if y_proba is not None:
            raise ValueError("Cannot use both `y_pred` and `y_proba`. `y_pred` is deprecated, use `y_proba` instead.")
        y_proba = y_pred
    probabilities = checked_column(y_proba, "y_proba")
    truth, names = _codes_of(y_true, None if labels is None else np.asarray(labels))
    require_aligned(truth, probabilities)
    weights = checked_weights(sample_weight, truth)
    if names is not None:
        known = np.arange(len(names), dtype=np.float64)
    elif labels is not None:
        known = np.unique(np.asarray(labels, np.float64))
    else:
        known = _distinct(truth, "log_loss")
    n_classes = columns_of(probabilities)
    _require_classes(known, n_classes, labels is not None)
    found = sums("log_loss", "metrics.log_loss", probabilities, truth, weights, labels=known.astype(np.float64))
    if found["highest"] > 1:
        raise ValueError(f"y_proba contains values greater than 1: {found['highest']}")
    if found["lowest"] < 0:
        raise ValueError(f"y_proba contains values lower than 0: {found['lowest']}")
    if found["unknown"]:
        raise ValueError("y_true contains values which are not in labels; pass all of them as labels")
    if found["worst"] > np.sqrt(np.finfo(probabilities.dtype).eps):
        warnings.warn(
            "The y_prob values do not sum to one. Make sure to pass probabilities.", UserWarning, stacklevel=2
        )
    return float(found["total"] / found["weight"]) if normalize else float(found["total"])


def _require_classes(known: np.ndarray, n_columns: int, given: bool) -> None:
    if len(known) == 1:
        if given:
            raise ValueError(f"The number of classes in labels is less than two: {known}")
        raise ValueError(
            f"y_true contains only one label ({known[0]}). Please provide the list of all expected class labels "
            "explicitly through the labels argument."
        )
    if len(known) != max(n_columns, 2):
        raise ValueError(
            f"y_true has {len(known)} labels, and y_proba {n_columns} columns; expected a column for each label: pass "
            "all labels through the labels argument"
        )


def _distinct(column: Any, function: str) -> np.ndarray:
    """Return the labels that occur, in ascending order."""
    if isinstance(column, ShardedArray):
        return sums(function, "metrics.distinct", column)["labels"].astype(np.float64)
    return np.unique(column).astype(np.float64)


def _labels_of(y_true: Any, y_pred: Any) -> tuple[Any, Any, np.ndarray | None]:
    """Return true and predicted labels as numbers, and the labels for these numbers if the labels are no numbers."""
    names = None
    arrays = [np.asarray(y) for y in (y_true, y_pred) if not isinstance(y, ShardedArray)]
    if any(array.dtype.kind in "OUS" for array in arrays):
        if len(arrays) < 2 or any(array.dtype.kind not in "OUS" for array in arrays):
            raise ValueError(
                "labels that are strings were given together with labels that are numbers; expected the same kind: "
                "encode the strings as numbers first"
            )
        names = np.unique(np.concatenate([array.ravel() for array in arrays]))
    truth, _ = _codes_of(y_true, names)
    predicted, _ = _codes_of(y_pred, names)
    require_aligned(truth, predicted)
    return truth, predicted, names


def _codes_of(y: Any, names: np.ndarray | None) -> tuple[Any, np.ndarray | None]:
    """Return one column of labels as numbers, and the labels for these numbers if the labels are no numbers."""
    if isinstance(y, ShardedArray):
        if columns_of(y) != 1:
            raise ValueError(f"labels of shape {y.shape} were given; expected one column")
        return checked_column(y, "y_true"), None
    with place_named(y):
        kind = type_of_target(y, input_name="y_true")
    if kind not in ("binary", "multiclass"):
        raise ValueError(f"Classification metrics can't handle {kind} targets; expected one label for each row")
    array = np.asarray(y).reshape(-1)
    if array.dtype.kind not in "OUS":
        return checked_column(check_array(array, ensure_2d=False, dtype=np.float64), "y_true"), None
    known = np.unique(array) if names is None else np.unique(names)
    place = np.minimum(np.searchsorted(known, array), len(known) - 1)
    codes = np.where(known[place] == array, place, -1).astype(np.float64)
    return codes.reshape(-1, 1), known
