"""Base class of naive Bayes classifiers: their predictions, from the joint probabilities that the engines compute."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

from xpulab.data import ShardedArray
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.results_in_files import in_file
from xpulab.estimator.scoring import ScoredHere

__all__ = ["Predicting", "PredictingClasses"]


class PredictingClasses(ScoredHere, Proxy):
    """Has the methods that predict. Among the bases, it comes before scikit-learn's class."""

    classes_: npt.NDArray[Any]

    def _predicted(self, method: str, kind: str, X: Any) -> npt.NDArray[Any]:
        """Return the "label" (the number of the class), the "joint" logarithms, "log_proba" or "proba" of each row."""
        raise NotImplementedError

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> npt.NDArray[Any]:
        """Return the label of the most probable class of each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
            `GaussianNB` takes no CSR matrices.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples,), of the dtype of `classes_`

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        codes = self._predicted("predict", "label", X)
        labels: npt.NDArray[Any] = self.classes_[codes]
        return labels

    def predict_log_proba(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> npt.NDArray[Any]:
        """Return the logarithm of each class's probability for each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Errors are those of `predict`.
        """
        if out is not None:
            return in_file(self.predict_log_proba, X, out)
        return self._predicted("predict_log_proba", "log_proba", X)

    def predict_proba(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> npt.NDArray[Any]:
        """Return the probability of each class for each row.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Errors are those of `predict`.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        return self._predicted("predict_proba", "proba", X)


class Predicting(PredictingClasses):
    """Has the methods of naive Bayes classifiers that predict."""

    def predict_joint_log_proba(
        self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None
    ) -> npt.NDArray[Any]:
        """Return the logarithm of the joint probability of each row and each class.

        Parameters
        ----------
        X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Errors are those of `predict`.
        """
        if out is not None:
            return in_file(self.predict_joint_log_proba, X, out)
        return self._predicted("predict_joint_log_proba", "joint", X)
