"""scikit-learn's checks of arrays, which one thread at a time makes.

Within a check, scikit-learn changes the filters of warnings, which all threads share, and afterwards puts back those
that it has found. If two threads did this at a time, one could leave its filters to the other.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import sklearn.utils
from sklearn.utils import multiclass, validation

__all__ = [
    "ONE_AT_A_TIME",
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

#: A context for other code of scikit-learn that changes the filters of warnings.
ONE_AT_A_TIME = threading.RLock()


def one_at_a_time(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that makes a call in the context `ONE_AT_A_TIME`."""

    @functools.wraps(call)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with ONE_AT_A_TIME:
            return call(*args, **kwargs)

    return alone


check_array = one_at_a_time(sklearn.utils.check_array)
check_X_y = one_at_a_time(sklearn.utils.check_X_y)
column_or_1d = one_at_a_time(sklearn.utils.column_or_1d)
validate_data = one_at_a_time(validation.validate_data)
check_y = one_at_a_time(validation._check_y)
check_sample_weight = one_at_a_time(validation._check_sample_weight)
check_classification_targets = one_at_a_time(multiclass.check_classification_targets)
type_of_target = one_at_a_time(multiclass.type_of_target)
