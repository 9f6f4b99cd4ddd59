"""scikit-learn's checks of arrays, which one thread at a time makes, and what xpulab adds to their errors.

Within a check, scikit-learn changes the filters of warnings, which all threads share, and afterwards puts back those
that it has found. If two threads did this at a time, one could leave its filters to the other.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import numpy as np
import sklearn.utils
from scipy import sparse
from sklearn.utils import multiclass, validation

from xpulab.report.rendering import format_size

__all__ = [
    "ONE_AT_A_TIME",
    "TAKE_SPARSE",
    "array_of",
    "check_X_y",
    "check_array",
    "check_classification_targets",
    "check_sample_weight",
    "check_y",
    "column_or_1d",
    "instead_of_sparse",
    "one_at_a_time",
    "place_named",
    "require_exact",
    "type_of_target",
    "validate_data",
]

P = ParamSpec("P")
R = TypeVar("R")

#: Estimators that take sparse rows.
TAKE_SPARSE = (
    "BernoulliNB",
    "BisectingKMeans",
    "ComplementNB",
    "GammaRegressor",
    "HuberRegressor",
    "KMeans",
    "KNeighborsClassifier",
    "KNeighborsRegressor",
    "LinearSVC",
    "LinearSVR",
    "LogisticRegression",
    "LogisticRegressionCV",
    "MaxAbsScaler",
    "MiniBatchKMeans",
    "MultinomialNB",
    "NearestNeighbors",
    "PoissonRegressor",
    "QuantileRegressor",
    "Ridge",
    "RidgeClassifier",
    "SGDClassifier",
    "SGDRegressor",
    "StandardScaler(with_mean=False)",
    "TfidfTransformer",
    "TruncatedSVD",
    "TweedieRegressor",
)

#: A context for other code of scikit-learn that changes the filters of warnings.
ONE_AT_A_TIME = threading.RLock()


def one_at_a_time(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that makes a call in the context `ONE_AT_A_TIME`."""

    @functools.wraps(call)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with ONE_AT_A_TIME:
                return call(*map(array_of, args), **kwargs)
        except TypeError as error:
            rows = next((each for each in args if sparse.issparse(each)), None)
            if rows is None or "Sparse data was passed" not in str(error) or "passed for y" in str(error):
                raise
            raise TypeError(f"{str(error).partition('. Use')[0]}. {instead_of_sparse(rows)}") from None

    return alone


def array_of(given: Any) -> Any:
    """Return the array of an object that has only `__array__`, which may take no dtype; other things as they are."""
    return np.asarray(given) if hasattr(given, "__array__") and not hasattr(given, "shape") else given


def instead_of_sparse(rows: Any) -> str:
    """Return what to do about sparse rows, in this process or on the engines."""
    size = format_size(rows.shape[0] * rows.shape[1] * np.dtype(rows.dtype).itemsize)
    take = f"{', '.join(TAKE_SPARSE[:-1])} and {TAKE_SPARSE[-1]} of xpulab take sparse rows"
    if not sparse.issparse(rows):
        return f"{take}. cluster.scatter(X.gather().toarray()) takes {size}."
    return (
        "If an encoder has made X, type OneHotEncoder(sparse_output=False), or ColumnTransformer(sparse_threshold=0). "
        f"{take}, and so do most of scikit-learn's classes. X.toarray() takes {size}."
    )


check_array = one_at_a_time(sklearn.utils.check_array)
check_X_y = one_at_a_time(sklearn.utils.check_X_y)
column_or_1d = one_at_a_time(sklearn.utils.column_or_1d)
validate_data = one_at_a_time(validation.validate_data)
check_y = one_at_a_time(validation._check_y)
check_sample_weight = one_at_a_time(validation._check_sample_weight)
check_classification_targets = one_at_a_time(multiclass.check_classification_targets)
type_of_target = one_at_a_time(multiclass.type_of_target)


@contextlib.contextmanager
def place_named(X: object) -> Iterator[None]:
    """Add to scikit-learn's error about X where the first NaN or infinity is, or which columns hold no numbers."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if re.search("contains (NaN|infinity)", str(error)):
            where = _first_not_finite(X)
        else:
            where = _columns_without_numbers(X)
        if where is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error}\n{where}") from None


def require_exact(labels: Any) -> None:
    """Raise an error if float64 rounds one of a column's whole numbers, which may be labels of classes.

    Raises
    ------
    ValueError
        If a number is beyond 2**53, and not one of float64's.
    """
    values = np.asarray(labels)
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return
    rounded = np.flatnonzero(values.astype(np.longdouble) != values.astype(np.float64))
    if len(rounded):
        raise ValueError(
            f"the number {values[rounded[0]]} in row {rounded[0]} would become another one: rows on the engines have "
            f"float64, which is exact up to 2**53. For labels, send their numbers: classes, y = "
            f"numpy.unique(y, return_inverse=True); for targets to which rounding does nothing, y.astype(float)"
        )


def _columns_without_numbers(X: Any) -> str | None:
    """Return a sentence about the columns of a data frame that hold no numbers; None if there are none."""
    if not hasattr(X, "columns") or getattr(X, "ndim", 2) != 2:
        return None
    names = []
    for name in X.columns:
        column = np.asarray(X[name])
        try:
            if column.dtype.kind not in "mM":  # NumPy converts columns of times only if there are no others
                column.astype(np.float64)
                continue
        except (TypeError, ValueError):
            pass
        begins = f" (which begins with {column[0]!r})" if len(column) else ""
        names.append(f"{name!r}{begins}")
    if not names:
        return None
    which = f"column{'s' * (len(names) > 1)} {', '.join(names)}"
    return (
        f"No numbers: {which}. Leave out such columns, or encode them first, for example with "
        "sklearn.preprocessing.OneHotEncoder in a ColumnTransformer."
    )


def _first_not_finite(X: object) -> str | None:
    """Return a sentence about the place of the first NaN or infinity in X; None if X has neither, or no numbers."""
    place = _place_not_finite(X)
    if place is None:
        return None
    row, column = place
    # pandas has labels of rows, others have none
    label = f" (index {X.index[row]!r})" if hasattr(X, "iloc") and hasattr(X, "index") else ""
    if column is None:
        where = f"row {row}{label}"
    else:
        named = getattr(X, "columns", None)
        where = f"row {row}{label}, column {column if named is None else named[column]!r}"
    return f"The first such value is in {where}."


def _place_not_finite(X: object) -> tuple[int, int | None] | None:
    """Return row and column of the first NaN or infinity, row by row; None if X has neither, or no numbers."""
    try:
        stored = X.tocsr() if hasattr(X, "tocsr") else None
        values = np.asarray(X if stored is None else stored.data)
        values = values if values.dtype.kind == "f" else values.astype(np.float64)
    except (TypeError, ValueError):
        return None
    by_row = values.reshape(len(values), -1)
    found = np.flatnonzero(~np.isfinite(by_row).all(axis=1))
    if not len(found):
        return None
    first = int(found[0])
    if stored is not None:
        return int(np.searchsorted(stored.indptr, first, side="right") - 1), int(stored.indices[first])
    column = int(np.flatnonzero(~np.isfinite(by_row[first]))[0])
    return first, column if values.ndim == 2 else None
