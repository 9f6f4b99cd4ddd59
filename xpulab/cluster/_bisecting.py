"""`BisectingKMeans`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import sklearn.cluster
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _BisectingTree, _fit_context, _openmp_effective_n_threads
from xpulab.cluster._centers import CentersProxy
from xpulab.deploy.current import current_ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import checked_weights
from xpulab.estimator.sending import Result

__all__ = ["BisectingKMeans"]


class BisectingKMeans(CentersProxy, sklearn.cluster.BisectingKMeans):
    """K-means that splits one cluster after the other into two, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.cluster.BisectingKMeans`, including the tree of clusters,
    for any number of engines [1]_. The rows stay on the devices for the whole fit; a device copies the rows of the
    cluster that is split.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"k-means++", "random"}, default="random"
        How the two initial centres of each split are chosen. A callable is rejected.
    n_init : int, default=1
        Number of runs of each split; the best is kept.
    random_state : int, RandomState instance or None, default=None
        The random numbers for the initial centres, used in scikit-learn's order, as by `KMeans`.
    max_iter : int, default=300
        Largest number of iterations of a run.
    verbose : int, default=0
        Whether to print the centres of each split, after the fit.
    tol : float, default=1e-4
        A run has converged if the squared movement of the two centres is at most `tol`.
    copy_x : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    algorithm : {"lloyd", "elkan"}, default="lloyd"
        Accepted for compatibility with scikit-learn. Both give the same result.
    bisecting_strategy : {"biggest_inertia", "largest_cluster"}, default="biggest_inertia"
        Which cluster is split next.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Centres of the clusters, in the dtype of X.
    labels_ : ndarray of shape (n_samples,)
        Label of each row, int32.
    inertia_ : float
        Weighted sum of the squared distances of the rows to their centres.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.cluster.BisectingKMeans : The same in one process.
    KMeans : All clusters at once.

    References
    ----------
    .. [1] M. Steinbach, G. Karypis and V. Kumar, "A comparison of document clustering techniques", KDD 2000 workshop on
       text mining.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.cluster import BisectingKMeans
    >>> with xpulab.XPUCluster(n=2):
    ...     BisectingKMeans(n_clusters=2, random_state=0).fit([[1, 2], [1, 4], [10, 2], [10, 4]]).labels_
    array([1, 1, 0, 0], dtype=int32)
    """

    #: 12 bytes per row for labels as in `KMeans`, and 16 for its place; and a copy of the rows that are split.
    _work_memory: ClassVar[tuple[float, float]] = (28.0, 1.0)
    _every_row: float = 16.0  # of these, those on the host: the rows of each leaf
    _rules: ClassVar[Mapping[str, Any]] = {"accept_sparse": "csr"}

    _X_mean: np.ndarray

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> BisectingKMeans:
        """Compute bisecting k-means clustering.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

        Returns
        -------
        BisectingKMeans
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        TypeError
            If `init` is a callable, or for input that scikit-learn rejects. No rows have been sent.
        ValueError
            For input that scikit-learn rejects; no rows have been sent. Also if the next cluster to split has fewer
            than two rows that ``init="random"`` could draw.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        if callable(self.init):
            raise TypeError(
                "init is a callable, which needs the rows of each cluster in this process; pass init='random' or "
                "'k-means++', or use sklearn.cluster.BisectingKMeans"
            )
        X = self._checked(cluster, X, reset=True)
        if X.shape[0] < self.n_clusters:
            raise ValueError(f"n_samples={X.shape[0]} should be >= n_clusters={self.n_clusters}.")
        weights = checked_weights(sample_weight, X.shape[0], X.dtype)
        random = self._random_state = check_random_state(self.random_state)
        self._n_threads = _openmp_effective_n_threads()
        names = ("n_clusters", "init", "n_init", "max_iter", "bisecting_strategy")
        options = {**{name: getattr(self, name) for name in names}, "tol": float(self.tol)}
        labels = Result(None, np.int32)
        with self._fitting(X, weights):
            result = self._ask(
                cluster, "fit", "BisectingKMeans.fit", X, sample_weight=weights, result=labels,
                random=random.get_state(), options=options,
            ).results[0]  # fmt: skip
            random.set_state(result["random"])
            self._keep(X, result)
            self.labels_ = labels.value
        return self

    def predict(self, X: Any, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the cluster of each row: from the root of the tree, a row goes to the nearer of two centres.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), int32

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        labels = Result(None, np.int32)
        splits = _splits(self._bisecting_tree, getattr(self, "_X_mean", 0), X.dtype)
        self._ask(cluster, "predict", "BisectingKMeans.predict", X, result=labels, splits=splits)
        return labels.value

    def _keep(self, X: Any, result: dict[str, Any]) -> None:
        """Set the tree and the centres. As in scikit-learn, the mean of dense rows is subtracted from the tree's."""
        dtype = X.dtype
        mean = result["mean"] - result["shift"].astype(np.float64)
        self._bisecting_tree = _tree(mean.astype(dtype), result["splits"], dtype)
        leaves = list(self._bisecting_tree.iter_leaves())
        for number, leaf in enumerate(leaves):
            leaf.label, leaf.indices = number, None
        centers = np.stack([leaf.center for leaf in leaves])
        with contextlib.suppress(AttributeError):
            del self._X_mean
        if result["dense"]:
            self._X_mean = result["shift"]
            centers = centers + self._X_mean
        self.cluster_centers_ = centers
        self._n_features_out = len(centers)
        self.inertia_ = float(result["final"]["inertia"])
        if self.verbose:
            for _, found, _ in result["splits"]:
                print(f"New centroids from bisection: {found}")


def _tree(mean: np.ndarray, splits: list[tuple[int, np.ndarray, np.ndarray]], dtype: np.dtype[Any]) -> Any:
    """Return scikit-learn's tree for the splits of the engines, without the indices of rows."""
    none = np.empty(0, np.int64)
    root = _BisectingTree(center=mean, indices=none, score=0)
    leaves = [root]
    for place, centers, scores in splits:
        leaf = leaves[place]
        leaf.split(none, centers.astype(dtype), scores)
        leaves[place : place + 1] = [leaf.left, leaf.right]
    return root


def _splits(root: Any, mean: Any, dtype: np.dtype[Any]) -> list[tuple[int, np.ndarray]]:
    """Return the splits of a tree as the engines take them: the place among the leaves so far, and two centres."""
    leaves, found = [root], []
    while (place := next((i for i, leaf in enumerate(leaves) if leaf.left is not None), None)) is not None:
        sides = [leaves[place].left, leaves[place].right]
        centers = np.vstack([side.center for side in sides]) + mean
        found.append((place, np.ascontiguousarray(centers, dtype)))
        leaves[place : place + 1] = sides
    return found
