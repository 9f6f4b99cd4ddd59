"""Metrics of clusterings over the rows of all engines: silhouettes, Davies-Bouldin and Calinski-Harabasz scores."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_consistent_length, check_random_state

from xpulab._sklearn import Interval, validate_params
from xpulab.calls import public_call
from xpulab.checks import ONE_AT_A_TIME, check_X_y, column_or_1d, place_named
from xpulab.csr import as_sent, is_sparse, require_dense
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.parts import or_drawn
from xpulab.estimator.rows import FLOATS, in_floats, stays
from xpulab.estimator.sending import Result
from xpulab.scanning import scanned

__all__ = ["calinski_harabasz_score", "davies_bouldin_score", "silhouette_samples", "silhouette_score"]

#: scikit-learn's name -> the ranks' name.
_METRICS = {
    "euclidean": "euclidean",
    "l2": "euclidean",
    "sqeuclidean": "sqeuclidean",
    "manhattan": "manhattan",
    "cityblock": "manhattan",
    "l1": "manhattan",
    "chebyshev": "chebyshev",
    "cosine": "cosine",
    "minkowski": "minkowski",
}
_IGNORED = ("n_jobs", "working_memory")  # arguments that say how scikit-learn computes


@public_call
@validate_params(
    {"sample_size": [Interval(Integral, 1, None, closed="left"), None], "random_state": ["random_state"]},
    prefer_skip_nested_validation=True,
)
def silhouette_score(
    X: Any,
    labels: Any,
    *,
    metric: Any = "euclidean",
    sample_size: Any = None,
    random_state: np.random.RandomState | int | None = None,
    **kwds: Any,
) -> float:
    """Return the mean silhouette of all rows, as `sklearn.metrics.silhouette_score`.

    The silhouette of a row is ``(b - a) / max(a, b)``: `a` is the mean distance to the other rows of its cluster, and
    `b` the least mean distance to the rows of another cluster [1]_. The engines compute the distances from the
    differences of the values, in the dtype of X, and never write them; their sums are those of float64.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the engines
        themselves.
    labels : array-like or ShardedArray of shape (n_samples,)
        The cluster of each row: numbers or strings in an array, numbers in a handle.
    metric : str, default="euclidean"
        "euclidean" ("l2"), "sqeuclidean", "manhattan" ("cityblock", "l1"), "chebyshev", "cosine" or "minkowski".
    sample_size : int, optional
        Number of rows that are drawn, and used instead of all rows.
    random_state : int, RandomState instance or None, default=None
        The same number draws the same rows as in scikit-learn.
    **kwds : Any
        `p` for "minkowski", 2 by default. `n_jobs` and `working_memory` are accepted and ignored.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        For input that scikit-learn rejects, for sparse matrices, and for metrics that are not computed on the engines,
        such as "precomputed".
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.

    References
    ----------
    .. [1] P. J. Rousseeuw, "Silhouettes: a graphical aid to the interpretation and validation of cluster analysis",
       Journal of Computational and Applied Mathematics 20 (1987), 53-65.
    """
    how = _metric(metric, kwds)
    X, labels = _checked(X, labels)
    n, drawn = X.shape[0], None
    if sample_size is not None:
        drawn = check_random_state(random_state).permutation(n)[:sample_size]
        n = len(drawn)
        if not isinstance(X, ShardedArray):
            X, labels, drawn = np.ascontiguousarray(X[drawn]), labels[drawn], None
    clusters = _clusters_of("silhouette_score", labels, drawn)
    with or_drawn("sample_size=10_000" if sample_size is None else None):
        answer, _ = _asked("silhouette_score", "metrics.silhouette", X, metric=how, **clusters)
    return float(answer["total"] / n)


@public_call
def silhouette_samples(X: Any, labels: Any, *, metric: Any = "euclidean", **kwds: Any) -> np.ndarray:
    """Return the silhouette of each row, as `sklearn.metrics.silhouette_samples`.

    Parameters
    ----------
    X : array-like or ShardedArray of shape (n_samples, n_features)
        The rows, as for `silhouette_score`.
    labels : array-like of shape (n_samples,)
        The cluster of each row.
    metric : str, default="euclidean"
        The distance, as for `silhouette_score`.
    **kwds : float
        The `p` of "minkowski".

    Returns
    -------
    ndarray of shape (n_samples,)
        As in scikit-learn, float32 for float32 rows and the metrics "euclidean", "l2" and "cosine"; otherwise float64.
        A row that is alone in its cluster has 0.
    """
    how = _metric(metric, kwds)
    X, labels = _checked(X, labels)
    dtype = X.dtype if how[0] in ("euclidean", "cosine") and metric != "minkowski" else np.float64
    clusters = _clusters_of("silhouette_samples", labels)
    _, found = _asked("silhouette_samples", "metrics.silhouette", X, dtype, metric=how, **clusters)
    return np.asarray(found)


@public_call
def davies_bouldin_score(X: Any, labels: Any) -> float:
    """Return the mean similarity of each cluster with its most similar one, as `sklearn.metrics.davies_bouldin_score`.

    The similarity of two clusters is the sum of their mean distances from their means, divided by the distance of the
    means [1]_. All sums are float64.

    Parameters
    ----------
    X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        A memory-mapped array is read by the engines themselves, and so is a scan, in two passes if it does not fit.
        scikit-learn takes no sparse rows.
    labels : array-like or ShardedArray of shape (n_samples,)
        The cluster of each row: numbers or strings in an array, numbers in a handle.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        For input that scikit-learn rejects, except sparse rows.
    NoClusterError
        If no cluster is running.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.

    References
    ----------
    .. [1] D. L. Davies and D. W. Bouldin, "A cluster separation measure", IEEE Transactions on Pattern Analysis and
       Machine Intelligence 1 (1979), 224-227.
    """
    found, _ = _spreads("davies_bouldin_score", X, labels)
    unit = np.abs(found["means"]).max() or 1.0  # of which the squares overflow nowhere
    within, means = found["distances"] / found["counts"] / unit, found["means"] / unit
    between = cdist(means, means)  # from differences: products would lose them if the rows are far from zero
    rounding = 4 * np.finfo(np.float64).eps * np.linalg.norm(np.abs(means).max(axis=0))
    if (within <= rounding).all() or (between <= rounding).all():
        return 0.0
    between[between <= rounding] = np.inf
    return float(np.mean(np.max((within[:, None] + within) / between, axis=1)))


@public_call
def calinski_harabasz_score(X: Any, labels: Any) -> float:
    """Return the ratio of the variances between and within clusters, as `sklearn.metrics.calinski_harabasz_score` [1]_.

    Parameters
    ----------
    X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        The rows, as for `davies_bouldin_score`.
    labels : array-like of shape (n_samples,)
        The cluster of each row.

    Returns
    -------
    float

    References
    ----------
    .. [1] T. Calinski and J. Harabasz, "A dendrite method for cluster analysis", Communications in Statistics 3 (1974),
       1-27.
    """
    found, n = _spreads("calinski_harabasz_score", X, labels)
    counts, means, within = found["counts"], found["means"], found["squares"].sum()
    between = counts @ np.square(means - counts @ means / n).sum(axis=1)
    k = len(counts)
    return 1.0 if within == 0 else float(between * (n - k) / (within * (k - 1.0)))


def _metric(metric: Any, given: dict[str, Any]) -> tuple[str, float]:
    """Return the ranks' name of a metric, and p of "minkowski"."""
    if not isinstance(metric, str) or metric not in _METRICS:
        raise ValueError(
            f"metric={metric!r} is not computed on the engines; expected one of {', '.join(map(repr, _METRICS))}; for "
            "other metrics, and for distances that are precomputed, use sklearn.metrics.silhouette_score or "
            "sklearn.metrics.silhouette_samples"
        )
    known = {name: value for name, value in given.items() if name not in _IGNORED}
    p = known.pop("p", 2) if metric == "minkowski" else 2
    if known:
        raise ValueError(
            f"{', '.join(known)} was given for metric={metric!r}; expected only p, and only for metric='minkowski'; "
            "for other arguments use sklearn.metrics.silhouette_score"
        )
    if not p > 0:
        raise ValueError(f"p={p!r} was given; expected a number above 0 for the Minkowski metric")
    name = {1: "manhattan", 2: "euclidean", np.inf: "chebyshev"}.get(p) if metric == "minkowski" else None
    return name or _METRICS[metric], float(p)


