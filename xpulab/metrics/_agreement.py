"""Metrics that compare two clusterings of the same rows, from the number of rows of each pair of clusters."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.metrics.cluster import expected_mutual_information

from xpulab.checks import ONE_AT_A_TIME, type_of_target
from xpulab.data import ShardedArray
from xpulab.metrics._columns import Values, as_in_sklearn, call_theirs
from xpulab.metrics._counted import counted_pairs, label_columns
from xpulab.scanning import Scan

__all__ = [
    "adjusted_mutual_info_score",
    "adjusted_rand_score",
    "completeness_score",
    "fowlkes_mallows_score",
    "homogeneity_completeness_v_measure",
    "homogeneity_score",
    "normalized_mutual_info_score",
    "rand_score",
    "v_measure_score",
]


@as_in_sklearn
def rand_score(labels_true: Values, labels_pred: Values) -> float:
    """Return the share of pairs of rows on which both clusterings agree, as `sklearn.metrics.rand_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    (apart, only_second), (only_first, together) = _pairs("rand_score", labels_true, labels_pred)
    agree, every = apart + together, apart + together + only_first + only_second
    return 1.0 if agree == every or not every else agree / every


@as_in_sklearn
def adjusted_rand_score(labels_true: Values, labels_pred: Values) -> float:
    """Return the Rand index less that of chance, as `sklearn.metrics.adjusted_rand_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    (apart, only_second), (only_first, together) = _pairs("adjusted_rand_score", labels_true, labels_pred)
    if not only_first and not only_second:
        return 1.0
    both = (together + only_first) * (only_first + apart) + (together + only_second) * (only_second + apart)
    return 2.0 * (together * apart - only_first * only_second) / both


@as_in_sklearn
def fowlkes_mallows_score(labels_true: Values, labels_pred: Values) -> float:
    """Return the geometric mean of precision and recall of pairs of rows, as `sklearn.metrics.fowlkes_mallows_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    (_, only_second), (only_first, together) = _pairs("fowlkes_mallows_score", labels_true, labels_pred)
    if not together:
        return 0.0
    return math.sqrt(together / (together + only_second)) * math.sqrt(together / (together + only_first))


@as_in_sklearn
def normalized_mutual_info_score(
    labels_true: Values, labels_pred: Values, *, average_method: str = "arithmetic"
) -> float:
    """Return the mutual information by the entropy, as `sklearn.metrics.normalized_mutual_info_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.
    average_method : {"min", "geometric", "arithmetic", "max"}, default="arithmetic"
        How to average the entropies of the two clusterings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    table = _contingency("normalized_mutual_info_score", labels_true, labels_pred)
    if _is_one(table):
        return 1.0
    information = _mutual_information(table)
    if information == 0:
        return 0.0
    return information / _average(_entropy(table.sum(axis=1)), _entropy(table.sum(axis=0)), average_method)


@as_in_sklearn
def adjusted_mutual_info_score(
    labels_true: Values, labels_pred: Values, *, average_method: str = "arithmetic"
) -> float:
    """Return the mutual information less that of chance, as `sklearn.metrics.adjusted_mutual_info_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.
    average_method : {"min", "geometric", "arithmetic", "max"}, default="arithmetic"
        How to average the entropies of the two clusterings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    table = _contingency("adjusted_mutual_info_score", labels_true, labels_pred)
    if min(table.shape) <= 1:
        return 1.0 if _is_one(table) else 0.0
    information = _mutual_information(table)
    with ONE_AT_A_TIME:
        chance = float(expected_mutual_information(table, int(table.sum())))
    mean = _average(_entropy(table.sum(axis=1)), _entropy(table.sum(axis=0)), average_method)
    return _away_from_zero(information - chance) / _away_from_zero(mean - chance)


@as_in_sklearn
def homogeneity_completeness_v_measure(
    labels_true: Values, labels_pred: Values, *, beta: float = 1.0
) -> tuple[float, float, float]:
    """Return the three scores, as `sklearn.metrics.homogeneity_completeness_v_measure`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.
    beta : float, default=1.0
        Weight of homogeneity against completeness.

    Returns
    -------
    homogeneity : float
    completeness : float
    v_measure : float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    table = _contingency("homogeneity_completeness_v_measure", labels_true, labels_pred)
    return _homogeneity_completeness_v_measure(table, beta)


@as_in_sklearn
def homogeneity_score(labels_true: Values, labels_pred: Values) -> float:
    """Return how far clusters have rows of one true cluster only, as `sklearn.metrics.homogeneity_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    table = _contingency("homogeneity_score", labels_true, labels_pred)
    return _homogeneity_completeness_v_measure(table, 1.0)[0]


@as_in_sklearn
def completeness_score(labels_true: Values, labels_pred: Values) -> float:
    """Return how far the rows of a true cluster are in one cluster, as `sklearn.metrics.completeness_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    table = _contingency("completeness_score", labels_true, labels_pred)
    return _homogeneity_completeness_v_measure(table, 1.0)[1]


