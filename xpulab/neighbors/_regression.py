"""`KNeighborsRegressor`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.neighbors

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn, beside
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import gathered_targets, stays
from xpulab.estimator.scoring import ScoredHere
from xpulab.neighbors._searching import NeighborsProxy

__all__ = ["KNeighborsRegressor"]


class KNeighborsRegressor(ScoredHere, NeighborsProxy, sklearn.neighbors.KNeighborsRegressor):
    """Regression by the mean target of the nearest neighbours, for which all engines of the active cluster search.

    Parameters, attributes and results are those of `sklearn.neighbors.KNeighborsRegressor`, for any number of engines.
    The engines keep the rows and find the neighbours, as for `NearestNeighbors`. This process keeps the targets, and
    computes their means. If X and y are handles with the same rows on each engine, the targets stay on the engines, and
    those of the neighbours come to this process. So do those of a column of numbers of a scan, which the engines read.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of a query.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Weights of the neighbours: "uniform" and None give each the weight 1, and "distance" the inverse of its
        distance. A callable gets an array of distances, and returns an array of weights of the same shape.
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Whether each query is compared with all rows ("brute"), or a tree of the rows is searched: that is possible
        with up to 8 features and 128 neighbours, on engines of a CPU. "auto" searches a tree for at least 1,000 queries
        for each engine. The neighbours are the same.
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
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray) -> KNeighborsRegressor:
        """Send the rows to the engines, which keep them.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            Rows. float32 and float64 keep their dtype, other numbers become float64. The estimator keeps X.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        KNeighborsRegressor
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for metrics that are not supported. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. The next call sends the rows again.
        """
        return self._fit(X, y)

    def predict(self, X: npt.ArrayLike | ShardedArray | None, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the mean of the neighbours' targets for each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_queries, n_features), or None
            Rows to predict; None for the rows of the fit, each without itself.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_queries,) or (n_queries, n_outputs)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError, KeyboardInterrupt
            As `kneighbors`.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        found: np.ndarray = self._predicted("predict", X)
        return found

    def _read_targets(self, cluster: Ranks, X: Any, y: Any) -> None:
        y = beside(y, X, cluster, getattr(y, "dtype", None))
        if isinstance(y, ScannedColumn):
            y.look()
            self._y = y.scan
        elif stays(y, X):
            y.source(cluster)
            y.require_finite("y")
            y.require_numbers("y")
            self._y = y
        else:
            self._y = gathered_targets(self, cluster, X, y)
