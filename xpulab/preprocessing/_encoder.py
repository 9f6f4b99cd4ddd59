"""`OneHotEncoder`: scikit-learn's estimator on all engines of the active cluster."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import sklearn.preprocessing
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _fit_context, _get_output_config
from xpulab.checks import check_array
from xpulab.data import ShardedArray
from xpulab.deploy.cluster import current_cluster
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.proxy import TransformerProxy

try:
    from xpulab._sklearn import _align_api_if_sparse
except ImportError:  # before 1.9
    _align_api_if_sparse = sparse.csr_matrix

__all__ = ["OneHotEncoder"]

_EXACT = 2**53  # from here on, float64 does not have all whole numbers


class OneHotEncoder(TransformerProxy, sklearn.preprocessing.OneHotEncoder):
    """Encode each number of a column as a column of 0 and 1, on all engines of the active cluster.

    Parameters, attributes and results are those of `sklearn.preprocessing.OneHotEncoder` for numbers, for any number of
    engines. All ranks get the distinct numbers of all columns. The hosts of the engines encode the rows, some at a
    time. `inverse_transform` takes arrays, and this process computes it.

    Parameters
    ----------
    categories : "auto" or list of array-like, default="auto"
        The numbers of each column in ascending order, NaN last; with "auto", those of the fit.
    drop : {"first", "if_binary"} or array-like of shape (n_features,), optional
        The category of each column that gets no column.
    sparse_output : bool, default=True
        Whether `transform` returns a sparse matrix for an array. The rows of a `ShardedArray` stay on the engines as
        dense rows, and need `sparse_output=False`.
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

    n_features_in_: int
    _rules: ClassVar[Mapping[str, Any]] = {"ensure_all_finite": "allow-nan"}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> OneHotEncoder:
        """Find the categories of each column.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
            Numbers, which the engines get as float32 or float64. NaN is a category. A memory-mapped array is read by
            the engines themselves.
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
            For input that scikit-learn rejects, for sparse matrices, for strings and other objects, and for whole
            numbers of 2^53 or more.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        EngineError, EngineLostError
            If an engine raised an exception, or ended.
        KeyboardInterrupt
            If the user interrupted the fit; nothing was fitted.
        """
        cluster = current_cluster()
        dtypes = _dtypes(X)
        X = self._checked(cluster, X, reset=True)
        dtypes = dtypes or [X.dtype] * X.shape[1]
        params = self.get_params(deep=False)
        if not isinstance(self.categories, str):  # refuse them before the rows are sent
            none = [np.empty(0, dtype) for dtype in dtypes]
            _Distinct(none, none, X.shape[0], {"categories": self.categories, "handle_unknown": "ignore"}).settled()
        with self._fitting(X):
            found = self._ask(cluster, "fit", "encoding.categories", X).results[0]
            values = [_cast(each, dtype) for each, dtype in zip(found["values"], dtypes, strict=True)]
            plain = _Distinct(values, found["counts"], X.shape[0], params).settled()
            for name in set(vars(plain)) - {*params, "n_features_in_", "distinct"}:
                setattr(self, name, getattr(plain, name))
        return self

    def transform(self, X: Any) -> Any:
        """Encode rows.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)

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
            For input that scikit-learn rejects, and for a `ShardedArray` with `sparse_output` or a `dtype` that the
            engines do not keep.
        HandleError
            If the rows of a `ShardedArray` are on another cluster, or were freed.
        """
        check_is_fitted(self)
        self._require_possible(X)
        places, n_columns = self._places(), int(sum(self._n_features_outs))
        dense = not self.sparse_output
        found = self._transformed(
            "transform", "encoding.encode", X, n_columns if dense else self.n_features_in_, nan=False,
            dtype=self.dtype if dense else np.int32, n_encoded=n_columns if dense else None, then=self._look,
            categories=[each.astype(np.float64) for each in self.categories_], places=places,
        )  # fmt: skip
        return found if dense else _as_csr(found, n_columns, self.dtype)

    def _checked(self, cluster: Any, X: Any, *, reset: bool, look_now: bool = False, **rules: Any) -> Any:
        if not reset:
            _dtypes(X)
        return super()._checked(cluster, X, reset=reset, look_now=look_now, **rules)

    def _require_possible(self, X: Any) -> None:
        """Raise ValueError if the result cannot have the form that was asked for."""
        name, dtype = type(self).__name__, np.dtype(self.dtype)
        frames = _get_output_config("transform", self)["dense"]
        if isinstance(X, ShardedArray) and X.stays:
            if self.sparse_output:
                raise ValueError(
                    f"{name} has sparse_output=True, and the rows of a ShardedArray stay on the engines as dense rows; "
                    f"type: {name}(sparse_output=False)"
                )
            if dtype not in (np.float32, np.float64):
                raise ValueError(
                    f"{name} has dtype={dtype}, and rows on the engines are float32 or float64; type: "
                    f"{name}(sparse_output=False, dtype=numpy.{X.dtype})"
                )
        elif dtype.kind not in "biuf":
            raise ValueError(f"{name} has dtype={dtype}; expected a dtype of real numbers, such as numpy.float64")
        elif self.sparse_output and frames != "default":
            raise ValueError(
                f"{frames.capitalize()} output does not support sparse data. Set sparse_output=False to output "
                f"{frames} dataframes or disable {frames.capitalize()} output via "
                '`ohe.set_output(transform="default").'
            )

    def _places(self) -> list[np.ndarray]:
        """For each column, the place of the new column of each category, and of unknown numbers; -1 for none."""
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

    def _look(self, answer: Answer) -> None:
        """Raise scikit-learn's error for unknown numbers, or warn of them."""
        unknown = answer.results[0]["unknown"]
        columns = [column for column, values in enumerate(unknown) if len(values)]
        if not columns:
            return
        if self.handle_unknown == "error":
            shown = _cast(unknown[columns[0]], self.categories_[columns[0]].dtype).tolist()
            raise ValueError(f"Found unknown categories {shown} in column {columns[0]} during transform")
        if self.handle_unknown == "warn" or self.drop is not None:
            encoded = "all zeros" if self.handle_unknown == "ignore" else "the infrequent category"
            warnings.warn(
                f"Found unknown categories in columns {columns} during transform. These unknown categories will be "
                f"encoded as {encoded}" + "." * (self.handle_unknown != "ignore"),
                UserWarning,
                stacklevel=6,
            )


