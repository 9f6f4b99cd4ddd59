"""`KNeighborsRegressor`: scikit-learn's estimator, computed by all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import sklearn.neighbors
from sklearn.base import _fit_context

from xpulab.deploy.cluster import XPUCluster
from xpulab.estimator.rows import gathered_targets
from xpulab.neighbors._searching import NeighborsProxy

__all__ = ["KNeighborsRegressor"]


class KNeighborsRegressor(NeighborsProxy, sklearn.neighbors.KNeighborsRegressor):
    """Mean of the nearest neighbours, which every device of the active cluster searches for.

    Parameters, attributes and results are those of `sklearn.neighbors.KNeighborsRegressor`, for any number of engines.
    The engines keep the rows and find the neighbours, as those of `NearestNeighbors`; this process has the targets, and
    takes their means.

    Parameters
    ----------
    n_neighbors : int, default=5
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        A callable gets an array of distances, and returns an array of the same shape.
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Accepted for scikit-learn's sake: all give the same neighbours, and all are computed by comparing all rows.
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
    effective_metric_params_ : dict
    n_samples_fit_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    report_ : FitReport
        What ran where, and how long each phase took.

    See Also
    --------
    sklearn.neighbors.KNeighborsRegressor : The same in one process.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     KNeighborsRegressor(n_neighbors=2).fit([[0.0], [1.0], [2.0]], [0.0, 0.0, 1.0]).predict([[1.6]])
    """

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any) -> KNeighborsRegressor:
        """Send the rows to the engines, which keep them.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. The estimator keeps X.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            A handle's come to this process.

        Returns
        -------
        KNeighborsRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn refuses too, CSR, and metrics that are not computed; nothing has been sent then.
        HandleError
            For a `ShardedArray` whose rows are elsewhere or gone.
        EngineError, EngineLostError
            If an engine raised or ended.
        KeyboardInterrupt
            The next call sends the rows again.
        """
        return self._fit(X, y)

    def _read_targets(self, cluster: XPUCluster, X: Any, y: Any) -> None:
        self._y = gathered_targets(self, cluster, X, y)
