"""Metrics of scores by which rows are ranked: curves over all thresholds, and the areas below them.

The engines return the distinct scores of each label with the sums of their weights. In this process, scikit-learn's
function gets a row for each, with that sum as its weight: the result is exact.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.checks import type_of_target
from xpulab.data import ShardedArray
from xpulab.metrics._columns import (
    Values,
    as_in_sklearn,
    call_theirs,
    checked_column,
    checked_score_weights,
    labels_of,
    read_by_engines,
    require_aligned,
    sums,
)
from xpulab.metrics._indicators import are_indicators, averaged, averaged_over_columns
from xpulab.scanning import Scan

__all__ = ["average_precision_score", "det_curve", "precision_recall_curve", "roc_auc_score", "roc_curve"]

_Array = npt.NDArray[Any]


@as_in_sklearn
def roc_curve(
    y_true: Values,
    y_score: Values,
    *,
    pos_label: float | str | None = None,
    sample_weight: Values | None = None,
    drop_intermediate: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return false and true positive rates by threshold, as `sklearn.metrics.roc_curve`.

    Each rank sorts its scores, and the first one merges them. This process gets each distinct score of each label, for
    which it needs about 60 bytes.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
    y_score : array-like or ShardedArray of shape (n_samples,)
        Scores, which are larger for rows that rather have the label `pos_label`.
    pos_label : int, float, bool or str, optional
        The label that scores are of; by default 1, if the labels are 0 and 1, or -1 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    drop_intermediate : bool, default=True
        Whether to leave out thresholds whose points are on a line with others, or change nothing.

    Returns
    -------
    fpr : ndarray of shape (n_thresholds,)
    tpr : ndarray of shape (n_thresholds,)
    thresholds : ndarray of shape (n_thresholds,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return _curve("roc_curve", y_true, y_score, sample_weight, pos_label=pos_label, drop_intermediate=drop_intermediate)


@as_in_sklearn
def precision_recall_curve(
    y_true: Values,
    y_score: Values,
    *,
    pos_label: float | str | None = None,
    sample_weight: Values | None = None,
    drop_intermediate: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precisions and recalls by threshold, as `sklearn.metrics.precision_recall_curve`.

    Each rank sorts its scores, and the first one merges them. This process gets each distinct score of each label, for
    which it needs about 60 bytes.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
    y_score : array-like or ShardedArray of shape (n_samples,)
        Scores, which are larger for rows that rather have the label `pos_label`.
    pos_label : int, float, bool or str, optional
        The label that scores are of; by default 1, if the labels are 0 and 1, or -1 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    drop_intermediate : bool, default=False
        Whether to leave out thresholds whose points are on a line with others, or change nothing.

    Returns
    -------
    precision : ndarray of shape (n_thresholds + 1,)
    recall : ndarray of shape (n_thresholds + 1,)
    thresholds : ndarray of shape (n_thresholds,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return _curve(
        "precision_recall_curve",
        y_true,
        y_score,
        sample_weight,
        pos_label=pos_label,
        drop_intermediate=drop_intermediate,
    )


@as_in_sklearn
def det_curve(
    y_true: Values,
    y_score: Values,
    pos_label: float | str | None = None,
    sample_weight: Values | None = None,
    drop_intermediate: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return false positive and false negative rates by threshold, as `sklearn.metrics.det_curve`.

    Each rank sorts its scores, and the first one merges them. This process gets each distinct score of each label, for
    which it needs about 60 bytes.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,)
        Labels: numbers or strings.
    y_score : array-like or ShardedArray of shape (n_samples,)
        Scores, which are larger for rows that rather have the label `pos_label`.
    pos_label : int, float, bool or str, optional
        The label that scores are of; by default 1, if the labels are 0 and 1, or -1 and 1.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    drop_intermediate : bool, default=False
        Whether to leave out thresholds whose points are on a line with others, or change nothing.

    Returns
    -------
    fpr : ndarray of shape (n_thresholds,)
    fnr : ndarray of shape (n_thresholds,)
    thresholds : ndarray of shape (n_thresholds,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    return _curve("det_curve", y_true, y_score, sample_weight, pos_label=pos_label, drop_intermediate=drop_intermediate)


@as_in_sklearn
def roc_auc_score(
    y_true: Values,
    y_score: Values,
    *,
    average: str | None = "macro",
    sample_weight: Values | None = None,
    max_fpr: float | None = None,
    multi_class: str = "raise",
    labels: npt.ArrayLike | None = None,
) -> Any:
    """Return the area below the curve of false and true positive rates, as `sklearn.metrics.roc_auc_score`.

    Each rank sorts its scores, and the first one merges them and computes the area. Only `average="micro"`,
    `multi_class="ovo"` and `max_fpr` bring each distinct score of each label to this process: about 60 bytes for each.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_classes)
        Labels: numbers or strings. An array of indicators has 1 for each label of a row.
    y_score : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_classes)
        Scores of the greater of two labels, or of several labels in ascending order.
    average : {"micro", "macro", "weighted", "samples"} or None, default="macro"
        How to average the areas of several labels; None returns all of them. "samples", for indicators, averages the
        areas of rows, in this process.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.
    max_fpr : float, optional
        Largest false positive rate of a part of the area, for two labels.
    multi_class : {"raise", "ovr", "ovo"}, default="raise"
        Whether to compare each label with the rest, or each pair of labels.
    labels : array-like of shape (n_classes,), optional
        The labels of the columns of scores, if some do not occur in `y_true`.

    Returns
    -------
    float or ndarray of float64 of shape (n_classes,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if are_indicators(y_true):
        of_column = partial(roc_auc_score, max_fpr=max_fpr)
        theirs = partial(call_theirs, "roc_auc_score", max_fpr=max_fpr)
        return averaged_over_columns(of_column, theirs, y_true, y_score, average, sample_weight)
    columns = _columns_of(y_score)
    if columns > 2:
        _require_multiclass(average, max_fpr, multi_class, sample_weight)
    on_engines = multi_class != "ovo" and average != "micro" and max_fpr in (None, 1.0)
    ranked = _ranked("roc_auc_score", y_true, y_score, sample_weight, on_engines)
    if len(ranked.labels) <= 2 and columns <= 2:
        if columns == 2:
            raise ValueError("y_score should be a 1d array for two labels, got an array of two columns instead.")
        if ranked.areas is not None:
            return float(ranked.areas[-1, 0])
        return call_theirs("roc_auc_score", **ranked.rows(0, "y_score"), max_fpr=max_fpr)
    _require_multiclass(average, max_fpr, multi_class, sample_weight)
    if columns < 2:
        raise ValueError(
            "`y_score` needs to be of shape `(n_samples, n_classes)`, since `y_true` contains multiple classes. "
            "Got one column."
        )
    if not ranked.add_up:
        raise ValueError(
            "Target scores need to be probabilities for multiclass roc_auc, i.e. they should sum up to 1.0 over classes"
        )
    classes = _classes_of_columns(ranked.labels, labels, columns)
    if multi_class == "ovo":
        return _of_pairs(ranked, classes, average)
    if ranked.areas is not None:
        return averaged(ranked.areas[:, 0], ranked.areas[:, 2], average)
    return _of_each(partial(call_theirs, "roc_auc_score"), ranked, classes, average)


@as_in_sklearn
def average_precision_score(
    y_true: Values,
    y_score: Values,
    *,
    average: str | None = "macro",
    pos_label: float | str = 1,
    sample_weight: Values | None = None,
) -> Any:
    """Return the mean of precisions by the growth of recall, as `sklearn.metrics.average_precision_score`.

    Each rank sorts its scores, and the first one merges them and computes the mean. Only `average="micro"` of several
    labels brings each distinct score of each label to this process: about 60 bytes for each.

    Parameters
    ----------
    y_true : array-like or ShardedArray of shape (n_samples,), or indicators of shape (n_samples, n_classes)
        Labels: numbers or strings. An array of indicators has 1 for each label of a row.
    y_score : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_classes)
        Scores of the greater of two labels, or of several labels in ascending order.
    average : {"micro", "macro", "samples", "weighted"} or None, default="macro"
        How to average the values of several labels; None returns all of them. "samples" averages the
        values of rows, in this process, and is refused for handles.
    pos_label : int, float, bool or str, default=1
        The label that a single column of scores is of.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows.

    Returns
    -------
    float or ndarray of float64 of shape (n_classes,)

    Raises
    ------
    ValueError
        For input that scikit-learn rejects, and for a handle of several columns of labels.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    theirs, n_columns = partial(call_theirs, "average_precision_score"), _columns_of(y_score)
    if are_indicators(y_true):
        if pos_label != 1:
            raise ValueError(
                "Parameter pos_label is fixed to 1 for multilabel-indicator y_true. Do not set pos_label or set "
                "pos_label to 1."
            )
        return averaged_over_columns(average_precision_score, theirs, y_true, y_score, average, sample_weight)
    if average == "samples" and n_columns > 1:
        if any(isinstance(each, ShardedArray | Scan) for each in (y_true, y_score)):
            raise ValueError(
                "average='samples' was given, which sorts the scores of each row; expected another average, or arrays: "
                "y_score.gather()"
            )
        return theirs(y_true, y_score, average=average, pos_label=pos_label, sample_weight=sample_weight)
    ranked = _ranked("average_precision_score", y_true, y_score, sample_weight, average != "micro" or n_columns == 1)
    if len(ranked.labels) <= 2 and ranked.areas is not None and n_columns == 1:
        call_theirs("average_precision_score", ranked.labels, np.arange(2.0), pos_label=pos_label)
        return float(ranked.areas[list(ranked.labels).index(pos_label), 1])
    if len(ranked.labels) <= 2:
        return theirs(**ranked.rows(0, "y_score"), pos_label=pos_label)
    if pos_label != 1:
        raise ValueError(
            "Parameter pos_label is fixed to 1 for multiclass y_true. Do not set pos_label or set pos_label to 1."
        )
    if len(ranked.labels) != n_columns:
        raise ValueError(
            "`y_score` needs to be of shape `(n_samples, n_classes)`, since `y_true` contains multiple classes. Got "
            f"{n_columns} columns for {len(ranked.labels)} classes."
        )
    if ranked.areas is not None:
        return averaged(ranked.areas[:, 1], ranked.areas[:, 2], average)
    return _of_each(theirs, ranked, ranked.labels, average)


@dataclass(frozen=True)
class _Ranked:
    """The distinct scores of each label, by column of scores.

    Attributes
    ----------
    labels : numpy.ndarray
        The labels that occur, in ascending order.
    tables : list of tuple
        For each column the places of the labels, the scores, and the sums of their weights.
    add_up : bool
        Whether the scores of each row add up to 1.
    areas : numpy.ndarray of shape (n_labels, 3) or None
        In place of tables, for each label the area below its ROC curve, its average precision, and its weight.
    """

    labels: _Array
    tables: list[tuple[_Array, _Array, _Array]]
    add_up: bool
    areas: _Array | None = None

    def rows(self, column: int, scores: str) -> dict[str, _Array]:
        """Return arguments for a function of scikit-learn: labels, scores and weights."""
        codes, values, weights = self.tables[column]
        return {"y_true": self.labels[codes], scores: values, "sample_weight": weights}

    def binary(self, column: int, label: Any, among: Any = None) -> tuple[_Array, _Array, _Array]:
        """Return for a label against all others, or `among` some labels: which rows have it, scores and weights."""
        codes, values, weights = self.tables[column]
        if among is not None:
            some = np.isin(self.labels[codes], among)
            codes, values, weights = codes[some], values[some], weights[some]
        return (self.labels[codes] == label).astype(np.int64), values, weights


def _ranked(
    function: str, y_true: Values, y_score: Values, sample_weight: Values | None, on_engines: bool = False
) -> _Ranked:
    """Check labels, scores and weights, and have the engines sort them.

    With `on_engines`, these compute areas, which are defined if there is one column of scores for two labels, or one
    for each label, and if each label has a weight. With negative weights scikit-learn decides what is defined.
    """
    y_true, y_score = read_by_engines(y_true, y_score)
    scores, truth = checked_column(y_score, "y_score"), labels_of(y_true)
    require_aligned(truth.column, scores)
    weights = checked_score_weights(sample_weight, truth.column)
    if on_engines and not (isinstance(weights, np.ndarray) and weights.min() < 0):
        found = sums(function, "metrics.areas", scores, truth.column, weights)
        labels = truth.decode(found["labels"])
        if type_of_target(labels).startswith("continuous"):
            raise ValueError("continuous format is not supported")
        if len(found["areas"]) > 1 and not np.isnan(found["areas"]).any():
            return _Ranked(labels, [], found["add_up"], found["areas"])
    found = sums(function, "metrics.scores", scores, truth.column, weights)
    tables = [
        (each["codes"], each["values"], each["weights"] if weights is not None else each["weights"].astype(np.int64))
        for each in found["tables"]
    ]
    return _Ranked(truth.decode(found["labels"]), tables, found["add_up"])


def _columns_of(y_score: Values) -> int:
    """Return the number of columns of scores that nobody has checked yet."""
    shape = y_score.shape if hasattr(y_score, "shape") else np.shape(y_score)
    return int(shape[1]) if len(shape) > 1 else 1


def _curve(function: str, y_true: Values, y_score: Values, sample_weight: Values | None, **parameters: Any) -> Any:
    if _columns_of(y_score) != 1:
        raise ValueError(f"y should be a 1d array, got an array of {_columns_of(y_score)} columns instead.")
    ranked = _ranked(function, y_true, y_score, sample_weight)
    return call_theirs(function, **ranked.rows(0, "y_score"), **parameters)


def _require_multiclass(average: Any, max_fpr: Any, multi_class: str, sample_weight: Values | None) -> None:
    """Raise the errors of scikit-learn for parameters that are not for several labels."""
    if max_fpr is not None and max_fpr != 1.0:
        raise ValueError(
            "Partial AUC computation not available in multiclass setting, 'max_fpr' must be set to `None`, received "
            f"`max_fpr={max_fpr}` instead"
        )
    if multi_class == "raise":
        raise ValueError("multi_class must be in ('ovo', 'ovr')")
    options = ("micro", "macro", "weighted", None) if multi_class == "ovr" else ("macro", "weighted", None)
    if average not in options:
        raise ValueError(f"average must be one of {options} for multiclass problems")
    if multi_class == "ovo" and average is None:
        raise NotImplementedError("average=None is not implemented for multi_class='ovo'.")
    if multi_class == "ovo" and sample_weight is not None:
        raise ValueError(
            "sample_weight is not supported for multiclass one-vs-one ROC AUC, 'sample_weight' must be None in "
            "this case."
        )


def _classes_of_columns(there: _Array, labels: Any, n_columns: int) -> _Array:
    """Return the labels of the columns of scores."""
    if labels is None:
        if len(there) != n_columns:
            raise ValueError("Number of classes in y_true not equal to the number of columns in 'y_score'")
        return there
    given = np.asarray(labels).ravel()
    classes = np.unique(given)
    if len(classes) != len(given):
        raise ValueError("Parameter 'labels' must be unique")
    if not np.array_equal(classes, given):
        raise ValueError("Parameter 'labels' must be ordered")
    if len(classes) != n_columns:
        raise ValueError(
            f"Number of given labels, {len(classes)}, not equal to the number of columns in 'y_score', {n_columns}"
        )
    if len(np.setdiff1d(there, classes)):
        raise ValueError("'y_true' contains labels not in parameter 'labels'")
    return classes


def _of_each(metric: Any, ranked: _Ranked, classes: _Array, average: str | None) -> Any:
    """Return the metric of each label against the others, or an average."""
    each = [ranked.binary(column, label) for column, label in enumerate(classes)]
    if average == "micro":
        rows = [np.concatenate(parts) for parts in zip(*each, strict=True)]
        return metric(rows[0], rows[1], sample_weight=rows[2])
    shares = np.array([(has * weights).sum() for has, _, weights in each], np.float64)
    if average == "weighted" and np.isclose(shares.sum(), 0.0):
        return 0
    values = np.array([metric(has, scores, sample_weight=weights) for has, scores, weights in each], np.float64)
    return averaged(values, shares, average)


def _of_pairs(ranked: _Ranked, classes: _Array, average: str | None) -> float:
    """Return the average area of all pairs of labels, each of which is the mean of two columns."""
    values, shares = [], []
    for pair in itertools.combinations(np.flatnonzero(np.isin(classes, ranked.labels)), 2):
        both = classes[list(pair)]
        areas = []
        for column in pair:
            has, scores, weights = ranked.binary(column, classes[column], both)
            areas.append(call_theirs("roc_auc_score", has, scores, sample_weight=weights))
        values.append(np.mean(areas))
        shares.append(weights.sum())
    return float(np.average(values, weights=shares if average == "weighted" else None))
