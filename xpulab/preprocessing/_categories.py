"""What encoders share: categories of columns, which the engines find, and strings, for which numbers stand there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from xpulab.checks import check_array
from xpulab.data import ShardedArray
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.proxy import TransformerProxy
from xpulab.scanning import Scan
from xpulab.sharing.answers import Categories, Encoded
from xpulab.sources.coded import known_codes, labels_of
from xpulab.sources.source import Column
from xpulab.tables import coded, columns_of_rows

__all__ = ["CategoriesProxy", "FromDistinct"]

_EXACT = 2**53  # from here on, float64 does not have all whole numbers


class CategoriesProxy(TransformerProxy):
    """Base of encoders of each column by its categories."""

    n_features_in_: int
    categories_: list[npt.NDArray[Any]]
    _rules: ClassVar[Mapping[str, Any]] = {"ensure_all_finite": "allow-nan"}

    def _fit_categories(self, cluster: Ranks, X: Any, settled: Callable[..., Any]) -> None:
        """Set the attributes that follow from the distinct values of each column, and from how often each occurs.

        `settled` returns scikit-learn's encoder of these.
        """
        X = coded(X, cluster)
        dtypes = _dtypes(X, type(self).__name__)
        rows: Any = self._checked(cluster, X, reset=True)
        about = columns_of_rows(rows, rows.shape[1])
        dtypes = dtypes or [rows.dtype] * rows.shape[1]
        params = self.get_params(deep=False)
        if not isinstance(self.categories, str):  # refuse them before the rows are sent
            none = [
                np.empty(0, object if each.categories is not None else dtype)
                for each, dtype in zip(about, dtypes, strict=True)
            ]
            ignored = "use_encoded_value" if "unknown_value" in params else "ignore"
            taken = {"handle_unknown": ignored, "unknown_value": -1}
            unknown = {name: value for name, value in taken.items() if name in params}
            settled(none, none, rows.shape[0], {"categories": self.categories, **unknown})
        with self._fitting(rows):
            found: Categories = self._ask(cluster, "fit", "encoding.categories", rows).results[0]
            values = [
                labels_of(column, each) if column.categories is not None else _cast(each, dtype, type(self).__name__)
                for column, each, dtype in zip(about, found["values"], dtypes, strict=True)
            ]
            plain = settled(values, found["counts"], rows.shape[0], params)
            for name in set(vars(plain)) - {*params, "n_features_in_", "distinct"}:
                setattr(self, name, getattr(plain, name))

    def _encoded(self, X: Any, places: list[npt.NDArray[Any]], n_columns: int, **arguments: Any) -> Any:
        """Have the engines replace each value by the entry of `places` for its category, or for an unknown one."""
        X, categories, places = self._prepared(X, places)
        return self._transformed(
            "transform", "encoding.encode", X, n_columns, nan=False, categories=categories, places=places,
            finish=functools.partial(self._look, X), **arguments,
        )  # fmt: skip

    def _prepared(self, X: Any, places: list[npt.NDArray[Any]]) -> tuple[Any, list[Any], list[npt.NDArray[Any]]]:
        """Return rows without strings, the numbers of the categories in them, and the entries of `places` for these."""
        X = coded(X, self._cluster())
        about = columns_of_rows(X, len(places))
        if len(about) != len(places):  # the check of X raises scikit-learn's error
            about = [Column(None, "", None)] * len(places)
        known = [known_codes(*each) for each in zip(about, self.categories_, places, strict=True)]
        return X, [each for each, _ in known], [each for _, each in known]

    def _checked(self, cluster: Ranks, X: Any, *, reset: bool, look_now: bool = False, **rules: object) -> Any:
        if not reset:
            _dtypes(X, type(self).__name__)
        return super()._checked(cluster, X, reset=reset, look_now=look_now, categories=True, **rules)

    def _look(self, X: Any, answer: Answer) -> None:
        """Raise scikit-learn's error for unknown values, or warn of them."""
        found: Encoded = answer.results[0]
        columns = [column for column, values in enumerate(found["unknown"]) if len(values)]
        if not columns:
            return
        column = columns[0]
        values, about = found["unknown"][column], columns_of_rows(X, len(self.categories_))[column]
        if about.categories is None:
            values = _cast(values, self.categories_[column].dtype, type(self).__name__)
        self._tell_unknown(columns, labels_of(about, values).tolist())

    def _tell_unknown(self, columns: list[int], shown: list[Any]) -> None:
        """Raise or warn: columns that have unknown values, and those of the first."""
        if self.get_params(deep=False)["handle_unknown"] == "error":
            raise ValueError(f"Found unknown categories {shown} in column {columns[0]} during transform")


class FromDistinct:
    """Makes an encoder of scikit-learn take the distinct values of each column and their counts in place of rows."""

    distinct: tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]], int]

    def _check_X(self, X: object, ensure_all_finite: object = True) -> tuple[list[npt.NDArray[Any]], int, int]:
        values, _, n_samples = self.distinct
        return values, n_samples, len(values)

    def _fit_infrequent_category_mapping(
        self, n_samples: int, category_counts: object, missing_indices: object
    ) -> None:
        values, counts, _ = self.distinct
        often = list(map(_counted, self.categories_, values, counts))  # type: ignore[attr-defined]
        super()._fit_infrequent_category_mapping(n_samples, often, missing_indices)  # type: ignore[misc]


def _counted(categories: npt.NDArray[Any], values: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return how often each category occurs."""
    often = {"NaN" if value != value else value: n for value, n in zip(values.tolist(), counts, strict=True)}
    return np.array([often.get("NaN" if each != each else each, 0) for each in categories.tolist()], np.int64)


def _dtypes(X: Any, encoder: str) -> list[np.dtype[Any]]:
    """Return the dtypes of the columns of an array, data frame, scan or table; an empty list for other rows.

    Raises
    ------
    ValueError
        If X has strings or other objects.
    """
    if isinstance(X, ShardedArray) or sparse.issparse(X):
        if isinstance(X, ShardedArray) and X.ndim == 2:
            return [each.numeric or X.dtype for each in columns_of_rows(X, X.shape[1])]
        return []
    if isinstance(X, Scan):
        found = X.numeric_dtypes
    elif hasattr(X, "iloc") and X.ndim == 2:
        each = (X.iloc[:, column] for column in range(X.shape[1]))
        found = [check_array(one, ensure_2d=False, dtype=None, ensure_all_finite=False).dtype for one in each]
    else:
        rows = X if hasattr(X, "dtype") and hasattr(X, "shape") else np.asarray(X)
        found = [np.dtype(rows.dtype)] * (rows.shape[1] if rows.ndim == 2 else 1)
    for column, dtype in enumerate(found):
        if dtype.kind not in "biufc":  # scikit-learn refuses complex numbers
            raise ValueError(
                f"column {column} has the dtype {dtype}, and the engines encode numbers, and strings of tables with "
                f"named columns; for other objects use sklearn.preprocessing.{encoder}"
            )
    return found


def _cast(values: npt.NDArray[Any], dtype: np.dtype[Any], encoder: str) -> npt.NDArray[Any]:
    """Return numbers of the engines in the dtype of their column, if that has all of them.

    Raises
    ------
    ValueError
        If they are whole numbers that float64 does not have.
    """
    if dtype.kind in "iu" and len(values) and np.abs(values).max() >= _EXACT:
        raise ValueError(
            f"a column of {dtype} has the number {values[np.abs(values).argmax()]:.0f}, and the engines compare whole "
            f"numbers below 2^53; for greater ones use sklearn.preprocessing.{encoder}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
    return made if np.array_equal(made, values, equal_nan=True) else values
