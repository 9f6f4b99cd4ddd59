"""`OrdinalEncoder`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.preprocessing
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.results_in_files import in_file
from xpulab.preprocessing._categories import CategoriesProxy, FromDistinct

__all__ = ["OrdinalEncoder"]


class OrdinalEncoder(CategoriesProxy, sklearn.preprocessing.OrdinalEncoder):
    """Encode each category of a column as a whole number, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.OrdinalEncoder` for numbers, and for strings
    of tables: data frames, scans and handles with named columns. All ranks get the distinct values of all columns. The
    hosts of the engines encode the rows, some at a time. `inverse_transform` takes arrays, and this process computes
    it.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
        The categories of each column, numbers in ascending order; with "auto", those of the fit.
    dtype : number type, default=numpy.float64
        Dtype of the result: for a `ShardedArray` float32 or float64.
    handle_unknown : {"error", "use_encoded_value"}, default="error"
        How `transform` encodes values that are not categories.
    unknown_value : int or NaN, optional
        The number for unknown values with "use_encoded_value".
    encoded_missing_value : int or NaN, default=NaN
        The number for missing values.
    min_frequency : int or float, optional
        Categories that occur less often, or in a smaller share of the rows, share one number.
    max_categories : int, optional
        Greatest number of numbers for each column; the rarest categories share one of them.

    Attributes
    ----------
    categories_ : list of ndarray of shape (n_categories,)
        The categories of each column, in the dtype of the column.
    infrequent_categories_ : list of ndarray or None
        The categories of each column that share one number.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.OrdinalEncoder : The same in one process; it takes other objects too.

    Examples
    --------
    >>> import pyarrow
    >>> import xpulab
    >>> from xpulab.preprocessing import OrdinalEncoder
    >>> with xpulab.XPUCluster(n=2) as c:
    ...     table = c.scatter(pyarrow.table({"carrier": ["DL", "AA", "UA", "AA"]}))
    ...     OrdinalEncoder().fit_transform(table).gather().ravel()
    array([1., 0., 2., 0.])
    """

    _missing_indices: dict[int, int]

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> OrdinalEncoder:
        """Find the categories of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Numbers, or a table with strings. NaN is a missing value. Files are read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        OrdinalEncoder
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input and parameters that scikit-learn rejects, for sparse matrices, for objects that are no strings of
            a table, and for whole numbers of 2^53 or more.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        self._fit_categories(current_ranks(), X, _settled)
        return self

    def transform(self, X: npt.ArrayLike | ShardedArray, out: str | os.PathLike[str] | None = None) -> Any:
        """Encode rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        out : path-like, optional
            File for the result, ``.npy`` or ``.parquet``, which is computed for one part of X after the other. It is
            then returned as an array that is mapped into memory, or as a `Scan`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features), of the dtype `dtype`
            A `ShardedArray` if X is one; its rows stay on the engines.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, and for a `ShardedArray` with a `dtype` that the engines do not keep.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        if out is not None:
            return in_file(self.transform, X, out)
        check_is_fitted(self)
        dtype = np.dtype(self.dtype)
        if isinstance(X, ShardedArray) and X.stays and dtype not in (np.float32, np.float64):
            raise ValueError(
                f"OrdinalEncoder has dtype={dtype}, and rows on the engines are float32 or float64; type: "
                f"OrdinalEncoder(dtype=numpy.{X.dtype})"
            )
        return self._encoded(X, self._places(), self.n_features_in_, dtype=dtype)

    def _places(self) -> list[npt.NDArray[np.float64]]:
        """Return for each column the number of each category, and of unknown values."""
        unknown = self.unknown_value if self.handle_unknown == "use_encoded_value" else np.nan
        found = []
        for column, categories in enumerate(self.categories_):
            grouped = self._default_to_infrequent_mappings[column] if self._infrequent_enabled else None
            numbers = np.zeros(len(categories) + 1)
            frequent = np.arange(len(categories)) if grouped is None else grouped  # the latter without missing values
            numbers[: len(frequent)] = frequent
            if column in self._missing_indices:
                numbers[self._missing_indices[column]] = self.encoded_missing_value
            numbers[-1] = unknown
            found.append(numbers)
        return found


class _Distinct(FromDistinct, sklearn.preprocessing.OrdinalEncoder):
    """scikit-learn's encoder, which gets the distinct values of each column and how often each occurs, and no rows."""


def _settled(values: list[Any], counts: list[Any], n_samples: int, params: Mapping[str, Any]) -> _Distinct:
    """Check the parameters against the distinct values, set the attributes that follow, and return the encoder."""
    plain = _Distinct(**params)
    plain.distinct = values, counts, n_samples
    fitted: _Distinct = plain.fit(np.zeros((1, len(values))))
    return fitted
