"""`KNeighborsRegressor`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import sklearn.neighbors

from xpulab._sklearn import _fit_context
from xpulab.deploy.cluster import XPUCluster
from xpulab.estimator.rows import gathered_targets
from xpulab.estimator.scoring import ScoredHere
from xpulab.neighbors._searching import NeighborsProxy

__all__ = ["KNeighborsRegressor"]


class KNeighborsRegressor(ScoredHere, NeighborsProxy, sklearn.neighbors.KNeighborsRegressor):
    """Regression by the mean target of the nearest neighbours, for which all engines of the active cluster search.

    Parameters, attributes and results are those of `sklearn.neighbors.KNeighborsRegressor`, for any number of engines.
    The engines keep the rows and find the neighbours, as for `NearestNeighbors`. This process keeps the targets, and
    computes their means.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of a query.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Weights of the neighbours: "uniform" and None give each the weight 1, and "distance" the inverse of its
        distance. A callable gets an array of distances, and returns an array of weights of the same shape.
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Accepted for compatibility with scikit-learn: each query is compared with all rows.
    leaf_size : int, default=30
        Accepted and ignored.
    p : float, default=2
        The power of "minkowski".
    metric : str, default="minkowski"
        "euclidean" ("l2"), "sqeuclidean", "manhattan" ("cityblock", "l1"), "chebyshev" ("infinity"), "cosine" or
        "minkowski".
    metric_params : dict, optional
        ``{"p": ...}`` for "minkowski".
    n_jobs : int, optional
        Accepted and ignored: all engines compute.

    Attributes
    ----------
    effective_metric_ : str
        The metric that is computed, such as "euclidean" for "minkowski" with `p` = 2.
    effective_metric_params_ : dict
        Its parameters.
    n_samples_fit_ : int
        Number of rows of the fit.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.neighbors.KNeighborsRegressor : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.neighbors import KNeighborsRegressor
    >>> with xpulab.XPUCluster(n=2):
    ...     KNeighborsRegressor(n_neighbors=2).fit([[0.0], [1.0], [2.0]], [0.0, 0.0, 1.0]).predict([[1.6]])
    array([0.5])
    """

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any) -> KNeighborsRegressor:
        """Send the rows to the engines, which keep them.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows. float32 and float64 keep their dtype, other numbers become float64. The estimator keeps X.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Targets. If y is a handle, its targets are gathered in this process.

        Returns
        -------
        KNeighborsRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, and for metrics that are not supported. No rows
            have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. The next call sends the rows again.
        """
        return self._fit(X, y)

    def _read_targets(self, cluster: XPUCluster, X: Any, y: Any) -> None:
        self._y = gathered_targets(self, cluster, X, y)
