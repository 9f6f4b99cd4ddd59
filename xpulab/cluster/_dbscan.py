"""`DBSCAN`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.cluster
from sklearn.neighbors import NearestNeighbors

from xpulab._sklearn import _fit_context
from xpulab.checks import check_sample_weight, place_named
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.sending import Result
from xpulab.neighbors._metric import Distance, distance_of

__all__ = ["DBSCAN"]


class DBSCAN(Proxy, sklearn.cluster.DBSCAN):
    """Density-based clustering, which finds clusters of any form, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.cluster.DBSCAN`, including the numbers of the clusters, for
    any number of engines. Two rows are neighbours if their distance is at most `eps`. A row is a core if its neighbours
    and the row itself have a total weight of at least `min_samples` [1]_. Cores that are neighbours are in one cluster,
    and the clusters are numbered in the order of their first cores. A row that is no core is in the first cluster that
    has a neighbouring core.

    Each engine has the rows of a region, sorted in a tree, and the engines join the clusters that cross the borders of
    regions [2]_. The CPUs of the engines' hosts compute the distances in float64, and only those distances that may
    change the result. The memory is linear in the number of rows, even if many rows are neighbours; scikit-learn's
    memory is not.

    Parameters
    ----------
    eps : float, default=0.5
        Largest distance of two neighbours.
    min_samples : int, default=5
        Smallest total weight of a core and its neighbours.
    metric : str, default="euclidean"
        "euclidean" ("l2"), "sqeuclidean", "manhattan" ("cityblock", "l1"), "chebyshev" ("infinity"), "cosine" or
        "minkowski".
    metric_params : dict, optional
        ``{"p": ...}`` for "minkowski".
    algorithm : {"auto", "ball_tree", "kd_tree", "brute"}, default="auto"
        Accepted for compatibility with scikit-learn: all algorithms give the same neighbours.
    leaf_size : int, default=30
        Accepted and ignored.
    p : float, optional
        The power of "minkowski"; 2 by default.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.

    Attributes
    ----------
    core_sample_indices_ : ndarray of int64 of shape (n_core_samples,)
        Indices of the cores.
    components_ : ndarray of shape (n_core_samples, n_features)
        The rows that are cores, in the dtype of X.
    labels_ : ndarray of int64 of shape (n_samples,)
        The cluster of each row; -1 for noise.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. The seconds of kernels are those of the
        hosts' CPUs.

    See Also
    --------
    sklearn.cluster.DBSCAN : The same in one process.

    Notes
    -----
    For one to fifteen features scikit-learn computes the same distances in its k-d trees. Where scikit-learn compares
    all rows, it rounds in another way: two rows whose distance is `eps` up to rounding may then be neighbours in one
    implementation and not in the other.

    References
    ----------
    .. [1] M. Ester, H.-P. Kriegel, J. Sander and X. Xu, "A density-based algorithm for discovering clusters in large
       spatial databases with noise", KDD 1996, pages 226 to 231.
    .. [2] M. M. A. Patwary, D. Palsetia, A. Agrawal, W. Liao, F. Manne and A. Choudhary, "A new scalable parallel
       DBSCAN algorithm using the disjoint-set data structure", SC 2012.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.cluster import DBSCAN
    >>> with xpulab.XPUCluster(n=2):
    ...     DBSCAN(eps=3, min_samples=2).fit([[1, 2], [2, 2], [2, 3], [8, 7], [8, 8], [25, 80]]).labels_
    array([ 0,  0,  0,  1,  1, -1])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"dtype": "numeric"}
    #: In float64: the rows that were passed, the rows of the region, its tree, and rows of other regions near its
    #: border; and the numbers of all these rows.
    _work_memory: ClassVar[tuple[float, float]] = (120.0, 4.0)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> DBSCAN:
        """Cluster the rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, 1 by default. A row whose weight is at least `min_samples` needs no neighbours to be a
            core. Negative weights may keep the row's neighbours from being cores.

        Returns
        -------
        DBSCAN
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
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        distance = self._distance()
        rows: Any = self._checked(cluster, X, reset=True)
        weights = self._weights_of(sample_weight, rows)
        with np.errstate(over="ignore"):
            limit = float(np.float64(self.eps) ** distance.power)
        found = Result(2, np.int64)
        with self._fitting(rows, weights):
            answer = self._ask(
                cluster, "fit", "density", rows, sample_weight=weights, result=found, metric=distance.metric,
                limit=limit, min_samples=int(self.min_samples), components=isinstance(rows, ShardedArray),
            )  # fmt: skip
            self.labels_ = found.value[:, 0].astype(np.intp)
            self.core_sample_indices_ = np.flatnonzero(found.value[:, 1])
            self.components_ = self._cores(rows, answer)
        return self

    def fit_predict(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> np.ndarray:
        """Call `fit`, and return the cluster of each row.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            The rows, as for `fit`.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, as for `fit`.

        Returns
        -------
        ndarray of int64 of shape (n_samples,)
            -1 for noise.
        """
        return self.fit(X, sample_weight=sample_weight).labels_

    def _distance(self) -> Distance:
        """Return the distance that the parameters ask for."""
        like = NearestNeighbors(
            algorithm=self.algorithm, metric=self.metric, metric_params=self.metric_params, p=self.p
        )
        return distance_of(like, "sklearn.cluster.DBSCAN")

    def _weights_of(self, sample_weight: Any, X: Any) -> Any:
        """Return the weights in float64, of any sign. Weights that a rank passes are in the dtype of X."""
        if sample_weight is None:
            return None
        if isinstance(sample_weight, ShardedArray) and not sample_weight.stays:
            return self._weights(sample_weight, X, only_non_negative=False)
        if isinstance(sample_weight, ShardedArray):
            raise TypeError(
                "sample_weight is a ShardedArray; this estimator takes an array: pass sample_weight.gather()"
            )
        with place_named(sample_weight):
            weights: np.ndarray = check_sample_weight(sample_weight, np.empty((X.shape[0], 0)), dtype=np.float64)
        return weights

    def _cores(self, X: Any, answer: Answer) -> np.ndarray:
        """Return the core rows; those of a handle come from the engines."""
        if not len(self.core_sample_indices_):
            return np.empty((0, X.shape[1]))  # float64, as in scikit-learn
        if isinstance(X, ShardedArray) and X.stays:
            return np.concatenate([result["components"] for result in answer.results])
        if isinstance(X, ShardedArray):  # a rank has passed its own rows
            return np.asarray(X.values[self.core_sample_indices_])  # type: ignore[attr-defined]
        return np.asarray(X[self.core_sample_indices_])
