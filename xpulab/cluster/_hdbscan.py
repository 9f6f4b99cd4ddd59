"""`HDBSCAN`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.cluster
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors

from xpulab._sklearn import (
    MST_edge_dtype,
    _fit_context,
    make_single_linkage,
    remap_single_linkage_tree,
    tree_to_labels,
)
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.tasks.answers import Answer, array_sent
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.sending import Result
from xpulab.neighbors._metric import Distance, distance_of
from xpulab.scanning import read_here

__all__ = ["HDBSCAN"]

_MISSING = -3  # the label of rows with NaN


class HDBSCAN(Proxy, sklearn.cluster.HDBSCAN):
    """Hierarchical density-based clustering, which finds clusters of different density, on all engines.

    Parameters, attributes and results are those of `sklearn.cluster.HDBSCAN`, for any number of engines. The core
    distance of a row is the distance to the nearest of `min_samples` rows, of which it is the first itself. Two rows
    reach each other at the largest of their distance and their core distances. All rows are joined in a tree, the
    nearest first, and of its branches with at least `min_cluster_size` rows, those that last longest are the clusters
    [1]_.

    The engines find the spanning tree of least length: each has a tree of all rows, and looks for the edges of its
    share of them [2]_. The CPUs of the engines' hosts compute the distances in float64, and only those that may change
    the result. This process makes the hierarchy of the edges, and the clusters, with scikit-learn's own functions.

    Parameters
    ----------
    min_cluster_size : int, default=5
        Smallest number of rows of a cluster.
    min_samples : int, optional
        Number of rows, of which a row is the first itself, up to the last of which its core distance reaches;
        `min_cluster_size` by default.
    cluster_selection_epsilon : float, default=0.0
        Clusters are not divided at distances below it.
    max_cluster_size : int, optional
        Larger clusters are divided; with ``cluster_selection_method="eom"`` only.
    metric : str, default="euclidean"
        "euclidean" ("l2"), "sqeuclidean", "manhattan" ("cityblock", "l1"), "chebyshev" ("infinity"), "cosine", or
        "minkowski" with a power of 1, 2 or infinity.
    metric_params : dict, optional
        ``{"p": ...}`` for "minkowski".
    alpha : float, default=1.0
        Distances of two rows, and not core distances, are divided by it. scikit-learn's "brute" divides core distances,
        too, so that alpha only changes the scale of the tree there.
    algorithm : {"auto", "brute", "kd_tree", "ball_tree"}, default="auto"
        Accepted for compatibility with scikit-learn: all algorithms give the same tree.
    leaf_size : int, default=40
        Accepted and ignored.
    n_jobs : int, optional
        Accepted and ignored: all engines compute.
    cluster_selection_method : {"eom", "leaf"}, default="eom"
        Whether clusters are the branches with the largest excess of mass, or the leaves of the tree.
    allow_single_cluster : bool, default=False
        Whether all rows may be one cluster.
    store_centers : {"centroid", "medoid", "both"}, optional
        Which centres of clusters are computed, in this process; a handle's rows are gathered for them.
    copy : bool
        Accepted and ignored: X is never changed.

    Attributes
    ----------
    labels_ : ndarray of int64 of shape (n_samples,)
        The cluster of each row; -1 for noise, -2 for rows with infinity, -3 for rows with NaN.
    probabilities_ : ndarray of float64 of shape (n_samples,)
        How strongly each row belongs to its cluster: 0 for noise, NaN for rows with NaN.
    centroids_, medoids_ : ndarray of float64 of shape (n_clusters, n_features)
        Weighted by `probabilities_`; set only if `store_centers` asks for them.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit. The seconds of kernels are those of the
        hosts' CPUs.

    See Also
    --------
    DBSCAN : Clusters of one density.
    sklearn.cluster.HDBSCAN : The same in one process.

    Notes
    -----
    Many pairs of rows reach each other at the same distance, that of a core. Of pairs at exactly the same distance,
    those of rows with lower numbers are joined first, here. In scikit-learn the order depends on how it sorts, so that
    a row at the border of two clusters may be in the other one, and clusters may have other numbers.

    References
    ----------
    .. [1] R. J. G. B. Campello, D. Moulavi and J. Sander, "Density-based clustering based on hierarchical density
       estimates", PAKDD 2013, pages 160 to 172.
    .. [2] W. B. March, P. Ram and A. G. Gray, "Fast Euclidean minimum spanning tree: algorithm, analysis, and
       applications", KDD 2010, pages 603 to 612.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.cluster import HDBSCAN
    >>> with xpulab.XPUCluster(n=2):
    ...     HDBSCAN(min_cluster_size=2).fit([[1, 1], [1, 2], [2, 1], [9, 9], [9, 8], [30, 3]]).labels_
    array([ 0,  0,  0,  1,  1, -1])
    """

    _rules: ClassVar[Mapping[str, Any]] = {"ensure_all_finite": False}
    #: In float64, on each engine: all rows, the tree of them, and numbers of rows.
    _work_memory: ClassVar[tuple[float, float]] = (160.0, 6.0)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> HDBSCAN:
        """Cluster the rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.

        Returns
        -------
        HDBSCAN
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, for metrics that are not supported, and if
            distances are out of the range of float64.
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
        n = rows.shape[0]
        if n == 1:
            raise ValueError("n_samples=1 while HDBSCAN requires more than one sample")
        min_samples = int(self.min_cluster_size if self.min_samples is None else self.min_samples)
        if min_samples > n:
            raise ValueError(f"min_samples ({min_samples}) must be at most the number of samples in X ({n})")
        numbers, scale = Result(None, np.int64), 1 / float(self.alpha) ** distance.power
        with self._fitting(rows):
            self._ask(
                cluster, "fit", "hierarchy", rows, result=numbers, metric=distance.name, scale=scale,
                min_samples=min_samples, finish=lambda answer: self._take(answer, rows, numbers.value, distance),
            )  # fmt: skip
            self._min_samples, self._metric_params = min_samples, self.metric_params or {}
        return self

    def _distance(self) -> Distance:
        """Return the distance that the parameters ask for."""
        like = NearestNeighbors(metric=self.metric, metric_params=self.metric_params, p=None)
        distance = distance_of(like, "sklearn.cluster.HDBSCAN")
        if distance.name == "minkowski":
            raise ValueError(
                f"metric='minkowski' with p={distance.p:g} is not computed on the engines; expected p=1, 2 or "
                "infinity; for other powers use sklearn.cluster.HDBSCAN"
            )
        return distance

    def _take(self, answer: Answer, rows: Any, numbers: npt.NDArray[np.int64], distance: Distance) -> None:
        """Set the attributes from what the engines have found, as scikit-learn's `fit` does.

        `numbers` are those of the rows of this process, which on a rank are not all.
        """
        found = answer.results[0]
        outside = array_sent(found["outside"], np.int8)
        finite, lengths = np.flatnonzero(outside == 0), array_sent(found["lengths"], np.float64)
        edges = np.empty(len(lengths), MST_edge_dtype)
        edges["current_node"] = array_sent(found["first"], np.int64)
        edges["next_node"] = array_sent(found["second"], np.int64)
        edges["distance"] = lengths / 2 if distance.name == "cosine" else distance.of(lengths, 1)
        tree = make_single_linkage(edges)
        labels, probabilities = tree_to_labels(
            tree, self.min_cluster_size, self.cluster_selection_method, self.allow_single_cluster,
            self.cluster_selection_epsilon, self.max_cluster_size,
        )  # fmt: skip
        if len(finite) < len(outside):
            others = set(np.flatnonzero(outside).tolist())
            tree = remap_single_linkage_tree(tree, dict(enumerate(finite.tolist())), others)
        every, strengths = outside.astype(labels.dtype), np.where(outside == _MISSING, np.nan, 0.0)
        every[finite], strengths[finite] = labels, probabilities
        self._single_linkage_tree_, self.labels_, self.probabilities_ = tree, every[numbers], strengths[numbers]
        if self.store_centers is not None:
            here = rows.gather() if isinstance(rows, ShardedArray) else read_here(rows)
            self._set_centers(np.asarray(here, np.float64), every, strengths)

    def _set_centers(
        self, rows: npt.NDArray[np.float64], labels: npt.NDArray[Any], strengths: npt.NDArray[Any]
    ) -> None:
        """Set the centres of the clusters that `store_centers` asks for."""
        centroids, medoids = [], []
        for label in range(int(labels.max(initial=-1)) + 1):
            mine = np.flatnonzero(labels == label)
            some, strength = rows[mine], strengths[mine]
            centroids.append(np.average(some, axis=0, weights=strength))
            if self.store_centers != "centroid":
                apart = pairwise_distances(some, metric=self.metric, **(self.metric_params or {}))
                medoids.append(some[np.argmin((apart * strength).sum(axis=1))])
        none = np.empty((0, rows.shape[1]))
        if self.store_centers != "medoid":
            self.centroids_ = np.array(centroids) if centroids else none
        if self.store_centers != "centroid":
            self.medoids_ = np.array(medoids) if medoids else none
