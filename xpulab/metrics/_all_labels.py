"""Metrics of all labels, from the counts of true and predicted labels."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from xpulab.metrics._columns import Values, as_in_sklearn
from xpulab.metrics._counted import score_of_counts

__all__ = ["balanced_accuracy_score", "classification_report", "cohen_kappa_score", "matthews_corrcoef"]


@as_in_sklearn
def classification_report(
    y_true: Values,
    y_pred: Values,
    *,
    labels: npt.ArrayLike | None = None,
    target_names: npt.ArrayLike | None = None,
    sample_weight: Values | None = None,
    digits: int = 2,
    output_dict: bool = False,
    zero_division: str | float = "warn",
) -> str | dict[str, object]:
    """Return precision, recall and F1-score of each label as a text, as `sklearn.metrics.classification_report`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_labels)
        Labels: numbers or strings. An array or a sparse matrix of indicators has 1 for each label of a row.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    target_names : array-like of shape (n_labels,), optional
        What the report calls the labels, in their order.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    digits : int, default=2
        Number of digits of the numbers in the text.
    output_dict : bool, default=False
        Whether to return a dict in place of a text.
    zero_division : {"warn", 0.0, 1.0, np.nan}, default="warn"
        The value of a division by zero; "warn" is 0 with a warning.

    Returns
    -------
    str or dict

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    report = score_of_counts(
        "classification_report",
        y_true,
        y_pred,
        sample_weight,
        labels=labels,
        target_names=target_names,
        digits=digits,
        output_dict=output_dict,
        zero_division=zero_division,
    )
    if output_dict or sample_weight is not None:
        return report
    return _with_whole_numbers(report)


def _with_whole_numbers(report: str) -> str:
    """Return the text with numbers of rows that are no floats; scikit-learn has the sum of the weights of pairs."""
    return re.sub(r" +(\d+)\.0$", lambda found: f" {found[1]:>9}", report, flags=re.MULTILINE)


@as_in_sklearn
def balanced_accuracy_score(
    y_true: Values, y_pred: Values, *, sample_weight: Values | None = None, adjusted: bool = False
) -> float:
    """Return the mean of the recalls of all labels, as `sklearn.metrics.balanced_accuracy_score`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    adjusted : bool, default=False
        Whether chance has the value 0, and right predictions 1.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return float(score_of_counts("balanced_accuracy_score", y_true, y_pred, sample_weight, adjusted=adjusted))


@as_in_sklearn
def matthews_corrcoef(y_true: Values, y_pred: Values, *, sample_weight: Values | None = None) -> float:
    """Return the correlation of true and predicted labels, as `sklearn.metrics.matthews_corrcoef`.

    Parameters
    ----------
    y_true, y_pred : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return float(score_of_counts("matthews_corrcoef", y_true, y_pred, sample_weight))


@as_in_sklearn
def cohen_kappa_score(
    y1: Values,
    y2: Values,
    *,
    labels: npt.ArrayLike | None = None,
    weights: str | None = None,
    sample_weight: Values | None = None,
    replace_undefined_by: float = np.nan,
) -> float:
    """Return how far two sets of labels agree beyond chance, as `sklearn.metrics.cohen_kappa_score`.

    Parameters
    ----------
    y1, y2 : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
    labels : array-like of shape (n_labels,), optional
        The labels that count, in the order of results by label. By default all labels that occur, in ascending order.
    weights : {"linear", "quadratic"} or None, default=None
        How the distance of two labels counts; None for the same weight of all that differ.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    replace_undefined_by : float, default=np.nan
        The value if all rows have one label; scikit-learn has this parameter since 1.9.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    parameters = {"labels": labels, "weights": weights, "replace_undefined_by": replace_undefined_by}
    return float(score_of_counts("cohen_kappa_score", y1, y2, sample_weight, **parameters))
