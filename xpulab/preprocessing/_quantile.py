"""`QuantileTransformer`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils import check_random_state, resample
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.parts import or_drawn
from xpulab.estimator.proxy import TransformerProxy
from xpulab.estimator.results_in_files import in_file
from xpulab.scanning import scanned

__all__ = ["QuantileTransformer"]


class QuantileTransformer(TransformerProxy, sklearn.preprocessing.QuantileTransformer):
    """Map each column to a uniform or normal distribution by its quantiles, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.QuantileTransformer`, for any number of
    engines. For the quantiles, the ranks take turns, and each sorts a column of the chosen rows of all ranks in the
    memory of its host. The hosts of the engines map the rows, some at a time.

    Parameters
    ----------
    n_quantiles : int, default=1000
        Number of quantiles; the number of rows if that is less.
    output_distribution : {"uniform", "normal"}, default="uniform"
        Distribution of the result.
    ignore_implicit_zeros : bool, default=False
        Accepted for compatibility with scikit-learn, where it is about sparse matrices.
    subsample : int or None, default=10_000
        Greatest number of rows from which the quantiles are computed; None for all rows.
    random_state : int, RandomState instance or None, default=None
        Draws these rows, as scikit-learn draws them.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.

    Attributes
    ----------
    n_quantiles_ : int
        Number of quantiles.
    quantiles_ : ndarray of shape (`n_quantiles_`, n_features)
        The quantiles of each column; NaN for a column of NaN.
    references_ : ndarray of shape (`n_quantiles_`,)
        The share of the values that are below each quantile, from 0 to 1.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.QuantileTransformer : The same in one process; it takes sparse matrices too.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import QuantileTransformer
    >>> with xpulab.XPUCluster(n=2):
    ...     QuantileTransformer(n_quantiles=3).fit_transform([[1.0], [2.0], [10.0]])
    array([[0. ],
           [0.5],
           [1. ]])
    """

    n_features_in_: int
    _rules: ClassVar[Mapping[str, Any]] = {"ensure_all_finite": "allow-nan"}
    _keeps: ClassVar[str] = "f"

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None
    ) -> QuantileTransformer:
        """Compute the quantiles of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. NaN is ignored. A memory-mapped array
            is read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        QuantileTransformer
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, and for more quantiles than `subsample`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        if self.subsample is not None and self.n_quantiles > self.subsample:
            raise ValueError(
                "The number of quantiles cannot be greater than the number of samples used. Got "
                f"{self.n_quantiles} quantiles and {self.subsample} samples."
            )
        cluster = current_ranks()
        rows: Any = self._checked(cluster, X, reset=True)
        n_samples = rows.shape[0]
        if self.n_quantiles > n_samples:
            warnings.warn(
                f"n_quantiles ({self.n_quantiles}) is greater than the total number of samples ({n_samples}). "
                "n_quantiles is set to n_samples.",
                stacklevel=3,
            )
        if self.ignore_implicit_zeros:
            warnings.warn(
                "'ignore_implicit_zeros' takes effect only with sparse matrix. This parameter has no effect.",
                stacklevel=3,
            )
        random_state, chosen = check_random_state(self.random_state), None
        if self.subsample is not None and self.subsample < n_samples:
            drawn = resample(np.arange(n_samples), replace=False, n_samples=self.subsample, random_state=random_state)
            chosen = np.sort(drawn)
        elif self.subsample is not None and scanned(rows) is not None:
            chosen = np.arange(n_samples)  # so few rows are taken in a pass
        references = np.linspace(0, 1, max(1, min(self.n_quantiles, n_samples)), endpoint=True)
        with self._fitting(rows), or_drawn("subsample=10_000" if self.subsample is None else None):
            found = self._ask(
                cluster, "fit", "encoding.quantiles", rows, percents=references * 100, chosen=chosen,
                at_once=chosen is None,
            )  # fmt: skip
            self.n_quantiles_, self.references_ = len(references), references
            self.quantiles_ = found.results[0]["quantiles"]
        return self

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Map each number to the place of its quantile in the output distribution.

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
        return self._spread("transform", X, None)

    def inverse_transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Map places in the output distribution back to numbers.

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
        return self._spread("inverse_transform", X, self.n_features_in_)

    def _spread(self, method: str, X: Any, n_given: int | None) -> Any:
        return self._transformed(
            method, "encoding.spread", X, self.n_features_in_, n_given=n_given,
            nan=True if np.isnan(self.quantiles_).any() else None, quantiles=self.quantiles_,
            references=self.references_, normal=self.output_distribution == "normal",
            inverse=method == "inverse_transform",
        )  # fmt: skip
