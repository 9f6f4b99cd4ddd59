"""Checks the rows, targets and weights that an estimator gets, and sends them to the engines as often as needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_consistent_length

from xpulab.checks import check_array, check_sample_weight, check_y, column_or_1d, validate_data
from xpulab.data import (
    Outgoing,
    ShardedArray,
    bounds_by_stored,
    bounds_of,
    looked_at_later,
    mapped,
    place_named,
    result_of_engines,
)
from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.tasks.limits import Demand
from xpulab.estimator.call import Call
from xpulab.exceptions import NotEnoughMemoryError
from xpulab.sharing.memory import SharedBlock

__all__ = [
    "FLOATS",
    "Held",
    "Packing",
    "checked_rows",
    "checked_targets",
    "checked_unnamed",
    "checked_weights",
    "gathered_targets",
    "in_floats",
    "rows_at_once",
]

#: The dtypes in which engines compute; numbers of others become float64.
FLOATS = [np.float64, np.float32]


def checked_rows(
    estimator: Any, cluster: XPUCluster, X: Any, *, reset: bool, look_now: bool = False, **rules: Any
) -> Any:
    """Check X as scikit-learn does, before anything is sent, and return it in a form that can be sent.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
        With `reset`, it gets ``n_features_in_`` and ``feature_names_in_``. Otherwise X is compared with these.
    cluster : XPUCluster
    X : array-like, CSR matrix or ShardedArray of shape (n_samples, n_features)
    reset : bool
        Whether this is a fit.
    look_now : bool
        Whether to look for NaN and infinity at once, and not later while the rows are copied.
    **rules : Any
        Arguments of `sklearn.utils.validation.validate_data`, where they differ from those for dense, finite rows. With
        ``dtype="numeric"``, arrays of strings are refused, also if these look like numbers.

    Returns
    -------
    numpy.ndarray, scipy.sparse.csr_matrix or ShardedArray
        A `ShardedArray` is returned as it is.

    Raises
    ------
    ValueError, TypeError
        As scikit-learn raises them.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if isinstance(X, ShardedArray):
        X.source(cluster)
        _check_handle(estimator, X, reset, rules)
        return X
    if mapped(X) is not None:
        # The engines read the file, and look for NaN, so this process must not read the rows. validate_data then only
        # checks the shape and the names.
        validate_data(
            estimator, X, **{**rules, "accept_sparse": False, "dtype": FLOATS, "ensure_all_finite": False}, reset=reset
        )
        return X
    finite = rules.get("ensure_all_finite", True) if look_now or not looked_at_later(X) else False
    rules = {"dtype": FLOATS, "accept_large_sparse": False, **rules, "ensure_all_finite": finite}
    with place_named(X):
        X = in_floats(validate_data(estimator, X, **rules, reset=reset))
    if sparse.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def in_floats(X: Any) -> Any:
    """Return checked numbers in float64, unless they are float32."""
    return X if X.dtype in FLOATS else X.astype(np.float64)


def checked_unnamed(estimator: Any, cluster: XPUCluster, X: Any, n_columns: int, **rules: Any) -> Any:
    """Check X as `checked_rows` does, but for `n_columns` columns of any names, as transformed rows may have."""
    if isinstance(X, ShardedArray):
        X.source(cluster)
        if rules.get("ensure_all_finite", True) != "allow-nan":
            X.require_finite()
    elif mapped(X) is None:
        with place_named(X):
            X = in_floats(check_array(X, **{"dtype": FLOATS, **rules}, estimator=estimator, input_name="X"))
    if X.ndim != 2 or X.shape[1] != n_columns:
        raise ValueError(
            f"X has {X.shape[1] if X.ndim == 2 else 1} features, but {type(estimator).__name__} is expecting "
            f"{n_columns} features as input."
        )
    return X


