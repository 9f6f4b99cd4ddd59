"""Base class of the estimators that have centres: the methods that compare rows with these centres."""

from __future__ import annotations

import functools
import os
from typing import Any, ClassVar

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _openmp_effective_n_threads
from xpulab.cluster._small_predict import MOST_PRODUCTS, certain_labels
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.rows import checked_weights
from xpulab.estimator.sending import Result

__all__ = ["LEFT", "CentersProxy"]

#: What a copy of a stopped estimator has, and how to go on from it.
LEFT = ("centres", "model.set_params(init=model.cluster_centers_, n_init=1).fit(X)")


class CentersProxy(Proxy, TransformerMixin):
    """Base of estimators with `cluster_centers_`.

    `set_output` works for `transform` because the class that defines it is a `TransformerMixin`.
    """

    _computes_as: ClassVar[str] = "cluster_centers_"

    cluster_centers_: np.ndarray

    def predict(self, X: Any, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the index of the nearest centre of each row.

        For a few rows this process computes the labels, if this is faster than a message to the engines, and if the
        labels are certain to be the same. The report of the call then says so.

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
        labels, centers = Result(None, np.int32), self._centers(X)
        few = isinstance(X, np.ndarray) and X.size * len(centers) <= MOST_PRODUCTS
        locally = functools.partial(certain_labels, X, centers) if few else None
        self._ask(cluster, "predict", "KMeans.predict", X, result=labels, compute_locally=locally, centers=centers)
        return labels.value

    def transform(self, X: Any, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the distance of each row to each centre.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_clusters), float64 if X or the fit is
            A handle if X is a handle; no rows move.

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        if out is not None:
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        distances = Result(len(self.cluster_centers_), X.dtype, rows=True, nan=False)
        self._ask(cluster, "transform", "KMeans.transform", X, result=distances, centers=self._centers(X))
        return distances.value

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Call `fit`, then `transform` with the same rows, which are sent once.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_clusters), float64 if X or the fit is
            Distance of each row to each centre.

        Raises
        ------
        NoClusterError, ValueError, TypeError, HandleError, EngineError, EngineLostError, KeyboardInterrupt
            As `fit`.
        """
        with self._sent_once(X):
            return self.fit(X, sample_weight=sample_weight).transform(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the negative inertia of the rows with the fitted centres.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict`.
        """
        check_is_fitted(self)
        cluster = self._cluster()
        X = self._checked(cluster, X, reset=False)
        weights = checked_weights(sample_weight, X.shape[0], X.dtype, only_non_negative=False)
        answer = self._ask(
            cluster, "score", "KMeans.predict", X, sample_weight=weights, target=None, centers=self._centers(X)
        )
        return -float(answer.results[0]["inertia"])

    def to_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters and fitted attributes. It needs no cluster.

        Returns
        -------
        sklearn.base.BaseEstimator

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        plain = super().to_sklearn()
        plain._n_threads = _openmp_effective_n_threads()
        return plain

    def _centers(self, X: Any) -> np.ndarray:
        return np.ascontiguousarray(self.cluster_centers_, X.dtype)
