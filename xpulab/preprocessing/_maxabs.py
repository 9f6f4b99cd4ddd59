"""`MaxAbsScaler`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, _handle_zeros_in_scale
from xpulab.csr import ShardedCSR
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.preprocessing._scaler import Scaler
from xpulab.sharing.answers import Moments

__all__ = ["MaxAbsScaler"]


class MaxAbsScaler(Scaler, sklearn.preprocessing.MaxAbsScaler):
    """Columns divided by their greatest absolute values, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.MaxAbsScaler`, to the last bit, for any
    number of engines. A fit is one pass over the rows.

    Parameters
    ----------
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    clip : bool, default=False
        Whether `transform` clips values to the range from -1 to 1. This parameter exists with scikit-learn 1.9 and
        later.

    Attributes
    ----------
    scale_ : ndarray of shape (n_features,), of the dtype of X
        Divisor of each column; 1 if the greatest absolute value is 0.
    max_abs_ : ndarray of shape (n_features,), of the dtype of X
        Greatest absolute value of each column.
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
    sklearn.preprocessing.MaxAbsScaler : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import MaxAbsScaler
    >>> with xpulab.XPUCluster(n=2):
    ...     MaxAbsScaler().fit_transform([[1.0, -1.0, 2.0], [2.0, 0.0, 0.0], [0.0, 1.0, -1.0]])
    array([[ 0.5, -1. ,  1. ],
           [ 1. ,  0. ,  0. ],
           [ 0. ,  1. , -0.5]])
    """

    _rules: ClassVar[Mapping[str, Any]] = {**Scaler._rules, "accept_sparse": "csr"}
    _computes_as: ClassVar[str] = "scale_"

    max_abs_: np.ndarray
    n_samples_seen_: int

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> MaxAbsScaler:
        """Find the greatest absolute value of each column.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. NaN is ignored. A memory-mapped array
            is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        MaxAbsScaler
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects.
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
    ) -> MaxAbsScaler:
        """Update the greatest absolute values with more rows. If the call is interrupted, they stay as they were.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            More rows.
        y : None
            Ignored.

        Returns
        -------
        MaxAbsScaler
            This object. Errors are those of `fit`.
        """
        return self._see("partial_fit", X)

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Divide by the greatest absolute values, in the dtype of X.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            NaN stays NaN. This process scales sparse matrices itself: it takes less time than to send them.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray, sparse matrix or ShardedArray of shape (n_samples, n_features), of the dtype of X
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
        if sparse.issparse(X):
            rows: Any = X
            return super().transform(rows if self.copy else rows.copy())
        ends = (-1.0, 1.0) if getattr(self, "clip", False) else None
        if isinstance(X, ShardedCSR):
            return self._stretched("transform", X, 1 / self.scale_, clip=ends)
        return self._forward(X, scale=self.scale_, clip=ends)

    def inverse_transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Multiply by the greatest absolute values.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
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
        if sparse.issparse(X):
            rows: Any = X
            return super().inverse_transform(rows if self.copy else rows.copy())
        if isinstance(X, ShardedCSR):
            return self._stretched("inverse_transform", X, self.scale_)
        return self._backward(X, factor=self.scale_)

    def _see(self, method: str, X: Any) -> MaxAbsScaler:
        cluster = current_ranks()
        first = not hasattr(self, "n_samples_seen_")
        X = self._checked(cluster, X, reset=first)
        with self._fitting(X):
            found: Moments = self._ask(cluster, method, "moments", X).results[0]["moments"]
            greatest = np.maximum(np.abs(found.minimum), np.abs(found.maximum)).astype(X.dtype)
            self._add(X.shape[0], greatest)
        return self

    def _add(self, n_samples: int, greatest: np.ndarray) -> None:
        first = not hasattr(self, "n_samples_seen_")
        self.max_abs_ = greatest if first else np.maximum(self.max_abs_, greatest)
        self.n_samples_seen_ = n_samples + (0 if first else self.n_samples_seen_)
        self.scale_ = _handle_zeros_in_scale(self.max_abs_, copy=True)

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        for each in others:
            self._add(each.n_samples_seen_, each.max_abs_)
