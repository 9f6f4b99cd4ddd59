"""`KNeighborsClassifier`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.neighbors
from sklearn.exceptions import DataConversionWarning

from xpulab._sklearn import _fit_context
from xpulab.checks import check_classification_targets
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn, beside
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import gathered_targets, stays
from xpulab.estimator.scoring import ScoredHere
from xpulab.neighbors._searching import NeighborsProxy
from xpulab.sharing.answers import Categories

__all__ = ["KNeighborsClassifier"]


class KNeighborsClassifier(ScoredHere, NeighborsProxy, sklearn.neighbors.KNeighborsClassifier):
    """Classification by a vote of the nearest neighbours, for which all engines of the active cluster search.

    Parameters, attributes and results are those of `sklearn.neighbors.KNeighborsClassifier`, for any number of engines.
    The engines keep the rows and find the neighbours, as for `NearestNeighbors`. This process keeps the labels, and
    counts the votes. If X and y are handles with the same rows on each engine, the labels stay on the engines, and
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
    classes_ : ndarray of shape (n_classes,), or a list of them for several outputs
        The classes, in ascending order.
    outputs_2d_ : bool
        Whether y has several columns.
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
    sklearn.neighbors.KNeighborsClassifier : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.neighbors import KNeighborsClassifier
    >>> with xpulab.XPUCluster(n=2):
    ...     KNeighborsClassifier(n_neighbors=1).fit([[0.0], [1.0]], ["a", "b"]).predict([[0.9]])
    array(['b'], dtype='<U1')
    """

    classes_: Any

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray) -> KNeighborsClassifier:
        """Send the rows to the engines, which keep them.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            Rows. float32 and float64 keep their dtype, other numbers become float64. The estimator keeps X.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Labels; those of a handle are numbers.

        Returns
        -------
        KNeighborsClassifier
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
        """Return the label of each row for which most of its neighbours vote.

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

    def predict_proba(self, X: npt.ArrayLike | ShardedArray | None, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the share of the votes for each class.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_queries, n_features), or None
            As for `predict`.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_queries, n_classes), or a list of them for several outputs

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError, KeyboardInterrupt
            As `kneighbors`.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        return self._predicted("predict_proba", X)

    def _read_targets(self, cluster: Ranks, X: Any, y: Any) -> None:
        y = beside(y, X, cluster, getattr(y, "dtype", None))
        if isinstance(y, ScannedColumn):
            of_column: Categories = self._ask(cluster, "classes", "encoding.categories", y).results[0]
            classes = y.labels(of_column["values"][0])
            if classes is not None:
                check_classification_targets(np.repeat(classes, 3))
                self._y, self.classes_, self.outputs_2d_ = y.scan, classes, False
                return
            y = y.gather()
        y = y if stays(y, X) else gathered_targets(self, cluster, X, y)
        if y.ndim == 2 and y.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
                "(n_samples,), for example using ravel().",
                DataConversionWarning,
                stacklevel=4,
            )
            y = y if isinstance(y, ShardedArray) else y[:, 0]
        self.outputs_2d_ = y.ndim == 2 and y.shape[1] > 1
        if isinstance(y, ShardedArray):
            y.source(cluster)
            y.require_finite("y")
            y.require_numbers("y")
            found: Categories = self._ask(cluster, "classes", "encoding.categories", y).results[0]
            for number, values in enumerate(found["values"]):
                y.require_exact(values, number)
                check_classification_targets(np.repeat(values, 3))  # three of each, so that there are not too many
            self._y, self.classes_ = y, found["values"] if self.outputs_2d_ else y.labels(found["values"][0])
            return
        check_classification_targets(y)
        pairs = [np.unique(column, return_inverse=True) for column in np.atleast_2d(y.T)]
        every, places = [pair[0] for pair in pairs], np.stack([pair[1].ravel() for pair in pairs], axis=1)
        self.classes_ = every if self.outputs_2d_ else every[0]
        self._y = (places if self.outputs_2d_ else places[:, 0]).astype(np.intp)

    def _targets_as_sklearn(self, targets: np.ndarray) -> np.ndarray:
        columns = targets.reshape(len(targets), -1).T
        classes = self.classes_ if self.outputs_2d_ else [self.classes_]
        codes = np.stack([np.searchsorted(*pair) for pair in zip(classes, columns, strict=True)], axis=1)
        return codes if self.outputs_2d_ else codes[:, 0]
