"""`NearestNeighbors`: scikit-learn's estimator, computed by all engines of the active cluster."""

from __future__ import annotations

from typing import Any

import sklearn.neighbors
from sklearn.base import _fit_context

from xpulab.neighbors._searching import NeighborsProxy

__all__ = ["NearestNeighbors"]


class NearestNeighbors(NeighborsProxy, sklearn.neighbors.NearestNeighbors):
    """Search for neighbours on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.neighbors.NearestNeighbors`, for any number of engines.
    Each query is compared with all rows, by the engines, which keep the rows. The neighbours are those of differences
    that are computed in float64, and of rows that are equally far those come first that have the lowest index.

    Parameters
    ----------
    n_neighbors : int, default=5
        Neighbours of a query, where `kneighbors` is not told.
    radius : float, default=1.0
        How far neighbours are at most, where `radius_neighbors` is not told.
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Accepted for scikit-learn's sake: all give the same neighbours, and all are computed by comparing all rows.
    leaf_size : int, default=30
        Accepted and ignored.
    metric : str, default="minkowski"
        "euclidean" ("l2"), "sqeuclidean", "manhattan" ("cityblock", "l1"), "chebyshev" ("infinity"), "cosine" or
        "minkowski".
    p : float, default=2
        The power of "minkowski".
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
    sklearn.neighbors.NearestNeighbors : The same in one process.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     NearestNeighbors(n_neighbors=2).fit([[0.0], [1.0], [3.0]]).kneighbors([[0.9]])
    """

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None) -> NearestNeighbors:
        """Send the rows to the engines, which keep them.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves. The estimator keeps X, as scikit-learn's does.
        y : None
            Ignored.

        Returns
        -------
        NearestNeighbors
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
        return self._fit(X)
