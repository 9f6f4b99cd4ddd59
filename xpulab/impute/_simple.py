"""`SimpleImputer`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import numbers
import os
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import sklearn
import sklearn.impute
from sklearn.utils.fixes import parse_version
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.proxy import TransformerProxy
from xpulab.estimator.results_in_files import in_file
from xpulab.sources.coded import code_dtype, labels_of
from xpulab.sources.source import Column
from xpulab.tables import coded, columns_of_rows

__all__ = ["SimpleImputer"]

_OF_STRINGS = ("most_frequent", "constant")  # the strategies for strings of tables

#: Whether scikit-learn drops columns without values if the values to fill in are constant.
_DROPS_EMPTY = parse_version(sklearn.__version__) >= parse_version("1.8.0")


class SimpleImputer(TransformerProxy, sklearn.impute.SimpleImputer):
    """Replace missing numbers by a statistic of their column, or a constant, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.impute.SimpleImputer` for numbers, and for strings of
    tables (data frames, scans and handles with named columns), for any number of engines. Means are sums in float64.
    Medians are exact, and take a pass over the rows for each byte of a number.
    `cluster.scatter(X, allow_nan=True)` sends rows with NaN, and the rows that `transform` returns for this handle stay
    on the engines.

    Parameters
    ----------
    missing_values : int or float, default=NaN
        The number that stands for a missing value.
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        Of values that are equally frequent, "most_frequent" is the least. Each rank gets the distinct numbers of a
        column from all ranks. Strings of tables take "most_frequent" and "constant".
    fill_value : int, float or str, optional
        The value for "constant"; by default 0, and "missing_value" for strings.
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
    sklearn.impute.SimpleImputer : The same in one process; it takes other objects, functions and sparse matrices too.

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

    _keeps: ClassVar[str] = "f"

    n_features_in_: int

    @property
    def _rules(self) -> dict[str, Any]:  # type: ignore[override]
        missing = self.missing_values
        return {"ensure_all_finite": "allow-nan"} if isinstance(missing, float) and np.isnan(missing) else {}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: npt.ArrayLike | ShardedArray | None = None) -> SimpleImputer:
        """Find what replaces the missing values of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            float32 and float64 keep their dtype, other numbers become float64. Strings are those of tables. A
            memory-mapped array is read by the engines themselves.
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
            For input that scikit-learn rejects, for sparse matrices, for objects that are no strings of a table, and
            for functions as `strategy`.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_ranks()
        self._require_numbers()
        if self.strategy in _OF_STRINGS:
            X = coded(X, cluster)
        try:
            X = self._checked(cluster, X, reset=True)
        except ValueError as error:
            if "could not convert" in str(error):
                raise ValueError(f"Cannot use {self.strategy} strategy with non-numeric data:\n{error}") from None
            raise
        missing = float(self.missing_values)
        with self._fitting(X):
            answer = self._ask(cluster, "fit", "columns.statistics", X, strategy=self.strategy, missing=missing)
            found = answer.results[0]
            self._fit_dtype = self._fill_dtype = X.dtype
            some = found["count"] < X.shape[0]
            self._fit_indicator(np.stack([some, np.zeros_like(some)]))
            self.statistics_ = self._with_strings(self._replacements(found, X.dtype), X)
        return self

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Replace the missing values.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

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
        if out is not None:
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        cluster = self._cluster()
        X = coded(X, cluster) if self.strategy in _OF_STRINGS else X
        about, values, recoded = self._for_rows(X)
        columns, indicated, _ = self._columns()
        if len(columns) < len(values):
            dropped = np.setdiff1d(np.arange(len(values)), columns)
            names = getattr(self, "feature_names_in_", None)
            warnings.warn(
                "Skipping features without any observed values: "
                f"{dropped if names is None else names[dropped]}. At least one non-missing value is needed for "
                f"imputation with strategy='{self.strategy}'.",
                stacklevel=2,
            )
        described = _of_result(about, columns, indicated)
        found = self._transformed(
            "transform", "columns.fill", X, len(columns) + len(indicated), nan=False, described=described,
            missing=float(self.missing_values), values=values, columns=columns, indicated=indicated,
            recoded=recoded,
        )  # fmt: skip
        return found if described is None or isinstance(found, ShardedArray) else _as_objects(found, described)

    def _checked(self, cluster: Ranks, X: Any, *, reset: bool, look_now: bool = False, **rules: object) -> Any:
        rules["categories"] = self.strategy in _OF_STRINGS
        return super()._checked(cluster, X, reset=reset, look_now=look_now, **rules)

    def _with_strings(self, values: np.ndarray, X: Any) -> np.ndarray:
        """Return the replacements, with strings in columns that have strings."""
        about = columns_of_rows(X, len(values))
        if all(each.categories is None for each in about) and not isinstance(self.fill_value, str):
            return values
        made = values.astype(object)
        for number, column in enumerate(about):
            if column.categories is None:
                if isinstance(values[number], str):
                    raise ValueError(
                        f"fill_value={self.fill_value!r} was given, and column {column.name!r} has numbers"
                    )
                continue
            if self.strategy == "constant":
                made[number] = "missing_value" if self.fill_value is None else self.fill_value
            else:
                made[number] = labels_of(column, values[number : number + 1].astype(np.float64))[0]
        return made

    def _for_rows(self, X: Any) -> tuple[list[Column], np.ndarray, dict[int, np.ndarray]]:
        """Return the columns of the result, the numbers of the replacements, and other numbers for strings of X."""
        about = columns_of_rows(X, len(self.statistics_))
        values = np.empty(len(self.statistics_))
        recoded: dict[int, np.ndarray] = {}
        if len(about) != len(values):  # the check of X raises scikit-learn's error
            return [], values, recoded
        for number, (column, value) in enumerate(zip(about, self.statistics_, strict=True)):
            if isinstance(value, str) != (column.categories is not None) and value == value:
                kinds = ("numbers", "strings") if isinstance(value, str) else ("strings", "numbers")
                raise ValueError(
                    f"column {column.name!r} has {kinds[0]}; expected {kinds[1]}, as in the fit: {value!r}"
                )
            if not isinstance(value, str) or column.categories is None:
                values[number] = value
                continue
            texts = tuple(sorted({*column.categories, value}))
            values[number] = texts.index(value)
            if texts != column.categories:
                recoded[number] = np.searchsorted(np.array(texts, object), np.array(column.categories, object))
                about[number] = replace(column, categories=texts, numeric=code_dtype(len(texts)))
        return about, values, recoded

    def inverse_transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Put the missing values back, where the columns of the indicator have 1.

        Parameters
        ----------
        X : array-like or ShardedArray
            Rows as `transform` returns them, of an estimator with `add_indicator`.
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features)
            The rows with missing values. Errors are those of `transform`.
        """
        if out is not None:
            return in_file(self.inverse_transform, X, out)
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
            if isinstance(value, str) and name == "fill_value" and self.strategy == "constant":
                continue  # of columns of strings
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
        values = np.array([0.0 if isinstance(each, str) else each for each in self.statistics_], np.float64)
        columns = np.arange(len(values)) if self.keep_empty_features else np.flatnonzero(~np.isnan(values))
        indicated = self.indicator_.features_ if self.add_indicator else np.empty(0, np.int64)
        return columns, indicated, values


def _of_result(about: list[Column], columns: np.ndarray, indicated: np.ndarray) -> list[Column] | None:
    """Return the columns of a result that has strings; None if it has none."""
    if all(each.categories is None for each in about):
        return None
    marks = (Column(f"missingindicator_{about[each].name}", "float64", np.dtype(np.float64)) for each in indicated)
    return [*(about[each] for each in columns), *marks]


def _as_objects(rows: np.ndarray, described: list[Column]) -> np.ndarray:
    """Return rows with strings in place of their numbers."""
    made = rows.astype(object)
    for number, column in enumerate(described):
        made[:, number] = labels_of(column, rows[:, number])
    return made
