"""`NearestNeighbors`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import numpy.typing as npt
import sklearn.neighbors

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.neighbors._searching import NeighborsProxy

__all__ = ["NearestNeighbors"]


class NearestNeighbors(NeighborsProxy, sklearn.neighbors.NearestNeighbors):
    """Search for nearest neighbours on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.neighbors.NearestNeighbors`, for any number of engines. The
    engines keep the rows, and compare each query with all of them. The neighbours and their distances are exact up to
    float64: candidates are compared by differences that are computed in float64. Of rows at the same distance, the row
    with the lowest index comes first. Rows of files that do not fit into the engines' memory are read again in each
    search, with the same result.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours of a query, if `kneighbors` gets none.
    radius : float, default=1.0
        Largest distance of a neighbour, if `radius_neighbors` gets none.
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Whether each query is compared with all rows ("brute"), or a tree of the rows is searched: that is possible
        with up to 8 features and 128 neighbours, on engines of a CPU. "auto" searches a tree for at least 1,000 queries
        for each engine. The neighbours are the same.
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
    sklearn.neighbors.NearestNeighbors : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.neighbors import NearestNeighbors
    >>> with xpulab.XPUCluster(n=2):
    ...     NearestNeighbors(n_neighbors=2).fit([[0.0], [1.0], [3.0]]).kneighbors([[0.9]])
    (array([[0.1, 0.9]]), array([[1, 0]]))
    """

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> NearestNeighbors:
        """Send the rows to the engines, which keep them.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            Rows. float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by
            the engines themselves. The estimator keeps X, as in scikit-learn.
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
            For input that scikit-learn rejects, and for metrics that are not supported. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit. The next call sends the rows again.
        """
        return self._fit(X)