def _checked(
    X: Any, labels: Any, dtype: npt.DTypeLike = "numeric", accept_sparse: str | bool = False
) -> tuple[Any, Any]:
    """Check rows and labels as scikit-learn does, with its dtype. Rows of handles and of files stay where they are."""
    if isinstance(labels, ShardedArray):
        labels.source(current_ranks())
        labels.require_finite("labels")
        if not stays(labels, X) or labels.ndim > 1:
            labels = labels.gather()
    if not isinstance(X, ShardedArray) and scanned(X) is None:
        with place_named(labels), place_named(X):
            checked, labels = check_X_y(X, labels, dtype=dtype, accept_sparse=accept_sparse)
        checked = in_floats(checked)
        return as_sent(checked) if is_sparse(checked) else checked, labels
    if not isinstance(labels, ShardedArray):
        labels = column_or_1d(labels, warn=True)
    if isinstance(X, ShardedArray):
        X.source(current_ranks())
        if not accept_sparse:
            require_dense(X)
        X.require_finite()
        if X.ndim != 2:
            raise ValueError(f"Expected 2D array, got a ShardedArray of shape {X.shape} instead")
    check_consistent_length(np.empty((X.shape[0], 0)), labels)
    return X, labels


def _clusters_of(function: str, labels: Any, drawn: np.ndarray | None = None) -> dict[str, Any]:
    """Return the arguments of a task that say in which cluster each row is, and how many clusters there are.

    Only the rows that were drawn count. The labels of a handle stay on the engines.
    """
    n = labels.shape[0] if drawn is None else len(drawn)
    found: dict[str, Any]
    if isinstance(labels, ShardedArray):
        send = None if drawn is None else lambda outgoing: {"chosen": outgoing.send(drawn)}
        with Call(Functions("metrics"), function, labels, current_ranks()) as call:
            classes = call.ask("labels.classes", send_more=send).results[0]["classes"]
        labels.require_exact(classes)
        k, found = len(classes), {"y": labels, "classes": classes, "send_more": send}
    else:
        encoder = LabelEncoder()
        with ONE_AT_A_TIME:
            codes = encoder.fit_transform(labels if drawn is None else labels[drawn])
        if drawn is not None:
            some, codes = codes, np.full(labels.shape[0], -1)
            codes[drawn] = some
        k, found = len(encoder.classes_), {"y": codes}
    if not 1 < k < n:
        raise ValueError(f"Number of labels is {k}. Valid values are 2 to n_samples - 1 (inclusive)")
    return {**found, "n_clusters": k}


def _spreads(function: str, X: Any, labels: Any) -> tuple[dict[str, Any], int]:
    X, labels = _checked(X, labels, "numeric" if function == "davies_bouldin_score" else FLOATS, accept_sparse="csr")
    return _asked(function, "metrics.clusters", X, **_clusters_of(function, labels))[0], X.shape[0]


def _asked(
    function: str, task: str, X: Any, dtype: npt.DTypeLike = None, **arguments: Any
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Run a task on the rows and their clusters; return the result of rank 0.

    With a dtype, the second result has an entry for each row.
    """
    result = None if dtype is None else Result(None, dtype)
    with Call(Functions("metrics"), function, X, current_ranks()) as call:
        answer = call.ask(task, result=result, at_once=task != "metrics.clusters", **arguments)
    return answer.results[0], None if result is None else result.value