def _check_handle(estimator: Any, X: ShardedArray, reset: bool, rules: Mapping[str, Any]) -> None:
    """Check the shape and the column names of a handle as scikit-learn checks those of an array."""
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got a ShardedArray of shape {X.shape} instead; send the rows as "
            "cluster.scatter(X.reshape(-1, 1)) if it has a single feature"
        )
    if X.shape[0] < (least := rules.get("ensure_min_samples", 1)):
        raise ValueError(
            f"Found array with {X.shape[0]} sample(s) (shape={X.shape}) while a minimum of {least} is required by "
            f"{type(estimator).__name__}."
        )
    if rules.get("ensure_all_finite", True) != "allow-nan":
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
    if X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
            "features as input."
        )
    fitted = getattr(estimator, "feature_names_in_", None)
    if named and fitted is not None and list(fitted) != names:
        raise ValueError(
            "The feature names should match those that were passed during fit.\n"
            f"The handle has {names[:5]}, expected {list(fitted[:5])} and so on."  # type: ignore[index]
        )


def checked_weights(sample_weight: Any, X: Any, *, only_non_negative: bool = True, dtype: Any = None) -> Any:
    """Return sample weights of shape (n_samples,) in a dtype, by default that of X; None if all weights are 1.

    A handle (with which the ranks pass the weights of their own rows) is returned as it is after the same checks.

    Raises
    ------
    ValueError
        If the length is wrong, if a weight is NaN or infinite, if all weights are zero, or, with `only_non_negative`,
        if a weight is negative.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, ShardedArray):
        sample_weight.check_weights(X, only_non_negative)
        return sample_weight
    like = np.empty((X.shape[0], 0), X.dtype)
    with place_named(sample_weight):
        weights = check_sample_weight(sample_weight, like, dtype=dtype or X.dtype)
    if only_non_negative and weights.min() < 0:
        place = int(np.argmax(weights < 0))
        raise ValueError(f"Negative values in data passed to sample_weight: {weights[place]} for row {place}.")
    if not weights.any():
        raise ValueError("sample_weight is zero for all rows; expected at least one positive weight.")
    return weights


def checked_targets(estimator: Any, cluster: XPUCluster, y: Any, X: Any, *, multi_output: bool = True) -> Any:
    """Check the targets y, and return them in the dtype of X.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    cluster : XPUCluster
    y : array-like or ShardedArray of shape (n_samples,) or (n_samples, n_targets)
    X : array or ShardedArray
        As `checked_rows` returned it.
    multi_output : bool
        Whether y may have two dimensions.

    Returns
    -------
    numpy.ndarray or ShardedArray
        A `ShardedArray` is returned as it is.

    Raises
    ------
    ValueError
        If y is missing, has another length than X, or has NaN or infinity; if y is a `ShardedArray` with another dtype
        than X, or with other numbers of rows per rank.
    HandleError
        If the rows of a `ShardedArray` are on another cluster, or were freed.
    """
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    if isinstance(y, ShardedArray):
        y = y.cast(X.dtype)
        y.source(cluster)
        y.require_finite("y")
        if y.shape[0] != X.shape[0]:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: [{X.shape[0]}, {y.shape[0]}]"
            )
        if isinstance(X, ShardedArray) and X.bounds != y.bounds:
            raise ValueError(
                f"X has its rows on the engines as {X.counts}, and y as {y.counts}; send y with "
                "cluster.scatter(y, counts=list(X.counts))"
            )
        if y.dtype != X.dtype:
            raise ValueError(
                f"X is {X.dtype} and y {y.dtype}; send both in one dtype: cluster.scatter(y.astype({X.dtype}))"
            )
        if y.ndim == 2 and not multi_output:
            raise ValueError(f"y should be a 1d array, got a ShardedArray of shape {y.shape} instead.")
        return y
    with place_named(y):
        column = y if multi_output else column_or_1d(y, warn=True)
        y = check_array(column, ensure_2d=False, dtype=X.dtype, input_name="y", estimator=estimator)
    check_consistent_length(np.empty((X.shape[0], 0)), y)
    return y


def gathered_targets(estimator: Any, cluster: XPUCluster, X: Any, y: Any) -> np.ndarray:
    """Return the targets (n_samples,) or (n_samples, n_outputs) in this process, as scikit-learn checks them."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    if isinstance(y, ShardedArray):
        y.source(cluster)
        y = y.gather()
    with place_named(y):
        y = check_y(y, multi_output=True, estimator=estimator)
    check_consistent_length(np.empty((X.shape[0], 0)), y)
    return y


