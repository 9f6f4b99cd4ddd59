"""Rows that have several labels: an array or a sparse matrix with a column for each label, and two values in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xpulab.checks import check_array, column_or_1d, type_of_target
from xpulab.data import ShardedArray
from xpulab.scanning import Scan

__all__ = ["are_indicators", "averaged", "averaged_over_columns", "distinct_rows"]

_Array = npt.NDArray[Any]


def are_indicators(y: Any) -> bool:
    """Return whether scikit-learn takes y for indicators of several labels of a row; a handle has one column."""
    two = getattr(y, "ndim", 0) == 2 or isinstance(y, list | tuple)
    if isinstance(y, ShardedArray | Scan) or not two:
        return False
    return bool(type_of_target(y, input_name="y_true") == "multilabel-indicator")


def distinct_rows(y: Any) -> tuple[_Array, Any]:
    """Return the place of each row among the distinct rows, float64 of shape (n_samples, 1), and these rows.

    Rows of indicators have two values, so that they differ where one of them is.
    """
    if sparse.issparse(y):
        rows = y.tocsr().copy()
        rows.sum_duplicates()
        bounds = rows.indptr.tolist()
        keys = [rows.indices[low:high].tobytes() for low, high in itertools.pairwise(bounds)]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        codes = np.array([places[key] for key in keys], np.intp)
        _, first = np.unique(codes, return_index=True)
    else:
        rows = np.asarray(y)
        bits = np.packbits(rows != rows.flat[0], axis=1)
        packed = np.ascontiguousarray(bits).view(f"V{bits.shape[1]}").ravel()
        _, first, codes = np.unique(packed, return_index=True, return_inverse=True)
    return codes.astype(np.float64).reshape(-1, 1), rows[first]


def averaged_over_columns(
    metric: Callable[..., Any], theirs: Callable[..., Any], y_true: Any, y_score: Any, average: Any, weights: Any
) -> Any:
    """Return a metric of the scores of each label, averaged as in scikit-learn.

    Parameters
    ----------
    metric : callable
        It gets a column of indicators, one of scores, and ``sample_weight``, and has the engines compute.
    theirs : callable
        scikit-learn's function, for ``average="samples"``: a row is too short for a task of the engines.
    y_true, y_score : array-like of shape (n_samples, n_labels)
    average : {"micro", "macro", "weighted", "samples"} or None
    weights : array-like of shape (n_samples,), optional
    """
    if average == "samples":
        return theirs(y_true, y_score, average=average, sample_weight=weights)
    truth = np.asarray(y_true)
    scores = check_array(y_score, dtype=[np.float64, np.float32], input_name="y_score")
    if truth.shape != scores.shape:
        raise ValueError(f"y_score has the shape {scores.shape}; expected that of the indicators, {truth.shape}")
    weights = None if weights is None else column_or_1d(weights).astype(np.float64)
    if average == "micro":
        every = None if weights is None else np.repeat(weights, truth.shape[1])
        return metric(truth.ravel(), scores.ravel(), sample_weight=every)
    shares = (truth if weights is None else truth * weights[:, np.newaxis]).sum(axis=0, dtype=np.float64)
    if average == "weighted" and np.isclose(shares.sum(), 0.0):
        return 0
    values = [metric(*columns, sample_weight=weights) for columns in zip(truth.T, scores.T, strict=True)]
    return averaged(np.array(values, np.float64), shares, average)


def averaged(values: _Array, shares: _Array, average: str | None) -> Any:
    """Return the values of the labels, or an average; `shares` are the weights of the labels."""
    if average is None:
        return values
    if average == "weighted":
        values[shares == 0] = 0
    return float(np.average(values, weights=shares if average == "weighted" else None))
