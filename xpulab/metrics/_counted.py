"""Counts of the pairs of true and predicted labels, from which scikit-learn's own functions compute many metrics.

The engines count the rows of each pair of labels, and sum their weights. In this process, scikit-learn's function gets
a row for each pair, with that sum as its weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xpulab.metrics._columns import (
    Labels,
    Values,
    call_theirs,
    checked_score_weights,
    labels_of,
    read_by_engines,
    require_aligned,
    sums,
)

__all__ = ["counted_pairs", "label_columns", "score_of_counts"]

_Array = npt.NDArray[Any]


def label_columns(
    y_true: Values, y_pred: Values, sample_weight: Values | None = None, discrete: bool = True
) -> tuple[Labels, Labels, Any]:
    """Check true and predicted labels and weights."""
    y_true, y_pred = read_by_engines(y_true, y_pred)
    truth, predicted = (
        labels_of(y, name, discrete, several=discrete) for y, name in ((y_true, "y_true"), (y_pred, "y_pred"))
    )
    if truth.several != predicted.several:
        kinds = ["multilabel-indicator" if each.several else "single-label" for each in (truth, predicted)]
        raise ValueError(f"Classification metrics can't handle a mix of {kinds[0]} and {kinds[1]} targets")
    if truth.strings != predicted.strings and discrete:
        raise ValueError(
            "labels that are strings were given together with labels that are numbers; expected the same kind: "
            "encode the strings as numbers first"
        )
    require_aligned(truth.column, predicted.column)
    return truth, predicted, checked_score_weights(sample_weight, truth.column)


def counted_pairs(function: str, truth: Labels, predicted: Labels, weights: Any = None) -> tuple[Any, Any, _Array]:
    """Return the true and predicted label of each pair that occurs, and its weight, or its number of rows.

    If rows have several labels, a pair is of distinct rows of indicators.
    """
    found = sums(function, "metrics.contingency", truth.column, predicted.column, weights)
    labels, (rows, columns, counts, weighed) = found["labels"], found["pairs"]
    of_truth, of_predicted = (each.decode(codes) for each, codes in zip((truth, predicted), labels, strict=True))
    return of_truth[rows], of_predicted[columns], counts.astype(np.int64) if weights is None else weighed


def score_of_counts(
    function: str, y_true: Values, y_pred: Values, sample_weight: Values | None, **parameters: Any
) -> Any:
    """Return what scikit-learn's function returns for these labels, from the counts of pairs."""
    columns = label_columns(y_true, y_pred, sample_weight)
    truth, predicted, counts = counted_pairs(function, *columns)
    return call_theirs(function, truth, predicted, sample_weight=counts, **parameters)
