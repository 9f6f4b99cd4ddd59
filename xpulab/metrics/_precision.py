"""Precision, recall and their kin, from the counts of true and predicted labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.metrics._columns import Values, as_in_sklearn
from xpulab.metrics._counted import score_of_counts

__all__ = [
    "f1_score",
    "fbeta_score",
    "jaccard_score",
    "precision_recall_fscore_support",
    "precision_score",
    "recall_score",
]


@as_in_sklearn
def precision_score(
    y_true: Values,
    y_pred: Values,
    *,
    labels: npt.ArrayLike | None = None,
    pos_label: float | str = 1,
    average: str | None = "binary",
    sample_weight: Values | None = None,
    zero_division: str | float = "warn",
) -> Any:
    """Return the share of right rows among those that are predicted a label, as `sklearn.metrics.precision_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    pos_label : int, float, bool or str, default=1
        The label whose value `average="binary"` returns.
    average : {"binary", "micro", "macro", "weighted", "samples"} or None, default="binary"
        How to average the values of the labels: None returns all of them, "binary" that of `pos_label`, and
        "samples" averages the values of rows that have several labels.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    float or ndarray of float64 of shape (n_labels,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return score_of_counts(
        "precision_score",
        y_true,
        y_pred,
        sample_weight,
        labels=labels,
        pos_label=pos_label,
        average=average,
        zero_division=zero_division,
    )


@as_in_sklearn
def recall_score(
    y_true: Values,
    y_pred: Values,
    *,
    labels: npt.ArrayLike | None = None,
    pos_label: float | str = 1,
    average: str | None = "binary",
    sample_weight: Values | None = None,
    zero_division: str | float = "warn",
) -> Any:
    """Return the share of right rows among those that have a label, as `sklearn.metrics.recall_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    pos_label : int, float, bool or str, default=1
        The label whose value `average="binary"` returns.
    average : {"binary", "micro", "macro", "weighted", "samples"} or None, default="binary"
        How to average the values of the labels: None returns all of them, "binary" that of `pos_label`, and
        "samples" averages the values of rows that have several labels.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    float or ndarray of float64 of shape (n_labels,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return score_of_counts(
        "recall_score",
        y_true,
        y_pred,
        sample_weight,
        labels=labels,
        pos_label=pos_label,
        average=average,
        zero_division=zero_division,
    )


@as_in_sklearn
def f1_score(
    y_true: Values,
    y_pred: Values,
    *,
    labels: npt.ArrayLike | None = None,
    pos_label: float | str = 1,
    average: str | None = "binary",
    sample_weight: Values | None = None,
    zero_division: str | float = "warn",
) -> Any:
    """Return the harmonic mean of precision and recall, as `sklearn.metrics.f1_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    pos_label : int, float, bool or str, default=1
        The label whose value `average="binary"` returns.
    average : {"binary", "micro", "macro", "weighted", "samples"} or None, default="binary"
        How to average the values of the labels: None returns all of them, "binary" that of `pos_label`, and
        "samples" averages the values of rows that have several labels.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    float or ndarray of float64 of shape (n_labels,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return score_of_counts(
        "f1_score",
        y_true,
        y_pred,
        sample_weight,
        labels=labels,
        pos_label=pos_label,
        average=average,
        zero_division=zero_division,
    )


@as_in_sklearn
def fbeta_score(
    y_true: Values,
    y_pred: Values,
    *,
    beta: float,
    labels: npt.ArrayLike | None = None,
    pos_label: float | str = 1,
    average: str | None = "binary",
    sample_weight: Values | None = None,
    zero_division: str | float = "warn",
) -> Any:
    """Return the weighted harmonic mean of precision and recall, as `sklearn.metrics.fbeta_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    beta : float
        Weight of recall against precision.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    pos_label : int, float, bool or str, default=1
        The label whose value `average="binary"` returns.
    average : {"binary", "micro", "macro", "weighted", "samples"} or None, default="binary"
        How to average the values of the labels: None returns all of them, "binary" that of `pos_label`, and
        "samples" averages the values of rows that have several labels.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    float or ndarray of float64 of shape (n_labels,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return score_of_counts(
        "fbeta_score",
        y_true,
        y_pred,
        sample_weight,
        beta=beta,
        labels=labels,
        pos_label=pos_label,
        average=average,
        zero_division=zero_division,
    )


@as_in_sklearn
def jaccard_score(
    y_true: Values,
    y_pred: Values,
    *,
    labels: npt.ArrayLike | None = None,
    pos_label: float | str = 1,
    average: str | None = "binary",
    sample_weight: Values | None = None,
    zero_division: str | float = "warn",
) -> Any:
    """Return the right rows by those that have or are predicted a label, as `sklearn.metrics.jaccard_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    pos_label : int, float, bool or str, default=1
        The label whose value `average="binary"` returns.
    average : {"binary", "micro", "macro", "weighted", "samples"} or None, default="binary"
        How to average the values of the labels: None returns all of them, "binary" that of `pos_label`, and
        "samples" averages the values of rows that have several labels.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    float or ndarray of float64 of shape (n_labels,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return score_of_counts(
        "jaccard_score",
        y_true,
        y_pred,
        sample_weight,
        labels=labels,
        pos_label=pos_label,
        average=average,
        zero_division=zero_division,
    )


@as_in_sklearn
def precision_recall_fscore_support(
    y_true: Values,
    y_pred: Values,
    *,
    beta: float = 1.0,
    labels: npt.ArrayLike | None = None,
    pos_label: float | str = 1,
    average: str | None = None,
    warn_for: Sequence[str] = ("precision", "recall", "f-score"),
    sample_weight: Values | None = None,
    zero_division: str | float = "warn",
) -> tuple[Any, Any, Any, Any]:
    """Return precision, recall, F-score and number of rows, as `sklearn.metrics.precision_recall_fscore_support`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    beta : float, default=1.0
        Weight of recall against precision.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    pos_label : int, float, bool or str, default=1
        The label whose value `average="binary"` returns.
    average : {"binary", "micro", "macro", "weighted", "samples"} or None, default=None
        How to average the values of the labels: None returns all of them, "binary" that of `pos_label`, and
        "samples" averages the values of rows that have several labels.
    warn_for : list, tuple or set of str
        The values of whose divisions by zero a warning tells.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    precision : float or ndarray of float64 of shape (n_labels,)
    recall : float or ndarray of float64 of shape (n_labels,)
    fbeta_score : float or ndarray of float64 of shape (n_labels,)
    support : None or ndarray of shape (n_labels,)
        Number of rows that have each label, or the sum of their weights; None for an average.

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    precision, recall, fscore, support = score_of_counts(
        "precision_recall_fscore_support",
        y_true,
        y_pred,
        sample_weight,
        beta=beta,
        labels=labels,
        pos_label=pos_label,
        average=average,
        warn_for=warn_for,
        zero_division=zero_division,
    )
    if support is not None and sample_weight is None:
        support = np.rint(support).astype(np.int64)
    return precision, recall, fscore, support
