"""Checks the columns that metrics get, and sends them to the engines, which compute the sums."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import sklearn.metrics
from sklearn.utils import check_consistent_length

from xpulab._sklearn import validate_parameter_constraints
from xpulab.calls import public_call
from xpulab.checks import ONE_AT_A_TIME, check_array, check_sample_weight, place_named, type_of_target
from xpulab.csr import require_dense
from xpulab.data import ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.estimator.call import Call, Functions
from xpulab.estimator.columns import ScannedColumn, beside
from xpulab.metrics._indicators import distinct_rows
from xpulab.scanning import Scan
from xpulab.tables import ShardedColumn

__all__ = [
    "Labels",
    "Values",
    "as_in_sklearn",
    "call_theirs",
    "checked_column",
    "checked_score_weights",
    "columns_of",
    "labels_of",
    "read_by_engines",
    "require_aligned",
    "sums",
]

#: What the rows of a metric may be: arrays, or rows that the engines have or read.
Values: TypeAlias = npt.ArrayLike | ShardedArray | Scan
P = ParamSpec("P")
R = TypeVar("R")

#: scikit-learn's functions, also if something puts others in their place later.
_THEIRS = {name: getattr(sklearn.metrics, name) for name in sklearn.metrics.__all__}


def as_in_sklearn(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function that checks its parameters as scikit-learn's of the same name, before it computes."""
    constraints = getattr(_THEIRS[function.__name__], "_skl_parameter_constraints", {})
    signature = inspect.signature(function)
    rules = {name: rule for name, rule in constraints.items() if name in signature.parameters}

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        params = {name: value for name, value in given.items() if name in rules}
        validate_parameter_constraints(rules, params, caller_name=function.__name__)
        return function(*args, **kwargs)

    return public_call(checked)


def call_theirs(name: str, *args: Any, **parameters: Any) -> Any:
    """Call a function of scikit-learn on what the engines have found, without the parameters that it does not have."""
    function = _THEIRS[name]
    known = inspect.signature(function).parameters
    with ONE_AT_A_TIME:
        return function(*args, **{key: value for key, value in parameters.items() if key in known})


@dataclass(frozen=True)
class Labels:
    """A column of labels.

    Attributes
    ----------
    column : numpy.ndarray of shape (n_samples, 1) or ShardedArray
        The labels as numbers, as the engines get them.
    decode : callable
        Returns the labels for numbers that the engines have found.
    strings : bool
        Whether the labels are strings.
    coded : bool
        Whether the numbers are the labels' places in this column: of strings, and of integers that float64 would round.
    several : bool
        Whether a row may have several labels; what is decoded then has a column for each label, and may be sparse.
    """

    column: Any
    decode: Callable[[npt.NDArray[Any]], Any]
    strings: bool
    coded: bool
    several: bool = False


def labels_of(y: Any, name: str = "y_true", discrete: bool = True, several: bool = False) -> Labels:
    """Check the labels of rows.

    Parameters
    ----------
    y : array-like or ShardedArray of shape (n_samples,)
    name : str
        Name of the argument, for messages.
    discrete : bool
        Whether labels that are not whole numbers are refused.
    several : bool
        Whether an array or a sparse matrix may have indicators of several labels of a row.

    Raises
    ------
    ValueError
        If there are several columns of a handle, NaN, or labels that are refused.
    """
    if isinstance(y, ShardedArray):
        if columns_of(y) != 1:
            raise ValueError(
                f"labels of shape {y.shape} were given; expected one column. Indicators of several labels of a row may "
                "be arrays: y.gather()"
            )
        strings = isinstance(y, ShardedColumn) and bool(y.categories)
        decode = y.labels if isinstance(y, ShardedColumn) else _whole
        if isinstance(y, ScannedColumn):
            decode = functools.partial(_as_scanned, y)
        return Labels(checked_column(y, name, strings), functools.partial(_exact, y, decode), strings, strings)
    with place_named(y):
        kind = type_of_target(y, input_name=name)
    if kind == "multilabel-indicator" and several:
        codes, rows = distinct_rows(y)
        return Labels(codes, lambda found: rows[found.astype(np.intp)], False, True, several=True)
    if kind not in ("binary", "multiclass") and (discrete or kind != "continuous"):
        raise ValueError(f"Classification metrics can't handle {kind} targets; expected one label for each row")
    array = np.asarray(y).reshape(-1)
    strings = array.dtype.kind in "OUS"
    if not strings and not _rounded(array):
        dtype = array.dtype
        numbers = check_array(array, ensure_2d=False, dtype=np.float64)
        return Labels(checked_column(numbers, name), lambda found: found.astype(dtype), False, False)
    known, codes = np.unique(array, return_inverse=True)
    return Labels(codes.astype(np.float64).reshape(-1, 1), lambda found: known[found.astype(np.intp)], strings, True)


