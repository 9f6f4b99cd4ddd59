"""Checks the rows, targets and weights that an estimator gets."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils.validation import check_consistent_length

from xpulab.checks import check_array, check_sample_weight, check_y, column_or_1d, place_named, validate_data
from xpulab.csr import as_sent, require_dense
from xpulab.data import ShardedArray, looked_at_later
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.estimator.columns import ScannedColumn, beside
from xpulab.scanning import Scan, by_blocks, require_table, scanned

__all__ = [
    "FLOATS",
    "checked_rows",
    "checked_targets",
    "checked_unnamed",
    "checked_weights",
    "gathered_targets",
    "given_dtype",
    "in_float64",
    "in_floats",
    "require_column_of_weights",
    "require_weight",
    "stays",
]

#: The dtypes in which engines compute; numbers of others become float64.
FLOATS = [np.float64, np.float32]


def checked_rows(
    estimator: BaseEstimator,
    cluster: Ranks,
    X: Any,
    *,
    reset: bool,
    look_now: bool = False,
    categories: bool = False,
    narrow: bool = False,
    **rules: Any,
) -> Any:
    """Check X as scikit-learn does, before anything is sent, and return it in a form that can be sent.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
        With `reset`, it gets ``n_features_in_`` and ``feature_names_in_``. Otherwise X is compared with these.
    cluster : Ranks
    X : array-like, CSR matrix, ShardedArray or Scan of shape (n_samples, n_features)
    reset : bool
        Whether this is a fit.
    look_now : bool
        Whether to look for NaN and infinity at once, and not later while the rows are copied.
    categories : bool
        Whether columns of handles may have strings.
    narrow : bool
        Whether numbers that float32 holds, such as those of float16, become float32 and not float64.
    **rules : Any
        Arguments of `sklearn.utils.validation.validate_data`, where they differ from those for dense, finite rows. With
        ``dtype="numeric"``, arrays of strings are refused, also if these look like numbers.

    Returns
    -------
    numpy.ndarray, scipy.sparse.csr_matrix, ShardedArray or Scan
        A `ShardedArray` and a `Scan` are returned as they are.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn raises them.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    X = by_blocks(X)
    if isinstance(X, ShardedArray):
        X.source(cluster)
        if not rules.get("accept_sparse"):
            require_dense(X)
    if isinstance(X, ShardedArray | Scan):
        if not categories or isinstance(X, Scan):
            X.require_numbers()
        _check_shape(estimator, X, reset, rules)
        return X
    if scanned(X) is not None:
        # The engines read the file, and look for NaN, so this process must not read the rows. validate_data then only
        # checks the shape and the names.
        validate_data(
            estimator, X, **{**rules, "accept_sparse": False, "dtype": FLOATS, "ensure_all_finite": False}, reset=reset
        )
        return X
    require_table(X)
    finite = rules.get("ensure_all_finite", True) if look_now or not looked_at_later(X) else False
    rules = {"dtype": FLOATS, **rules, "ensure_all_finite": finite}
    with place_named(X):
        X = validate_data(estimator, X, **rules, reset=reset)
    if X.dtype not in FLOATS:
        X = in_floats(X, narrow)
    return as_sent(X) if sparse.issparse(X) else X


def in_floats(X: Any, narrow: bool = False) -> Any:
    """Return checked numbers in float64, unless they are float32, or, with `narrow`, numbers that float32 holds."""
    if X.dtype in FLOATS:
        return X
    return X.astype(np.float32 if narrow and np.result_type(X.dtype, np.float32) == np.float32 else np.float64)


def given_dtype(X: Any) -> np.dtype[Any] | None:
    """Return the dtype of dense rows before any check; None if they have several types."""
    if sparse.issparse(X):
        return None
    if isinstance(X, ShardedArray | Scan | np.ndarray):
        return X.dtype
    scan = scanned(X)
    if scan is not None:
        return scan.dtype
    if hasattr(X, "dtypes"):
        every = list(X.dtypes)
        return np.result_type(*every) if every and all(isinstance(each, np.dtype) for each in every) else None
    found = X.dtype if hasattr(X, "dtype") else np.asarray(X).dtype
    return found if isinstance(found, np.dtype) else None


