"""`RobustScaler`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import numpy.typing as npt
import sklearn.preprocessing
from scipy import stats
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, _handle_zeros_in_scale
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.preprocessing._merging import interpolated, midway
from xpulab.preprocessing._scaler import Scaler
from xpulab.sharing.answers import Quantiles

__all__ = ["RobustScaler"]


class RobustScaler(Scaler, sklearn.preprocessing.RobustScaler):
    """Subtract the median of each column, and divide by a range of quantiles, on every device of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.RobustScaler`, for any number of engines.
    Quantiles are exact. The engines find the values at the wanted positions of the sorted column byte by byte, in 4
    (float32) or 8 (float64) passes over the rows, without sorting.

    Parameters
    ----------
    with_centering : bool, default=True
        Whether to subtract the median.
    with_scaling : bool, default=True
        Whether to divide by the range of the quantiles.
    quantile_range : tuple (q_min, q_max), 0.0 <= q_min <= q_max <= 100.0, default=(25.0, 75.0)
        Quantiles in per cent; `scale_` is their difference.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    unit_variance : bool, default=False
        Whether to divide `scale_` by the same difference of a standard normal distribution.

    Attributes
    ----------
    center_ : ndarray of shape (n_features,), of the dtype of X, or None
        Median of each column.
    scale_ : ndarray of shape (n_features,), float64, or None
        Divisor of each column; 1 if both quantiles are equal.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.RobustScaler : The same in one process; it takes sparse matrices too.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import RobustScaler
    >>> with xpulab.XPUCluster(n=2):
    ...     RobustScaler().fit_transform([[1.0, -2.0, 2.0], [-2.0, 1.0, 3.0], [4.0, 1.0, -2.0]])
    array([[ 0. , -2. ,  0. ],
           [-1. ,  0. ,  0.4],
           [ 1. ,  0. , -1.6]])
    """

    _computes_as: ClassVar[str] = "center_"

    center_: npt.NDArray[Any] | Any  # None without with_centering
    scale_: npt.NDArray[Any] | Any

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> RobustScaler:
        """Find the median and the quantiles of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. NaN is ignored. A memory-mapped array
            is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        RobustScaler
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, and for an invalid `quantile_range`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        q_min, q_max = self.quantile_range
        if not 0 <= q_min <= q_max <= 100:
            raise ValueError(f"Invalid quantile range: {self.quantile_range}")
        for name in {"center_", "scale_"} & set(vars(self)):
            delattr(self, name)
        fractions = [0.5] * self.with_centering + [q_min / 100, q_max / 100] * self.with_scaling
        with self._fitting(rows):
            found: Quantiles = self._ask(cluster, "fit", "quantiles", rows, fractions=fractions).results[0]
            lower, upper, between = map(list, (found["lower"], found["upper"], found["between"]))
            center = scale = None
            if self.with_centering:
                center = midway(lower.pop(0), upper.pop(0), between.pop(0))
            if self.with_scaling:
                low, high = map(interpolated, lower, upper, between)
                scale = _handle_zeros_in_scale(high - low, copy=False)
                if self.unit_variance:
                    scale = scale / (stats.norm.ppf(q_max / 100.0) - stats.norm.ppf(q_min / 100.0))
            self.center_, self.scale_ = center, scale
        return self

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Subtract the medians, and divide by the ranges, in the dtype of X.

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
        return self._forward(X, shift=self.center_, scale=self.scale_)

    def inverse_transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Multiply by the ranges, and add the medians.

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
        return self._backward(X, factor=self.scale_, offset=self.center_)
