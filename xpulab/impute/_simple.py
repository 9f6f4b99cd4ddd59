"""`SimpleImputer`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
import sklearn
import sklearn.impute
from sklearn.utils.fixes import parse_version
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.deploy.cluster import current_cluster
from xpulab.estimator.proxy import TransformerProxy

__all__ = ["SimpleImputer"]

#: Whether scikit-learn drops columns without values if the values to fill in are constant.
_DROPS_EMPTY = parse_version(sklearn.__version__) >= parse_version("1.8.0")


class SimpleImputer(TransformerProxy, sklearn.impute.SimpleImputer):
    """Replace missing numbers by a statistic of their column, or a constant, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.impute.SimpleImputer` for numbers, for any number of
    engines. Means are sums in float64. Medians are exact, and take a pass over the rows for each byte of a number.
    `cluster.scatter(X, allow_nan=True)` sends rows with NaN, and the rows that `transform` returns for this handle stay
    on the engines.

    Parameters
    ----------
    missing_values : int or float, default=NaN
        The number that stands for a missing value.
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        Of numbers that are equally frequent, "most_frequent" is the least. Each rank gets the distinct numbers of a
        column from all ranks.
    fill_value : int or float, optional
        The number for "constant"; 0 by default.
    copy : bool, default=True
        Accepted for compatibility with scikit-learn: the input is never changed.
    add_indicator : bool, default=False
        Whether to append a column for each column with missing values in the fit: 1 for a missing value, otherwise 0.
    keep_empty_features : bool, default=False
        Whether to keep columns without values, and fill them with 0, or with the constant.

    Attributes
    ----------
    statistics_ : ndarray of shape (n_features,)
        What replaces the missing values of each column; NaN for a column that is dropped.
    indicator_ : MissingIndicator or None
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.impute.SimpleImputer : The same in one process; it takes strings, functions and sparse matrices too.

    Examples
    --------
    >>> import numpy as np
    >>> import xpulab
    >>> from xpulab.impute import SimpleImputer
    >>> with xpulab.XPUCluster(n=2):
    ...     SimpleImputer().fit_transform([[1.0, 2.0], [np.nan, 3.0], [7.0, np.nan]])
    array([[1. , 2. ],
           [4. , 3. ],
           [7. , 2.5]])
    """

    n_features_in_: int

    @property
    def _rules(self) -> dict[str, Any]:  # type: ignore[override]
        missing = self.missing_values
        return {"ensure_all_finite": "allow-nan"} if isinstance(missing, float) and np.isnan(missing) else {}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> SimpleImputer:
        """Find what replaces the missing values of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. A memory-mapped array is read by the
            engines themselves.
        y : None
            Ignored.

        Returns
        -------
        SimpleImputer
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, for strings, and for functions as `strategy`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_cluster()
        self._require_numbers()
        try:
            X = self._checked(cluster, X, reset=True)
        except ValueError as error:
            if "could not convert" in str(error):
                raise ValueError(f"Cannot use {self.strategy} strategy with non-numeric data:\n{error}") from None
            raise
        missing = float(self.missing_values)
        with self._fitting(X):
            found = self._ask(cluster, "fit", "columns.statistics", X, strategy=self.strategy, missing=missing).results[
                0
            ]
            self._fit_dtype = self._fill_dtype = X.dtype
            some = found["count"] < X.shape[0]
            self._fit_indicator(np.stack([some, np.zeros_like(some)]))
            self.statistics_ = self._replacements(found, X.dtype)
        return self

    def transform(self, X: Any) -> Any:
        """Replace the missing values.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features_out), of the dtype of X
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
        check_is_fitted(self)
        columns, indicated, values = self._columns()
        if len(columns) < len(values):
            dropped = np.setdiff1d(np.arange(len(values)), columns)
            names = getattr(self, "feature_names_in_", None)
            warnings.warn(
                "Skipping features without any observed values: "
                f"{dropped if names is None else names[dropped]}. At least one non-missing value is needed for "
                f"imputation with strategy='{self.strategy}'.",
                stacklevel=2,
            )
        return self._transformed(
            "transform", "columns.fill", X, len(columns) + len(indicated), nan=False,
            missing=float(self.missing_values), values=values, columns=columns, indicated=indicated,
        )  # fmt: skip

    def inverse_transform(self, X: Any) -> Any:
        """Put the missing values back, where the columns of the indicator have 1.

        Parameters
        ----------
        X : array-like or ShardedArray
            Rows as `transform` returns them, of an estimator with `add_indicator`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features)
            The rows with missing values. Errors are those of `transform`.
        """
        check_is_fitted(self)
        if not self.add_indicator:
            raise ValueError(
                "'inverse_transform' works only when 'SimpleImputer' is instantiated with 'add_indicator=True'. Got "
                f"'add_indicator={self.add_indicator}' instead."
            )
        columns, indicated, values = self._columns()
        missing = float(self.missing_values)
        return self._transformed(
            "inverse_transform", "columns.unfill", X, len(values), n_given=len(columns) + len(indicated),
            nan=bool(np.isnan(missing)), missing=missing, n_features=len(values), columns=columns, indicated=indicated,
        )  # fmt: skip

    def _require_numbers(self) -> None:
        if callable(self.strategy):
            raise ValueError(
                f"strategy={self.strategy!r} was given, and the engines compute 'mean', 'median', 'most_frequent' or "
                "'constant'; for a function use sklearn.impute.SimpleImputer"
            )
        for name in ("missing_values", "fill_value"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) and not (name == "fill_value" and value is None):
                raise ValueError(
                    f"{name}={value!r} was given, and the engines take numbers; for other values use "
                    "sklearn.impute.SimpleImputer"
                )

    def _replacements(self, found: dict[str, Any], dtype: Any) -> np.ndarray:
        """Return `statistics_` as scikit-learn has it."""
        empty = found["count"] == 0
        if self.strategy == "constant":
            constant = np.full(len(empty), 0 if self.fill_value is None else self.fill_value, dtype=object)
            if not self.keep_empty_features and _DROPS_EMPTY:
                constant[empty] = np.nan
            return constant
        if self.strategy == "median":
            half = dtype.type(2)
            value = np.where(found["between"] == 0, found["lower"], (found["lower"] + found["upper"]) / half)
        else:
            value = found["value"]
        value = np.where(empty, 0.0 if self.keep_empty_features else np.nan, value)
        return value.astype(dtype if self.strategy == "median" else np.float64)

    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which columns are kept, which are indicated, and what replaces the missing values of each."""
        values = self.statistics_.astype(np.float64)
        columns = np.arange(len(values)) if self.keep_empty_features else np.flatnonzero(~np.isnan(values))
        indicated = self.indicator_.features_ if self.add_indicator else np.empty(0, np.int64)
        return columns, indicated, values