def in_float64(X: Any, cluster: Ranks) -> Any:
    """Return checked rows in float64, or as they are if not all devices have float64."""
    if X.dtype == np.float64 or not all(fact.device.float64 for fact in cluster.facts):
        return X
    if isinstance(X, ShardedArray):
        return X.cast(np.float64)
    scan = scanned(X)
    return X.astype(np.float64) if scan is None else scan.cast(np.float64)


def checked_unnamed(
    estimator: BaseEstimator, cluster: Ranks, X: Any, n_columns: int, narrow: bool = False, **rules: Any
) -> Any:
    """Check X as `checked_rows` does, but for `n_columns` columns of any names, as transformed rows may have."""
    if isinstance(X, ShardedArray):
        X.source(cluster)
        if not rules.get("accept_sparse"):
            require_dense(X)
        X.require_numbers()
        if rules.get("ensure_all_finite", True) != "allow-nan":
            X.require_finite()
    elif isinstance(X, Scan):
        X.require_numbers()
    elif scanned(X) is None:
        with place_named(X):
            X = check_array(X, **{"dtype": FLOATS, **rules}, estimator=estimator, input_name="X")
            X = in_floats(X, narrow)
    if X.ndim != 2 or X.shape[1] != n_columns:
        raise ValueError(
            f"X has {X.shape[1] if X.ndim == 2 else 1} features, but {type(estimator).__name__} is expecting "
            f"{n_columns} features as input."
        )
    return X


def _check_shape(estimator: BaseEstimator, X: ShardedArray | Scan, reset: bool, rules: Mapping[str, Any]) -> None:
    """Check the shape and the column names of a handle or scan as scikit-learn checks those of an array."""
    if X.ndim != 2:
        one = "pass X[['name']]" if isinstance(X, Scan) else "send the rows as cluster.scatter(X.reshape(-1, 1))"
        raise ValueError(
            f"Expected 2D array, got a {type(X).__name__} of shape {X.shape} instead; {one} if it has a single feature"
        )
    if X.shape[0] < (least := rules.get("ensure_min_samples", 1)):
        raise ValueError(
            f"Found array with {X.shape[0]} sample(s) (shape={X.shape}) while a minimum of {least} is required by "
            f"{type(estimator).__name__}."
        )
    if isinstance(X, ShardedArray) and rules.get("ensure_all_finite", True) is True:
        X.require_finite()
    names = None if X.columns is None else [name for name in X.columns if isinstance(name, str)]
    named = names is not None and len(names) == X.shape[1]
    if reset:
        estimator.n_features_in_ = X.shape[1]
        if named:
            estimator.feature_names_in_ = np.asarray(names, dtype=object)
        elif hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
        return
    if X.shape[1] != getattr(estimator, "n_features_in_", X.shape[1]):  # an estimator may need no fit
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input."
        )
    fitted = getattr(estimator, "feature_names_in_", None)
    if named and fitted is not None and list(fitted) != names:
        raise ValueError(
            "The feature names should match those that were passed during fit.\n"
            f"The {'scan' if isinstance(X, Scan) else 'handle'} has {names[:5]}, expected {list(fitted[:5])} and so on."  # type: ignore[index]
        )


