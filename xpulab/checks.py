"""scikit-learn's checks of arrays, which one thread at a time makes, and what to do about sparse rows.

Within a check, scikit-learn changes the filters of warnings, which all threads share, and afterwards puts back those
that it has found. If two threads did this at a time, one could leave its filters to the other.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import sklearn.utils
from scipy import sparse
from sklearn.utils import multiclass, validation

from xpulab.advice import left_of, of_interrupt
from xpulab.calls import called
from xpulab.exceptions import CallInterrupted
from xpulab.report.rendering import format_size

__all__ = [
    "ONE_AT_A_TIME",
    "TAKE_SPARSE",
    "check_X_y",
    "check_array",
    "check_classification_targets",
    "check_sample_weight",
    "check_y",
    "column_or_1d",
    "one_at_a_time",
    "type_of_target",
    "validate_data",
]

P = ParamSpec("P")
R = TypeVar("R")

#: Estimators that take sparse rows.
TAKE_SPARSE = ("BisectingKMeans", "KMeans", "MiniBatchKMeans")

#: A context for other code of scikit-learn that changes the filters of warnings.
ONE_AT_A_TIME = threading.RLock()


def one_at_a_time(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that makes a call in the context `ONE_AT_A_TIME`."""

    @functools.wraps(call)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with ONE_AT_A_TIME:
                return call(*args, **kwargs)
        except KeyboardInterrupt:
            if not (calls := called()):
                raise
            raise CallInterrupted(of_interrupt(calls[0], left_of(calls[0].rpartition(".")[2]))) from None
        except TypeError as error:
            rows = next((each for each in args if sparse.issparse(each)), None)
            if rows is None or "Sparse data was passed" not in str(error) or "passed for y" in str(error):
                raise
            raise TypeError(f"{str(error).partition('. Use')[0]}. {_instead_of_sparse(rows)}") from None

    return alone


def _instead_of_sparse(rows: Any) -> str:
    """Return what to do about sparse rows."""
    size = format_size(rows.shape[0] * rows.shape[1] * np.dtype(rows.dtype).itemsize)
    return (
        "If an encoder has made X, type OneHotEncoder(sparse_output=False), or ColumnTransformer(sparse_threshold=0). "
        f"{', '.join(TAKE_SPARSE[:-1])} and {TAKE_SPARSE[-1]} of xpulab.cluster take sparse rows, and so do most of "
        f"scikit-learn's classes. X.toarray() takes {size}."
    )


check_array = one_at_a_time(sklearn.utils.check_array)
check_X_y = one_at_a_time(sklearn.utils.check_X_y)
column_or_1d = one_at_a_time(sklearn.utils.column_or_1d)
validate_data = one_at_a_time(validation.validate_data)
check_y = one_at_a_time(validation._check_y)
check_sample_weight = one_at_a_time(validation._check_sample_weight)
check_classification_targets = one_at_a_time(multiclass.check_classification_targets)
type_of_target = one_at_a_time(multiclass.type_of_target)
