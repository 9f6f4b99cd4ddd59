"""`OneHotEncoder`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import os
import warnings
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
from xpulab.preprocessing._sparse import as_csr, require_dense_output

__all__ = ["OneHotEncoder"]


class OneHotEncoder(CategoriesProxy, sklearn.preprocessing.OneHotEncoder):
    """Encode each category of a column as a column of 0 and 1, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.OneHotEncoder` for numbers, and for strings
    of tables: data frames, scans and handles with named columns. All ranks get the distinct values of all columns. The
    hosts of the engines encode the rows, some at a time. `inverse_transform` takes arrays, and this process computes
    it.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
        The numbers of each column in ascending order, NaN last; with "auto", those of the fit.
    drop : {"first", "if_binary"} or array-like of shape (n_features,), optional
        The category of each column that gets no column.
    sparse_output : bool, default=True
        Whether `transform` returns a sparse matrix for an array. The rows of a `ShardedArray` stay on the engines,
        which have dense rows.
    dtype : number type, default=numpy.float64
        Dtype of the result: for a `ShardedArray` float32 or float64.
    handle_unknown : {"error", "ignore", "infrequent_if_exist", "warn"}, default="error"
        How `transform` encodes numbers that are not categories.
    min_frequency : int or float, optional
        Categories that occur less often, or in a smaller share of the rows, share one column.
    max_categories : int, optional
        Greatest number of columns for each column of the input; the rarest categories share one of them.
    feature_name_combiner : "concat" or callable, default="concat"
        Makes the names of the new columns.

    Attributes
    ----------
    categories_ : list of ndarray of shape (n_categories,)
        The categories of each column, in the dtype of the column.
    drop_idx_ : ndarray of shape (n_features,) or None
        The place of the category of each column that gets no column; None for no such category.
    infrequent_categories_ : list of ndarray or None
        The categories of each column that share one column.
    n_features_in_ : int
        Number of columns of the input.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns; set only if the input has names, and all of them are strings.
    report_ : FitReport
        The work of each engine, and the seconds of each phase, in the last fit.

    See Also
    --------
    sklearn.preprocessing.OneHotEncoder : The same in one process; it takes strings and other objects too.

    Examples
    --------
    >>> import xpulab
    >>> from xpulab.preprocessing import OneHotEncoder
    >>> with xpulab.XPUCluster(n=2):
    ...     OneHotEncoder(sparse_output=False).fit_transform([[1, 5], [2, 5], [2, 7]])
    array([[1., 0., 1., 0.],
           [0., 1., 1., 0.],
           [0., 1., 0., 1.]])
    """

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: npt.ArrayLike | ShardedArray, y: npt.ArrayLike | ShardedArray | None = None) -> OneHotEncoder:
        """Find the categories of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Numbers, which the engines get as float32 or float64, or a table with strings. NaN is a category. Files are
            read by the engines themselves.
        y : None
            Ignored.

        Returns
        -------
        OneHotEncoder
            This object, fitted.

        Raises
        ------
        NoClusterError
            If no cluster is running.
        ValueError, TypeError
            For input that scikit-learn rejects, for sparse matrices, for objects that are no strings of a table, and
            for whole numbers of 2^53 or more.
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
        ndarray, sparse matrix or ShardedArray of shape (n_samples, n_encoded_features), of the dtype `dtype`
            A `ShardedArray` if X is one; its rows stay on the engines. Of an array, a CSR matrix with `sparse_output`.

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
        self._require_possible(X)
        n_columns, dense = int(sum(self._n_features_outs)), self._is_dense(X)
        found = self._encoded(
            X, self._places(), n_columns if dense else self.n_features_in_, dtype=self.dtype if dense else np.int32,
            n_encoded=n_columns if dense else None,
        )  # fmt: skip
        return found if dense else as_csr(found, n_columns, self.dtype)

    def _is_dense(self, X: Any) -> bool:
        return not self.sparse_output or (isinstance(X, ShardedArray) and X.stays)

    def _require_possible(self, X: Any) -> None:
        """Raise ValueError if the result cannot have the form that was asked for."""
        name, dtype = type(self).__name__, np.dtype(self.dtype)
        require_dense_output(self, "" if self._is_dense(X) else "sparse_output=True", "sparse_output=False")
        if isinstance(X, ShardedArray) and X.stays:
            if dtype not in (np.float32, np.float64):
                raise ValueError(
                    f"{name} has dtype={dtype}, and rows on the engines are float32 or float64; type: "
                    f"{name}(sparse_output=False, dtype=numpy.{X.dtype})"
                )
        elif dtype.kind not in "biuf":
            raise ValueError(f"{name} has dtype={dtype}; expected a dtype of real numbers, such as numpy.float64")

    def _places(self) -> list[np.ndarray]:
        """Return for each column the place of the new column of each category, and of unknown numbers; -1 for none."""
        places, first = [], 0
        takes_unknown = self.handle_unknown in ("infrequent_if_exist", "warn")
        for column, categories in enumerate(self.categories_):
            rare = self._infrequent_indices[column] if self._infrequent_enabled else None
            place = np.arange(len(categories)) if rare is None else self._default_to_infrequent_mappings[column]
            place = np.append(place, place[rare[0]] if takes_unknown and rare is not None else -1)
            drop = None if self._drop_idx_after_grouping is None else self._drop_idx_after_grouping[column]
            if drop is not None:
                place = np.where(place == drop, -1, place - (place > drop))
            places.append(np.where(place < 0, -1, place + first).astype(np.int32))
            first += int(self._n_features_outs[column])
        return places

    def _tell_unknown(self, columns: list[int], shown: list[Any]) -> None:
        super()._tell_unknown(columns, shown)
        if self.handle_unknown == "warn" or self.drop is not None:
            encoded = "all zeros" if self.handle_unknown == "ignore" else "the infrequent category"
            warnings.warn(
                f"Found unknown categories in columns {columns} during transform. These unknown categories will be "
                f"encoded as {encoded}" + "." * (self.handle_unknown != "ignore"),
                UserWarning,
                stacklevel=10,
            )


class _Distinct(FromDistinct, sklearn.preprocessing.OneHotEncoder):
    """scikit-learn's encoder, which gets the distinct values of each column and how often each occurs, and no rows."""


def _settled(
    values: list[np.ndarray], counts: list[np.ndarray], n_samples: int, params: Mapping[str, Any]
) -> _Distinct:
    """Check the parameters against the distinct values, set the attributes that follow, and return the encoder."""
    plain = _Distinct(**params)
    plain.distinct = values, counts, n_samples
    plain._fit(np.zeros((1, len(values))), handle_unknown=plain.handle_unknown, ensure_all_finite="allow-nan")
    plain._set_drop_idx()
    plain._n_features_outs = plain._compute_n_features_outs()
    return plain