def checked_weights(sample_weight: Any, n_samples: int, dtype: npt.DTypeLike, *, only_non_negative: bool = True) -> Any:
    """Return sample weights of shape (n_samples,) in a dtype; None if all weights are 1.

    A handle (with which the ranks pass the weights of their own rows) is returned as it is after the same checks.

    Raises
    ------
    ValueError
        If the length is wrong, if a weight is NaN or infinite, if all weights are zero, or, with `only_non_negative`,
        if a weight is negative.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Scan):
        sample_weight = beside(sample_weight, np.broadcast_to(0, n_samples), current_ranks(), dtype, "sample_weight")
    if isinstance(sample_weight, ShardedArray):
        sample_weight.check_weights(dtype, only_non_negative)
        return sample_weight
    with place_named(sample_weight):
        weights = check_sample_weight(sample_weight, np.empty((n_samples, 0)), dtype=dtype)
    if only_non_negative and weights.min() < 0:
        place = int(np.argmax(weights < 0))
        raise ValueError(f"Negative values in data passed to sample_weight: {weights[place]} for row {place}.")
    if not weights.any():
        raise ValueError("sample_weight is zero for all rows; expected at least one positive weight.")
    return weights


def require_column_of_weights(sample_weight: Any, metric: str) -> None:
    """Raise ValueError if the weights of a score are one number, which a fit takes for the weight of each row."""
    if isinstance(sample_weight, numbers.Number | str):
        raise ValueError(
            f"The 'sample_weight' parameter of {metric} must be an array-like or None. Got {sample_weight!r} instead."
        )


def require_weight(total: Any) -> None:
    """Raise ZeroDivisionError if the sum of the weights of a score is zero, as in `numpy.average`."""
    if not np.any(total):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")


def checked_targets(
    estimator: BaseEstimator, cluster: Ranks, y: Any, X: Any, *, multi_output: bool = True, labels: bool = False
) -> Any:
    """Check the targets y, and return them in the dtype of X.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    cluster : Ranks
    y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
    X : array or ShardedArray
        As `checked_rows` returned it.
    multi_output : bool
        Whether y may have two dimensions.
    labels : bool
        Whether y may have strings.

    Returns
    -------
    numpy.ndarray or ShardedArray
        A `ShardedArray` stays one, in X's dtype, or as it is if it has labels, which float32 rounds beyond 2**24.

    Raises
    ------
    ValueError
        If y is missing, has another length than X, or has NaN or infinity; if y is a `ShardedArray` with other numbers
        of rows per rank than X.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    y = beside(y, X, cluster, X.dtype)
    if isinstance(y, ShardedArray):
        require_dense(y, "y")
        y.source(cluster)
        y.require_finite("y")
        if not labels:
            y.require_numbers("y")
        if y.shape[0] != X.shape[0]:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: [{X.shape[0]}, {y.shape[0]}]"
            )
        if isinstance(X, ShardedArray) and X.bounds != y.bounds:
            raise ValueError(
                f"X has its rows on the engines as {X.counts}, and y as {y.counts}; send y with "
                "cluster.scatter(y, counts=list(X.counts))"
            )
        if y.ndim == 2 and not multi_output:
            raise ValueError(f"y should be a 1d array, got a ShardedArray of shape {y.shape} instead.")
        return y if labels else y.cast(X.dtype)
    with place_named(y):
        column = y if multi_output else column_or_1d(y, warn=True)
        y = check_array(column, ensure_2d=False, dtype=X.dtype, input_name="y", estimator=estimator)
    check_consistent_length(np.empty((X.shape[0], 0)), y)
    return y


def stays(y: Any, X: Any) -> bool:
    """Return whether the engines have y, a handle or a column that they read, each number beside its row of X."""
    if isinstance(y, ScannedColumn):
        return True
    handles = isinstance(y, ShardedArray) and y.stays and isinstance(X, ShardedArray)
    return handles and bool(y.bounds == X.bounds)


def gathered_targets(estimator: BaseEstimator, cluster: Ranks, X: Any, y: Any) -> npt.NDArray[Any]:
    """Return the targets (n_samples,) or (n_samples, n_outputs) in this process, as scikit-learn checks them."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    if isinstance(y, Scan):
        y = y.read()
    if isinstance(y, ShardedArray):
        y.source(cluster)
        gathered = y.gather()
        if is_classifier(estimator) and y.ndim == 1:
            y.require_exact(gathered)
            y = y.labels(gathered)
        else:
            y.require_numbers("y")
            y = gathered
    with place_named(y):
        y = check_y(y, multi_output=True, estimator=estimator)
    check_consistent_length(np.empty((X.shape[0], 0)), y)
    found: npt.NDArray[Any] = y
    return found
