"""Metrics of classifiers over the rows of all engines: shares of right rows, counts by label, and probabilities."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.metrics

from xpulab.estimator.rows import require_weight
from xpulab.metrics._columns import (
    Values,
    as_in_sklearn,
    call_theirs,
    checked_column,
    checked_score_weights,
    columns_of,
    labels_of,
    read_by_engines,
    require_aligned,
    sums,
)
from xpulab.metrics._counted import counted_pairs, label_columns
from xpulab.metrics._indicators import are_indicators

__all__ = ["accuracy_score", "brier_score_loss", "confusion_matrix", "log_loss"]


@as_in_sklearn
def accuracy_score(
    y_true: Values, y_pred: Values, *, normalize: bool = True, sample_weight: Values | None = None
) -> float:
    """Return the share of rows that are predicted correctly, as `sklearn.metrics.accuracy_score`.

    Parameters and result are those of scikit-learn's function.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row, which
        is predicted correctly if all of its labels are.
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
        If the lengths differ, or if a handle has several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    truth, predicted, weights = label_columns(y_true, y_pred, sample_weight)
    if truth.coded or predicted.coded:
        labels, others, counts = counted_pairs("accuracy_score", truth, predicted, weights)
        weight = counts.sum()
        equal = call_theirs("accuracy_score", labels, others, sample_weight=counts, normalize=False)
    else:
        found = sums("accuracy_score", "metrics.agreeing", truth.column, predicted.column, weights)
        for each, largest in zip((truth, predicted), found["largest"], strict=True):
            each.decode(np.array([largest]))  # an error if it is a label that float64 may have rounded
        equal, weight = found["equal"], found["weight"]
    if normalize:
        if weights is not None:
            require_weight(weight)
        return float(equal / weight) if weight else 0.0
    return float(equal) if weights is not None else _count_type()(equal)


@functools.cache
def _count_type() -> type:
    """Return the type of a number of rows in the installed scikit-learn."""
    return type(sklearn.metrics.accuracy_score([0, 1], [0, 1], normalize=False))


@as_in_sklearn
def confusion_matrix(
    y_true: Values,
    y_pred: Values,
    *,
    labels: npt.ArrayLike | None = None,
    sample_weight: Values | None = None,
    normalize: str | None = None,
) -> np.ndarray:
    """Return the number of rows by true and predicted label, with the parameters of `sklearn.metrics.confusion_matrix`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
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
    truth, predicted, counts = counted_pairs("confusion_matrix", *label_columns(y_true, y_pred, sample_weight))
    if getattr(sample_weight, "dtype", np.dtype(float)).kind in "biu":
        counts = np.rint(counts).astype(np.int64)
    return np.asarray(
        call_theirs("confusion_matrix", truth, predicted, labels=labels, sample_weight=counts, normalize=normalize)
    )


@as_in_sklearn
def log_loss(
    y_true: Values,
    y_proba: Values | None = None,
    *,
    normalize: bool = True,
    sample_weight: Values | None = None,
    labels: npt.ArrayLike | None = None,
    y_pred: Any = "deprecated",
) -> float:
    """Return the cross-entropy of probabilities, with the parameters and the result of `sklearn.metrics.log_loss`.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_classes)
        Labels: numbers or strings. The loss of indicators of several labels of a row is computed in this process.
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
    if are_indicators(y_true):
        parameters = {"normalize": normalize, "sample_weight": sample_weight, "labels": labels}
        return float(call_theirs("log_loss", y_true, y_proba, **parameters))
    found = _probabilities("log_loss", y_true, y_proba, sample_weight, labels)
    return float(found["total"] / found["weight"]) if normalize else float(found["total"])


@as_in_sklearn
def brier_score_loss(
    y_true: Values,
    y_proba: Values,
    *,
    sample_weight: Values | None = None,
    pos_label: float | str | None = None,
    labels: npt.ArrayLike | None = None,
    scale_by_half: bool | str = "auto",
) -> float:
    """Return the mean squared difference of probabilities and labels, as `sklearn.metrics.brier_score_loss`.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_classes)
        Labels: numbers or strings. The loss of indicators of several labels of a row is computed in this process.
    y_proba : array-like or ShardedArray of shape (n_samples, n_classes) or (n_samples,)
        Probabilities of the classes in ascending order of the labels, or of `pos_label`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    pos_label : int, float, bool or str, optional
        The label whose probabilities a single column has; by default the second one, if the labels are numbers.
    labels : array-like of shape (n_classes,), optional
        All labels, for several columns; needed if some do not occur in `y_true`.
    scale_by_half : bool or "auto", default="auto"
        Whether to halve the sum of the squares; "auto" does so for two classes.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If the lengths differ, if a probability is outside of [0, 1], or if the labels do not fit.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if are_indicators(y_true):
        parameters = {"sample_weight": sample_weight, "pos_label": pos_label, "labels": labels}
        return float(call_theirs("brier_score_loss", y_true, y_proba, **parameters, scale_by_half=scale_by_half))
    found = _probabilities("brier_score_loss", y_true, y_proba, sample_weight, labels, pos_label)
    halved = found["n_classes"] < 3 if scale_by_half == "auto" else scale_by_half
    return float(found["squares"] / found["weight"]) * (0.5 if halved else 1.0)


def _probabilities(
    function: str,
    y_true: Values,
    y_proba: Values | None,
    sample_weight: Values | None,
    labels: Any,
    pos_label: float | str | None = None,
) -> dict[str, float]:
    """Return the sums of the losses of probabilities; those of one column are of `pos_label` in a Brier score."""
    y_true, y_proba = read_by_engines(y_true, y_proba)
    probabilities = checked_column(y_proba, "y_proba")
    truth = labels_of(y_true)
    require_aligned(truth.column, probabilities)
    weights = checked_score_weights(sample_weight, truth.column)
    codes = sums(function, "metrics.distinct", truth.column)["labels"].astype(np.float64)
    there, n_columns = truth.decode(codes), columns_of(probabilities)
    # scikit-learn's function has errors and warnings for labels: it gets each of them once.
    if function == "brier_score_loss" and n_columns == 1:
        call_theirs(function, there, np.zeros(len(there)), pos_label=pos_label)
        classes = (there == _positive(there, pos_label)).astype(np.int64)
    else:
        known = there if labels is None else np.unique(np.asarray(labels))
        call_theirs(function, there, np.full((len(there), n_columns), 1 / max(n_columns, 2)), labels=labels)
        classes = np.searchsorted(known, there)
    found = sums(function, "metrics.probabilities", probabilities, truth.column, weights, labels=codes, classes=classes)
    if found["highest"] > 1:
        raise ValueError(f"y_proba contains values greater than 1: {found['highest']}")
    if found["lowest"] < 0:
        raise ValueError(f"y_proba contains values lower than 0: {found['lowest']}")
    if found["worst"] > np.sqrt(np.finfo(probabilities.dtype).eps):
        warnings.warn(
            "The y_prob values do not sum to one. Make sure to pass probabilities.", UserWarning, stacklevel=2
        )
    return {**found, "n_classes": max(n_columns, 2)}


def _positive(labels: np.ndarray, pos_label: Any) -> Any:
    """Return the label whose probabilities a single column has."""
    if pos_label is not None:
        return pos_label
    return 1 if set(labels.tolist()) <= {0, 1} or set(labels.tolist()) <= {-1, 1} else labels[-1]