class Held:
    """An array that several calls use. It is checked once and sent once.

    The engines keep the array until Python deletes this object.

    Parameters
    ----------
    given : array-like
        The array as the user passed it.

    Attributes
    ----------
    checked : Any
        The array as `checked_rows` returned it; None before the check.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.checked: Any = None
        self._handle: ShardedArray | None = None

    def hold(self, cluster: XPUCluster, X: Any, bounds: list[int], blocks: list[SharedBlock]) -> dict[str, Any]:
        """Make a handle for the rows that are sent now; return the arguments that make the engines keep the rows.

        The `blocks`, which are their memory, live as long as the handle.
        """
        self._handle = cluster.made_handle(X.shape, X.dtype, bounds, blocks=blocks)
        return {"handle": self._handle.id, "about": self._handle.about()}

    def discard(self) -> None:
        """Free the rows, because the call that sent them has failed."""
        if self._handle is not None:
            self._handle.discard()
            self._handle = None

    def source(self, cluster: XPUCluster) -> dict[str, Any] | None:
        """Return the description of the rows on the engines; None if the engines do not have them (any more)."""
        there = self._handle is not None and self._handle.is_on(cluster)
        return self._handle.source(cluster) if self._handle is not None and there else None


class Packing:
    """Sends rows, weights and targets to the engines of a call's cluster, as often as needed.

    Parameters
    ----------
    estimator : sklearn.base.BaseEstimator
    outgoing : Outgoing
    call : Call
    X : array, CSR matrix or ShardedArray
        As `checked_rows` returned it.
    weights : numpy.ndarray of shape (n_samples,) or ShardedArray, optional
    targets : numpy.ndarray of shape (n_samples,) or (n_samples, n_targets), or ShardedArray, optional
    rules : mapping, optional
        The rules by which X was checked.
    held : Held, optional
        If given, the rows stay on the engines for the next call.

    Attributes
    ----------
    again : bool
        Whether the rows can be sent again, because this process has them.
    """

    def __init__(
        self,
        estimator: Any,
        outgoing: Outgoing,
        call: Call,
        X: Any,
        weights: Any = None,
        targets: Any = None,
        rules: Mapping[str, Any] | None = None,
        held: Held | None = None,
    ) -> None:
        self._estimator = estimator
        self._outgoing = outgoing
        self._call = call
        self._X = X
        self._where = mapped(X)  # once, so that new engines read the same rows after a loss
        self._held = held
        self._blocks: list[SharedBlock] = []
        self._weights = weights
        self._targets = targets
        self._rules = dict(rules or {})
        self.again = not isinstance(X, ShardedArray) and not isinstance(targets, ShardedArray)

    def __call__(self) -> dict[str, Any]:
        """Send the rows, and return the arguments ``source``, ``weights`` and, if there are any, ``targets``."""
        self._outgoing.drop()
        self.require_room()
        with self._call.transfer():
            if isinstance(self._weights, ShardedArray):
                weights: Any = self._weights.source(self._call.cluster)
            else:
                weights = None if self._weights is None else self._outgoing.send(self._weights)
            sent = {"source": self._source(), "weights": weights}
            return sent if self._targets is None else {**sent, "targets": self._sent_targets()}

    def _source(self) -> dict[str, Any]:
        X = self._X
        allowed = {"nan": True} if self._rules.get("ensure_all_finite") == "allow-nan" else {}
        if isinstance(X, ShardedArray):
            return {**X.source(self._call.cluster), **allowed}
        if self._where is not None:
            return {**self._where, **allowed, "bounds": self._bounds()}
        if sparse.issparse(X):
            parts = [self._outgoing.send(part) for part in (X.data, X.indices, X.indptr)]
            return {"csr": parts, "shape": X.shape, "bounds": self._bounds()}
        held = self._held.source(self._call.cluster) if self._held is not None else None
        if held is not None:
            return held
        result = result_of_engines(X)
        if result is not None:
            source = {**result, **allowed, "bounds": self._bounds()}
        else:
            source = {**self._outgoing.send_rows(X, self._bounds(), self._look), **allowed}
        if self._held is None:
            return source
        self._blocks = []  # rows that are sent again are put into new blocks
        held = self._held.hold(self._call.cluster, X, self._bounds(), self._blocks)
        self._outgoing.after_error(self._held.discard)
        return {**source, "hold": held}

    def done(self) -> None:
        """End the task. Blocks of rows that stay on the engines live as long as these rows."""
        if self._held is not None:
            self._blocks += self._outgoing.keep()

    def _look(self) -> None:
        """Look for NaN and infinity as scikit-learn does. The shape and the column names were checked before."""
        with place_named(self._X):
            check_array(
                self._X,
                dtype=FLOATS,
                ensure_all_finite=self._rules.get("ensure_all_finite", True),
                estimator=self._estimator,
                input_name="X",
            )

    def _sent_targets(self) -> dict[str, Any]:
        y = self._targets
        if isinstance(y, ShardedArray):
            return y.source(self._call.cluster)
        numbers = y if y.dtype in FLOATS else y.astype(self._X.dtype)
        return self._outgoing.send_rows(numbers.reshape(len(y), -1), self._bounds())

    def _bounds(self) -> list[int]:
        X, size = self._X, self._call.cluster.size
        for handle in (X, self._targets):
            if isinstance(handle, ShardedArray):
                return handle.bounds
        return bounds_by_stored(X.indptr, size) if sparse.issparse(X) else bounds_of(X.shape[0], size)

    def require_room(self, result: float = 0.0) -> None:
        """Raise `NotEnoughMemoryError` if there is no room for the rows, and for a result of so many bytes here."""
        X = self._X
        held = self._held is not None and self._held.source(self._call.cluster) is not None
        aligned = sum(a.nbytes for a in (self._weights, self._targets) if isinstance(a, np.ndarray))
        there = held or isinstance(X, ShardedArray)
        self._call.cluster.require_room(
            _demand(self._estimator, X, self._bounds(), aligned, there, self._where is None, result)
        )


def _demand(estimator: Any, X: Any, bounds: list[int], aligned: int, there: bool, sent: bool, result: float) -> Demand:
    """Return the memory that a call needs for X, for arrays aligned with it, and for a result in this process."""
    stored = sparse.issparse(X)
    nbytes = X.data.nbytes + X.indices.nbytes + 8 * len(X.indptr) if stored else X.dtype.itemsize * np.prod(X.shape)
    per_row, share = getattr(estimator, "_work_memory", (0.0, 0.0))
    return Demand(
        what=f"X of {' × '.join(f'{n:,}' for n in X.shape)} {X.dtype}",
        counts=np.diff(bounds).tolist(),
        row_bytes=float((nbytes + aligned) / X.shape[0]),
        there=there,
        sent=sent and not there,
        adopted=not stored,
        work_per_row=per_row,
        work_share=share,
        result=result,
        double=X.dtype == np.float64,
    )


def rows_at_once(estimator: Any, cluster: XPUCluster, X: Any, result: float) -> int:
    """Return how many rows of a memory-mapped array a call can take at once, with a result of so many bytes here.

    Raises
    ------
    NotEnoughMemoryError
        If there is no room for a thousandth of the rows, because the result of all rows does not fit.
    """
    n = rows = X.shape[0]
    of_all: NotEnoughMemoryError | None = None
    while True:
        try:
            cluster.require_room(
                _demand(estimator, X[:rows], bounds_of(rows, cluster.size), 0, there=False, sent=False, result=result)
            )
        except NotEnoughMemoryError as error:
            of_all = of_all or error
            if rows <= n // 1000:
                raise of_all from None
            rows = max(1, rows // 2)
        else:
            return rows if rows == n else max(1, rows // 2)
