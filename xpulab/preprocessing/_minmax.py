"""`MinMaxScaler`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, _handle_zeros_in_scale
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.preprocessing._scaler import Scaler
from xpulab.sharing.answers import Moments

__all__ = ["MinMaxScaler"]


class MinMaxScaler(Scaler, sklearn.preprocessing.MinMaxScaler):
    """Scale each column to a range, by its minimum and maximum, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.MinMaxScaler`, to the last bit, for any
    number of engines. A fit is one pass over the rows.

    Parameters
    ----------
    feature_range : tuple (min, max), default=(0, 1)
        The range of the transformed rows of the fit.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    clip : bool, default=False
        Whether `transform` clips values to the range.

    Attributes
    ----------
    min_, scale_ : ndarray of shape (n_features,), of the dtype of X
        Transformed rows are ``X * scale_ + min_``.
    data_min_, data_max_, data_range_ : ndarray of shape (n_features,), of the dtype of X
        Minimum and maximum of each column, and their difference.
    n_samples_seen_ : int
        Number of rows.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.MinMaxScaler : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import MinMaxScaler
    >>> with xpulab.XPUCluster(n=2):
    ...     MinMaxScaler().fit_transform([[-1, 2], [-0.5, 6], [0, 10], [1, 18]])
    array([[0.  , 0.  ],
           [0.25, 0.25],
           [0.5 , 0.5 ],
           [1.  , 1.  ]])
    """

    _computes_as: ClassVar[str] = "scale_"

    data_min_: np.ndarray
    data_max_: np.ndarray
    n_samples_seen_: int

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> MinMaxScaler:
        """Find the minimum and maximum of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. NaN is ignored. A memory-mapped array
            is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        MinMaxScaler
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for an invalid `feature_range`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._reset()
        return self._see("fit", X)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None
    ) -> MinMaxScaler:
        """Update minimum and maximum with more rows. If the call is interrupted, they stay as they were.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            More rows.
        y : None
            Ignored.

        Returns
        -------
        MinMaxScaler
            This object. Errors are those of `fit`.
        """
        return self._see("partial_fit", X)

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Scale the columns to `feature_range`, in the dtype of X.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            NaN stays NaN.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features), of the dtype of X
            A `ShardedArray` if X is one; its rows stay on the engines.

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
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        ends = tuple(map(float, self.feature_range)) if self.clip else None
        return self._forward(X, factor=self.scale_, offset=self.min_, clip=ends)

    def inverse_transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Scale the columns back to the range of the data.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Rows as `transform` returns them.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features)
            The rows, in the dtype of X. Errors are those of `transform`.
        """
        if out is not None:
            return in_file(self.inverse_transform, X, out)
        check_is_fitted(self)
        return self._backward(X, shift=self.min_, scale=self.scale_)

    def _see(self, method: str, X: Any) -> MinMaxScaler:
        low, high = self.feature_range
        if low >= high:
            raise ValueError(
                f"Minimum of desired feature range must be smaller than maximum. Got {self.feature_range}."
            )
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=not hasattr(self, "n_samples_seen_"))
        with self._fitting(X):
            found: Moments = self._ask(cluster, method, "moments", X).results[0]["moments"]
            self._add(X.shape[0], found.minimum.astype(X.dtype), found.maximum.astype(X.dtype))
        return self

    def _add(self, n_samples: int, least: np.ndarray, greatest: np.ndarray) -> None:
        if hasattr(self, "n_samples_seen_"):
            n_samples += self.n_samples_seen_
            least, greatest = np.minimum(self.data_min_, least), np.maximum(self.data_max_, greatest)
        self.n_samples_seen_ = n_samples
        self.data_min_, self.data_max_, self.data_range_ = least, greatest, greatest - least
        low, high = map(least.dtype.type, self.feature_range)
        self.scale_ = (high - low) / _handle_zeros_in_scale(self.data_range_, copy=True)
        self.min_ = low - least * self.scale_

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        for each in others:
            self._add(each.n_samples_seen_, each.data_min_, each.data_max_)