@as_in_sklearn
def v_measure_score(labels_true: Values, labels_pred: Values, *, beta: float = 1.0) -> float:
    """Return the harmonic mean of homogeneity and completeness, as `sklearn.metrics.v_measure_score`.

    Parameters
    ----------
    labels_true, labels_pred : array-like or ShardedArray of shape (n_samples,)
        The clusters of two clusterings of the same rows: numbers or strings.
    beta : float, default=1.0
        Weight of homogeneity against completeness.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        For input that scikit-learn rejects.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    table = _contingency("v_measure_score", labels_true, labels_pred)
    return _homogeneity_completeness_v_measure(table, beta)[2]


def _contingency(function: str, labels_true: Values, labels_pred: Values) -> Any:
    """Return the number of rows by cluster of the first and of the second clustering, as a CSR matrix of int64."""
    shapes = [
        each.shape if isinstance(each, ShardedArray | Scan) else np.shape(each) for each in (labels_true, labels_pred)
    ]
    for shape, name in zip(shapes, ("labels_true", "labels_pred"), strict=True):
        if len(shape) != 1:
            raise ValueError(f"{name} must be 1D: shape is {shape!r}")
    if shapes == [(0,), (0,)]:
        return sparse.csr_array((0, 0), dtype=np.int64)
    pairs = counted_pairs(function, *label_columns(labels_true, labels_pred, discrete=False))
    kinds = [type_of_target(each) for each in pairs[:2]]
    if any(kind.startswith("continuous") for kind in kinds):
        warnings.warn(
            f"Clustering metrics expects discrete values but received {kinds[0]} values for label, and {kinds[1]} "
            "values for target",
            UserWarning,
            stacklevel=4,
        )
    return _counted_clusters(*pairs)


def _counted_clusters(first: npt.NDArray[Any], second: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Any:
    """Return the matrix of counts for pairs of clusters."""
    places = [np.unique(each, return_inverse=True)[1] for each in (first, second)]
    return sparse.csr_array((counts, tuple(places)), dtype=np.int64)


def _pairs(function: str, labels_true: Values, labels_pred: Values) -> tuple[tuple[int, int], tuple[int, int]]:
    """Count the pairs of rows: not together in the first clustering, and together; and so in the second.

    The counts of pairs, which are ordered, are Python's integers: those of many rows do not fit into 64 bits.
    """
    table = _contingency(function, labels_true, labels_pred)
    n = int(table.sum())
    squares = sum(int(count) ** 2 for count in table.data)
    in_first, in_second = (sum(int(count) ** 2 for count in table.sum(axis=axis)) for axis in (1, 0))
    only_first, only_second, together = in_first - squares, in_second - squares, squares - n
    return (n * n - squares - only_first - only_second, only_second), (only_first, together)


def _is_one(table: Any) -> bool:
    """Whether both clusterings have one cluster, or none."""
    return max(table.shape) <= 1


def _mutual_information(table: Any) -> float:
    return float(call_theirs("mutual_info_score", None, None, contingency=table))


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    """Return the entropy of a clustering, in nats."""
    n = counts.sum()
    if len(counts) == 1:
        return 0.0
    return float(-np.sum((counts / n) * (np.log(counts) - math.log(n))))


def _away_from_zero(value: float) -> float:
    """Return the value, whose size is at least the rounding of 1: chance may equal a perfect match but for rounding."""
    return math.copysign(max(abs(value), float(np.finfo(np.float64).eps)), -1.0 if value < 0 else 1.0)


def _average(first: float, second: float, method: str) -> float:
    ways = {"min": min(first, second), "max": max(first, second), "geometric": math.sqrt(first * second)}
    return ways.get(method, (first + second) / 2)


def _homogeneity_completeness_v_measure(table: Any, beta: float) -> tuple[float, float, float]:
    if not table.shape[0]:
        return 1.0, 1.0, 1.0
    of_first, of_second = _entropy(table.sum(axis=1)), _entropy(table.sum(axis=0))
    information = _mutual_information(table)
    homogeneity = information / of_first if of_first else 1.0
    completeness = information / of_second if of_second else 1.0
    if homogeneity + completeness == 0.0:
        return homogeneity, completeness, 0.0
    return (
        homogeneity,
        completeness,
        (1 + beta) * homogeneity * completeness / (beta * homogeneity + completeness),
    )