def _rounded(labels: npt.NDArray[Any]) -> bool:
    """Return whether some of the labels are integers that float64 may round."""
    return labels.dtype.kind in "iu" and len(labels) > 0 and max(-int(labels.min()), int(labels.max())) > 2**53


def _exact(y: ShardedArray, decode: Callable[..., Any], found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    y.require_exact(found)
    return np.asarray(decode(found))


def _as_scanned(y: ScannedColumn, found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    labels = y.labels(found)
    return _whole(found) if labels is None else labels


def _whole(found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return integers in place of whole numbers: handles of arrays have no others than float32 and float64."""
    return found.astype(np.int64) if (np.abs(found) < 2.0**62).all() and (found == np.rint(found)).all() else found


def read_by_engines(*columns: Any) -> list[Any]:
    """Return columns that are compared with each other; the engines read those of numbers in files by themselves."""
    beside_these = next((each for each in columns if isinstance(each, ShardedArray)), None)
    return [
        beside(each, each if beside_these is None else beside_these, current_ranks(), each.dtype, name)
        if isinstance(each, Scan)
        else each
        for each, name in zip(columns, ("y_true", "y_pred"), strict=True)
    ]


def checked_column(y: Any, name: str, strings: bool = False) -> Any:
    """Check numbers, and return an array (n_samples, n_columns) of float32 or float64. A handle is returned as it is.

    With `strings`, a handle may have strings, whose numbers are what the engines compare.

    Raises
    ------
    ValueError, TypeError
        If y does not consist of finite numbers, as in scikit-learn.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if isinstance(y, ShardedArray):
        y.source(current_ranks())
        require_dense(y, name)
        y.require_finite(name)
        if not strings:
            y.require_numbers(name)
        return y
    with place_named(y):
        array = check_array(y, ensure_2d=False, dtype=[np.float64, np.float32], input_name=name)
    return array.reshape(len(array), -1)


def checked_score_weights(sample_weight: Any, y: Any) -> Any:
    """Check weights, and return float64 of shape (n_samples,), or what engines read; None if all weights are 1."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Scan):
        sample_weight = beside(sample_weight, y, current_ranks(), y.dtype, "sample_weight")
    if isinstance(sample_weight, ScannedColumn):
        return sample_weight
    with place_named(sample_weight):
        return check_sample_weight(sample_weight, np.empty((y.shape[0], 0)), dtype=np.float64)


def columns_of(y: Any) -> int:
    """Return the number of columns."""
    return 1 if len(y.shape) == 1 else int(y.shape[1])


def require_aligned(*columns: Any) -> None:
    """Raise ValueError if the numbers of rows differ, or, for handles, the numbers of rows per rank."""
    check_consistent_length(*(np.empty((column.shape[0], 0)) for column in columns))
    handles = [column for column in columns if isinstance(column, ShardedArray)]
    if any(handle.bounds != handles[0].bounds for handle in handles[1:]):
        raise ValueError(
            f"two handles have their rows on the engines as {handles[0].counts} and {handles[1].counts}; send one of "
            f"them with cluster.scatter(y, counts={list(handles[0].counts)})"
        )


def sums(
    function: str, task: str, rows: Any, targets: Any = None, weights: Any = None, **arguments: Any
) -> dict[str, Any]:
    """Run a task that computes sums over the rows of all ranks.

    Parameters
    ----------
    function : str
        Name of the metric, for the report (the cluster's `last_report`).
    task : str
        Name of the task.
    rows, targets : numpy.ndarray of shape (n_samples, n_columns) or ShardedArray
    weights : numpy.ndarray or ScannedColumn of shape (n_samples,), optional
    **arguments : Any
        Further arguments of the task.

    Returns
    -------
    dict of str to Any
        The result of rank 0.
    """
    if weights is not None:
        weights = weights.cast(rows.dtype) if isinstance(weights, ScannedColumn) else weights.astype(rows.dtype)
    with Call(Functions("metrics"), function, rows, current_ranks()) as call:
        return call.ask(task, y=targets, sample_weight=weights, **arguments).results[0]
