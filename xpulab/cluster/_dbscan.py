"""`DBSCAN`: scikit-learn's estimator, computed by all engines of the active cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import sklearn.cluster
from sklearn.base import _fit_context
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import _check_sample_weight

from xpulab.data import ShardedArray
from xpulab.deploy.answers import Answer
from xpulab.deploy.cluster import current_cluster
from xpulab.estimator.proxy import Proxy, Result
from xpulab.neighbors._metric import Distance, distance_of

__all__ = ["DBSCAN"]


class DBSCAN(Proxy, sklearn.cluster.DBSCAN):
    """Clusters of any form, where rows lie dense, found by all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.cluster.DBSCAN`, the numbers of the clusters included, for
    any number of engines. A row is a core if rows of a total weight of at least `min_samples` are no farther from it
    than `eps`, itself included [1]_. Cores that are so near to each other are in one cluster, and the clusters are
    numbered in the order of their first cores. A row that is no core is in the first cluster with a core near to it.

    Each engine has the rows of a region, sorted in a tree, and the engines join the clusters that cross the borders of
    regions [2]_. Distances are computed in float64, by the processors of the engines' hosts, and only those that may
    change the result. The memory is linear in the number of rows, however many of them are near to each other;
    scikit-learn's is not.

    Parameters
    ----------
    eps : float, default=0.5
        How far neighbours are at most.
    min_samples : int, default=5
        The total weight of the neighbours of a core at least.
    metric : str, default="euclidean"
        "euclidean" ("l2"), "sqeuclidean", "manhattan" ("cityblock", "l1"), "chebyshev" ("infinity"), "cosine" or
        "minkowski".
    metric_params : dict, optional
        ``{"p": ...}`` for "minkowski".
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Accepted for scikit-learn's sake: all give the same neighbours.
    leaf_size : int, default=30
        Accepted and ignored.
    p : float, optional
        The power of "minkowski"; 2 by default.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.

    Attributes
    ----------
    core_sample_indices_ : ndarray of int64 of shape (n_core_samples,)
        Which rows are cores.
    components_ : ndarray of shape (n_core_samples, n_features)
        The cores themselves, in the dtype of X.
    labels_ : ndarray of int64 of shape (n_samples,)
        The cluster of each row; -1 for noise.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Only when the input has column names that are all strings.
    report_ : FitReport
        What ran where, and how long each phase took. The seconds of kernels are those of the hosts' processors.

    See Also
    --------
    sklearn.cluster.DBSCAN : The same in one process.

    Notes
    -----
    For one to fifteen features scikit-learn computes the same numbers in its k-d trees. Where it compares all rows, it
    rounds otherwise: there, rows whose distance is `eps` up to rounding may be neighbours in one and not in the other.

    References
    ----------
    .. [1] M. Ester, H.-P. Kriegel, J. Sander and X. Xu, "A density-based algorithm for discovering clusters in large
       spatial databases with noise", KDD 1996, pages 226 to 231.
    .. [2] M. M. A. Patwary, D. Palsetia, A. Agrawal, W. Liao, F. Manne and A. Choudhary, "A new scalable parallel
       DBSCAN algorithm using the disjoint-set data structure", SC 2012.

    Examples
    --------
    >>> with xpulab.XPUCluster(n=2):  # doctest: +SKIP
    ...     DBSCAN(eps=3, min_samples=2).fit([[1, 2], [2, 2], [2, 3], [8, 7], [8, 8], [25, 80]]).labels_
    array([ 0,  0,  0,  1,  1, -1])
    """

    #: In float64 the rows as they came, those of the region, its tree, the rows of other regions, and their numbers.
    _work_memory: ClassVar[tuple[float, float]] = (120.0, 4.0)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> DBSCAN:
        """Cluster the rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, 1 by default. A row of at least `min_samples` is a core by itself; negative weights
            may keep their neighbours from being cores.

        Returns
        -------
        DBSCAN
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, and for metrics that are not computed; nothing has
            been sent then.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_cluster()
        distance = self._distance()
        X = self._checked(cluster, X, reset=True)
        weights = self._weights_of(sample_weight, X)
        with np.errstate(over="ignore"):
            limit = float(np.float64(self.eps) ** distance.power)
        found = Result(2, np.int64)
        with self._fitting(X, weights):
            answer = self._ask(
                cluster, "fit", "density", X, sample_weight=weights, result=found, metric=distance.metric, limit=limit,
                min_samples=int(self.min_samples), components=isinstance(X, ShardedArray),
            )  # fmt: skip
            self.labels_ = found.value[:, 0].astype(np.intp)
            self.core_sample_indices_ = np.flatnonzero(found.value[:, 1])
            self.components_ = self._cores(X, answer)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """`fit`, then the clusters of the rows.

        Parameters and errors are those of `fit`.

        Returns
        -------
        ndarray of int64 of shape (n_samples,)
            -1 for noise.
        """
        return self.fit(X, sample_weight=sample_weight).labels_

    def _distance(self) -> Distance:
        """The distance that the parameters ask for."""
        like = NearestNeighbors(
            algorithm=self.algorithm, metric=self.metric, metric_params=self.metric_params, p=self.p
        )
        return distance_of(like, "sklearn.cluster.DBSCAN")

    def _weights_of(self, sample_weight: Any, X: Any) -> Any:
        """Weights in float64, of any sign; a rank's own ones in the dtype of X."""
        if sample_weight is None:
            return None
        if isinstance(sample_weight, ShardedArray) and not sample_weight.stays:
            return self._weights(sample_weight, X, only_non_negative=False)
        if isinstance(sample_weight, ShardedArray):
            raise TypeError(
                "sample_weight is a ShardedArray; this estimator takes an array: pass sample_weight.gather()"
            )
        weights: np.ndarray = _check_sample_weight(sample_weight, np.empty((X.shape[0], 0)), dtype=np.float64)
        return weights

    def _cores(self, X: Any, answer: Answer) -> np.ndarray:
        """The core rows; those of a handle come from the engines."""
        if not len(self.core_sample_indices_):
            return np.empty((0, X.shape[1]))  # as scikit-learn: float64
        if isinstance(X, ShardedArray) and X.stays:
            return np.concatenate([result["components"] for result in answer.results])
        if isinstance(X, ShardedArray):  # a rank's own rows
            return np.asarray(X.values[self.core_sample_indices_])  # type: ignore[attr-defined]
        return np.asarray(X[self.core_sample_indices_])