class _Distinct(sklearn.preprocessing.OneHotEncoder):
    """scikit-learn's encoder, which gets the distinct numbers of each column and how often each occurs, and no rows."""

    def __init__(
        self, values: list[np.ndarray], counts: list[np.ndarray], n_samples: int, params: dict[str, Any]
    ) -> None:
        super().__init__(**params)
        self.distinct = values, counts, n_samples

    def settled(self) -> _Distinct:
        """Check the parameters against the distinct numbers, set the attributes that follow, and return this object."""
        values, _, _ = self.distinct
        self._fit(np.zeros((1, len(values))), handle_unknown=self.handle_unknown, ensure_all_finite="allow-nan")
        self._set_drop_idx()
        self._n_features_outs = self._compute_n_features_outs()
        return self

    def _check_X(self, X: Any, ensure_all_finite: Any = True) -> tuple[list[np.ndarray], int, int]:
        values, _, n_samples = self.distinct
        return values, n_samples, len(values)

    def _fit_infrequent_category_mapping(self, n_samples: int, category_counts: Any, missing_indices: Any) -> None:
        values, counts, _ = self.distinct
        often = list(map(_counted, self.categories_, values, counts))
        super()._fit_infrequent_category_mapping(n_samples, often, missing_indices)


def _counted(categories: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return how often each category occurs. Categories and distinct values are in ascending order, NaN last."""
    if not len(values):
        return np.zeros(len(categories), np.int64)
    at = np.minimum(np.searchsorted(values, categories), len(values) - 1)
    there = (values[at] == categories) | ((values[at] != values[at]) & (categories != categories))
    return np.where(there, counts[at], 0)


def _dtypes(X: Any) -> list[np.dtype[Any]]:
    """Return the dtypes of the columns of an array or data frame; an empty list for other rows.

    Raises
    ------
    ValueError
        If X has strings or other objects.
    """
    if isinstance(X, ShardedArray) or sparse.issparse(X):
        return []
    if hasattr(X, "iloc") and X.ndim == 2:
        each = (X.iloc[:, column] for column in range(X.shape[1]))
        found = [check_array(one, ensure_2d=False, dtype=None, ensure_all_finite=False).dtype for one in each]
    else:
        rows = X if hasattr(X, "dtype") and hasattr(X, "shape") else np.asarray(X)
        found = [np.dtype(rows.dtype)] * (rows.shape[1] if rows.ndim == 2 else 1)
    for column, dtype in enumerate(found):
        if dtype.kind not in "biufc":  # scikit-learn refuses complex numbers
            raise ValueError(
                f"column {column} has the dtype {dtype}, and the engines encode numbers; for strings and other objects "
                "use sklearn.preprocessing.OneHotEncoder"
            )
    return found


def _cast(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return numbers of the engines in the dtype of their column, if that has all of them.

    Raises
    ------
    ValueError
        If they are whole numbers that float64 does not have.
    """
    if dtype.kind in "iu" and len(values) and np.abs(values).max() >= _EXACT:
        raise ValueError(
            f"a column of {dtype} has the number {values[np.abs(values).argmax()]:.0f}, and the engines compare whole "
            "numbers below 2^53; for greater ones use sklearn.preprocessing.OneHotEncoder"
        )
    with np.errstate(over="ignore"):
        made = values.astype(dtype)
    return made if np.array_equal(made, values, equal_nan=True) else values


def _as_csr(places: np.ndarray, n_columns: int, dtype: Any) -> Any:
    """Return the matrix with a 1 at each place of each row, as scikit-learn makes it. Places of -1 are no places."""
    there = places >= 0
    starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    index = np.int32 if starts[-1] <= np.iinfo(np.int32).max else np.int64
    parts = np.ones(starts[-1], dtype), places[there].astype(index), starts.astype(index)
    return _align_api_if_sparse(sparse.csr_array(parts, shape=(len(places), n_columns)))
