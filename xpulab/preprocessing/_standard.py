"""`StandardScaler`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, _handle_zeros_in_scale, _is_constant_feature, dtype_of_counts
from xpulab.csr import ShardedCSR, is_sparse
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.preprocessing._merging import merged
from xpulab.preprocessing._scaler import Scaler
from xpulab.sharing.answers import Moments

__all__ = ["StandardScaler"]


class StandardScaler(Scaler, sklearn.preprocessing.StandardScaler):
    """Subtract the mean of each column, and divide by its standard deviation, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.StandardScaler`, for any number of engines. A
    fit is one pass over the rows, or two passes if the mean of a few rows is far from the mean of all rows. A value
    near the mean is subtracted from the rows. Up to 1024 rows are then added up in their dtype, and these sums are
    added up in float64.

    Parameters
    ----------
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    with_mean : bool, default=True
        Whether to subtract the mean. It must be False for sparse matrices, whose zeros would be filled.
    with_std : bool, default=True
        Whether to divide by the standard deviation.

    Attributes
    ----------
    scale_ : ndarray of shape (n_features,), float64, or None
        Divisor of each column; 1 for a constant column. None if `with_std` is False.
    mean_ : ndarray of shape (n_features,), float64, or None
        Mean of each column. None if both `with_mean` and `with_std` are False.
    var_ : ndarray of shape (n_features,), float64, or None
        Variance of each column. None if `with_std` is False.
    n_samples_seen_ : int, float, or ndarray of shape (n_features,)
        Number of values that are not NaN, or the sum of their weights. A single number if it is equal for all columns.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.StandardScaler : The same in one process.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import StandardScaler
    >>> with xpulab.XPUCluster(n=2):
    ...     StandardScaler().fit_transform([[0, 0], [0, 0], [1, 1], [1, 1]])
    array([[-1., -1.],
           [-1., -1.],
           [ 1.,  1.],
           [ 1.,  1.]])
    """

    _rules: ClassVar[Mapping[str, Any]] = {**Scaler._rules, "accept_sparse": "csr"}

    mean_: npt.NDArray[Any] | Any  # None without with_mean and with_std
    var_: npt.NDArray[Any] | Any
    scale_: npt.NDArray[Any] | Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> StandardScaler:
        """Compute the mean and the standard deviation of each column.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. NaN is ignored. A memory-mapped array
            is read by the engines themselves.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        StandardScaler
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for sparse matrices if `with_mean`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._reset()
        return self._see("fit", X, sample_weight)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: npt.ArrayLike | ShardedArray,
        y: npt.ArrayLike | ShardedArray | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> StandardScaler:
        """Update mean and standard deviation with more rows. If the call is interrupted, they stay as they were.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            More rows.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; 1 by default.

        Returns
        -------
        StandardScaler
            This object. Errors are those of `fit`.
        """
        return self._see("partial_fit", X, sample_weight)

    def transform(
        self, X: npt.ArrayLike | ShardedArray, copy: bool | None = None, out: str | os.PathLike[str] | None = None
    ) -> Any:
        """Subtract the means, and divide by the standard deviations, in the dtype of X.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            NaN stays NaN. This process scales sparse matrices itself: it takes less time than to send them.
        copy : bool, optional
            Accepted for compatibility with scikit-learn.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray, CSR matrix or ShardedArray of shape (n_samples, n_features), of the dtype of X
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
            return super().transform(X, copy=True)
        if isinstance(X, ShardedCSR):
            self._require_no_mean(X)
            return self._stretched("transform", X, 1 / np.asarray(self.scale_) if self.with_std else None)
        return self._forward(
            X, shift=self.mean_ if self.with_mean else None, scale=self.scale_ if self.with_std else None
        )

    def inverse_transform(
        self, X: npt.ArrayLike | ShardedArray, copy: bool | None = None, out: str | os.PathLike[str] | None = None
    ) -> Any:
        """Multiply by the standard deviations, and add the means.

        Parameters
        ----------
        X : array-like, sparse matrix or ShardedArray of shape (n_samples, n_features)
            Rows as `transform` returns them.
        copy : bool, optional
            Accepted for compatibility with scikit-learn: the input is never changed.
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
            return super().inverse_transform(X, copy=True)
        if isinstance(X, ShardedCSR):
            self._require_no_mean(X)
            return self._stretched("inverse_transform", X, self.scale_ if self.with_std else None)
        return self._backward(
            X, factor=self.scale_ if self.with_std else None, offset=self.mean_ if self.with_mean else None
        )

    def _see(self, method: str, X: Any, sample_weight: Any) -> StandardScaler:
        cluster = current_ranks()
        X = self._checked(cluster, X, reset=not hasattr(self, "n_samples_seen_"))
        self._require_no_mean(X)
        weights = self._weights(sample_weight, X, only_non_negative=False)
        with self._fitting(X, weights):
            found: Moments = self._ask(cluster, method, "moments", X, sample_weight=weights).results[0]["moments"]
            seen = found.weight if is_sparse(X) else found.count
            kind = dtype_of_counts(
                self.sklearn_class(), np.dtype(X.dtype), weights is not None, is_sparse(X), with_mean=self.with_mean,
                with_std=self.with_std,
            )  # fmt: skip
            self._add(found.mean, found.squares, found.weight, seen, kind)
        return self

    def _require_no_mean(self, X: Any) -> None:
        if self.with_mean and is_sparse(X):
            raise ValueError(
                "Cannot center sparse matrices: pass `with_mean=False` instead. See docstring for motivation and "
                "alternatives."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self.with_mean
        return tags

    def _add(
        self, mean: np.ndarray, squares: np.ndarray, weight: np.ndarray, unweighted: np.ndarray, kind: np.dtype[Any]
    ) -> None:
        """Add rows with these moments, as scikit-learn does; `unweighted` are added up if there are no means.

        `kind` is the dtype of the counts, which are only rounded to integers if they are whole.
        """
        seen = np.broadcast_to(getattr(self, "n_samples_seen_", 0), unweighted.shape).astype(np.float64)
        if not self.with_mean and not self.with_std:
            self.mean_ = self.var_ = None
            total = seen + unweighted
        else:
            before = getattr(self, "mean_", 0.0), getattr(self, "var_", 0.0) if self.with_std else None
            self.mean_, self.var_, total = merged(*before, seen, mean, squares, weight)
        if kind.kind == "f" or np.array_equal(total, np.rint(total)):
            total = total.astype(kind)
        self.n_samples_seen_ = total[0] if total.min() == total.max() else total
        self.scale_ = None
        if self.with_std:
            constant = _is_constant_feature(self.var_, self.mean_, self.n_samples_seen_)
            deviation = np.sqrt(np.asarray(self.var_))
            self.scale_ = _handle_zeros_in_scale(deviation, copy=False, constant_mask=constant)

    def _absorb(self, others: Sequence[Any]) -> None:
        """Add the rows that other estimators have seen."""
        for each in others:
            kind = np.asarray(each.n_samples_seen_).dtype
            seen = np.broadcast_to(np.asarray(each.n_samples_seen_, np.float64), each.n_features_in_)
            mean = np.zeros(each.n_features_in_) if each.mean_ is None else each.mean_
            squares = np.zeros(each.n_features_in_) if each.var_ is None else seen * each.var_
            self._add(mean, squares, seen, seen, kind)
