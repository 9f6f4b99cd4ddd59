"""What forests predict: classes, by the mean of the trees' probabilities, or the mean of the trees' numbers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import accuracy_score, r2_score

from xpulab._sklearn import _fit_context
from xpulab.checks import ONE_AT_A_TIME
from xpulab.data import ShardedArray
from xpulab.ensemble._growing import ForestProxy
from xpulab.estimator.results_in_files import in_file

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ForestOfClasses", "ForestOfNumbers"]


class ForestOfClasses(ForestProxy):
    """Base class of forests that classify. Among the bases, it comes before scikit-learn's class."""

    classes_: Any
    n_classes_: Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows, which are converted to float32 as in scikit-learn. NaN is a missing value.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Labels. If X and y are handles with the same rows on each engine, the labels stay on the engines.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

        Returns
        -------
        object
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, and for CSR matrices. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._grow(X, y, sample_weight)
        if self.n_outputs_ == 1 and isinstance(self.classes_, list):
            self.classes_, self.n_classes_ = self.classes_[0], self.n_classes_[0]
        return self

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the class of each row with the greatest mean of the trees' probabilities.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            As for `predict_proba`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)

        Raises
        ------
        NotFittedError, NoClusterError, ValueError, HandleError
            As `predict_proba`.
        """
        return super().predict(X) if out is None else in_file(self.predict, X, out)

    def predict_proba(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Return the class probabilities of each row: the mean over the trees of the shares of the classes in its leaf.

        For a few rows this process computes the probabilities, without the engines.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of float64 of shape (n_samples, n_classes), or a list of them for several outputs

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If the engines are needed, and no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict_proba, X, out)
        means = self._means("predict_proba", X)
        if means is None:
            with ONE_AT_A_TIME:
                return super().predict_proba(X)
        shares = [np.ascontiguousarray(means[:, o, :n]) for o, n in enumerate(np.atleast_1d(self.n_classes_))]
        return shares[0] if len(shares) == 1 else shares

    def _take_oob(self, means: np.ndarray, y: np.ndarray, scoring_function: Any) -> None:
        shares = means.swapaxes(1, 2)
        self.oob_decision_function_ = shares[:, :, 0] if shares.shape[2] == 1 else shares
        self.oob_score_ = (scoring_function or accuracy_score)(y, np.argmax(self.oob_decision_function_, axis=1))


class ForestOfNumbers(ForestProxy):
    """Base class of forests for regression. Among the bases, it comes before scikit-learn's class."""

    oob_prediction_: np.ndarray

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray,
        sample_weight: npt.ArrayLike | None = None,
    ) -> Self:
        """Grow the trees.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows, which are converted to float32 as in scikit-learn. NaN is a missing value.
        y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_outputs)
            Numbers. If X and y are handles with the same rows on each engine, the numbers stay on the engines.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows, not negative; 1 by default.

        Returns
        -------
        object
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, and for CSR matrices. No rows have been sent.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._grow(X, y, sample_weight)
        return self

    def predict(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> np.ndarray:
        """Return the prediction for each row: the mean over the trees of the value of its leaf.

        For a few rows this process computes the predictions, without the engines.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray of float64 of shape (n_samples,) or (n_samples, n_outputs)

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If the engines are needed, and no cluster is running.
        ValueError
            For input that scikit-learn rejects.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.predict, X, out)
        means = self._means("predict", X)
        if means is None:
            with ONE_AT_A_TIME:
                found: np.ndarray = super().predict(X)
            return self._in_range(found.reshape(len(found), -1, 1)).reshape(found.shape)
        return means[:, 0, 0].copy() if self.n_outputs_ == 1 else means[:, :, 0].copy()

    def _in_range(self, means: np.ndarray) -> np.ndarray:
        return np.clip(means, *self._range[:, :, None])

    def _correct_oob(self) -> None:
        found = self.oob_prediction_
        within = self._in_range(found.reshape(len(found), -1, 1)).reshape(found.shape)
        self.oob_prediction_ = np.where(found == 0, 0.0, within)  # 0 stands for rows that no tree predicts

    def _take_oob(self, means: np.ndarray, y: np.ndarray, scoring_function: Any) -> None:
        self.oob_prediction_ = means[:, 0, 0] if means.shape[1] == 1 else means[:, :, 0]
        self.oob_score_ = (scoring_function or r2_score)(y, self.oob_prediction_)
