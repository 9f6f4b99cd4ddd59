"""What every estimator of this package is: scikit-learn's class, whose passes over the rows run on the engines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted

from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.answers import Answer
from xpulab.deploy.cluster import XPUCluster, current_cluster
from xpulab.estimator.call import Call
from xpulab.estimator.callbacks import Callbacks, CallbackSupportMixin, callback_management_context
from xpulab.estimator.rows import Packing, checked_rows, checked_weights
from xpulab.report.fit import FitReport

__all__ = ["Proxy", "Result"]


class Result:
    """What a task gives back for each row: an array in this process, or rows that stay on the engines.

    Parameters
    ----------
    n_columns : int or None
        Columns of the result; None for one number a row.
    dtype : numpy.dtype
    rows : bool
        Whether these are rows, which stay on the engines where X is a `ShardedArray`.
    columns : sequence of str, optional
        Names of the columns.
    """

    def __init__(self, n_columns: int | None, dtype: Any, *, rows: bool = False, columns: Any = None) -> None:
        self.n_columns = n_columns
        self.dtype = np.dtype(dtype)
        self.rows = rows
        self.columns = columns
        self.value: Any = None

    def place(self, cluster: XPUCluster, outgoing: Outgoing, X: Any) -> dict[str, Any]:
        """Makes room for the result, or a handle; the argument of the task that says where it goes."""
        shape = (X.shape[0],) if self.n_columns is None else (X.shape[0], self.n_columns)
        if self.rows and isinstance(X, ShardedArray):
            self.value = cluster.made_handle(shape, self.dtype, X.bounds, self.columns)
            return {"kept": {"handle": self.value.id, "about": self.value.about()}}
        target, self.value = outgoing.receive(shape, self.dtype)
        return {"target": target}


class Proxy(CallbackSupportMixin):
    """Base of estimators whose rows are on the engines; put it before scikit-learn's class.

    Attributes
    ----------
    report_ : FitReport
        What the last fit ran where, and how long each phase took.
    """

    #: How X is checked, where that differs from dense, finite rows: arguments of scikit-learn's `validate_data`.
    _rules: ClassVar[Mapping[str, Any]] = {}
    #: Fitted attributes that a plain estimator does not have.
    _own: ClassVar[tuple[str, ...]] = ("report_",)

    report_: FitReport

    def to_sklearn(self) -> Any:
        """A plain scikit-learn estimator with the same parameters and what was fitted, which needs no cluster.

        Raises
        ------
        NotFittedError
        """
        check_is_fitted(self)
        theirs = (c for c in type(self).__mro__ if c.__module__.startswith("sklearn."))
        plain_class = next(c for c in theirs if c is not CallbackSupportMixin)
        plain = plain_class(**self.get_params(deep=False))
        for name, value in vars(self).items():
            if name not in (*self._own, "_skl_callbacks", "_stopped") and not hasattr(plain, name):
                setattr(plain, name, value)
        return plain

    def _checked(self, cluster: XPUCluster, X: Any, *, reset: bool, look_now: bool = False, **rules: Any) -> Any:
        """X as rows that can be sent, or the handle; raises before anything is sent."""
        return checked_rows(self, cluster, X, reset=reset, look_now=look_now, **{**self._rules, **rules})

    @contextlib.contextmanager
    def _fitting(self, X: Any, sample_weight: np.ndarray | None = None) -> Iterator[None]:
        """Tells callbacks of scikit-learn 1.9 that a fit without iterations begins, and that it has ended."""
        with callback_management_context(self):
            callbacks = Callbacks(self, X, sample_weight, 1, 1)
            yield
            fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and name != "report_"}
            callbacks.end([(1, 1)], fitted)

    def _ask(
        self,
        cluster: XPUCluster,
        method: str,
        task: str,
        X: Any,
        *,
        y: Any = None,
        sample_weight: np.ndarray | None = None,
        result: Result | None = None,
        rules: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Answer:
        """Sends X, and what is aligned with it, to the engines, and runs a task on them.

        Parameters
        ----------
        cluster : XPUCluster
        method : str
            The method of this estimator that asks, for the report. After a fit the report is `report_`.
        task : str
            What the ranks run.
        X : array or ShardedArray
            As `_checked` returned it.
        y : array or ShardedArray, optional
            As `checked_targets` returned it; the ranks get it as rows.
        sample_weight : numpy.ndarray, optional
            As `checked_weights` returned it.
        result : Result, optional
            What comes back for each row; its `value` is set.
        rules : mapping, optional
            By which X was checked, if not by `_rules`.
        **arguments : Any
            Of the task.
        """
        fits = "fit" in method
        with Call(self, method, X, cluster) as call, Outgoing(cluster.blocks) as outgoing:
            if fits:
                self.report_ = call.report
            packing = Packing(
                self, outgoing, call, X, sample_weight, y, self._rules if rules is None else {**self._rules, **rules}
            )
            place = {} if result is None else result.place(cluster, outgoing, X)
            try:
                return call.send(task, packing, **place, **arguments)
            except KeyboardInterrupt:
                again = f"; nothing was fitted, type: {method}(X) again" if fits else ""
                raise KeyboardInterrupt(f"{type(self).__name__}.{method} was interrupted{again}") from None

    def _transformed(self, method: str, task: str, X: Any, n_columns: int, **arguments: Any) -> Any:
        """Rows made of the rows of X: a handle for a handle, otherwise an array.

        Raises
        ------
        ValueError
            If `set_output` asks for data frames, and X is a handle.
        """
        cluster = current_cluster()
        if isinstance(X, ShardedArray):
            dense = _get_output_config("transform", self)["dense"]
            if dense != "default":
                raise ValueError(
                    f"set_output(transform={dense!r}) makes data frames of arrays, and X is a ShardedArray, whose "
                    "rows stay on the engines; pass X.gather(), or set_output(transform='default')"
                )
        X = self._checked(cluster, X, reset=False)
        columns = None
        if isinstance(X, ShardedArray) and X.columns is not None and n_columns == X.shape[1]:
            columns = X.columns
        result = Result(n_columns, X.dtype, rows=True, columns=columns)
        self._ask(cluster, method, task, X, result=result, **arguments)
        return result.value

    def _weights(self, sample_weight: Any, X: Any, **rules: Any) -> np.ndarray | None:
        """Sample weights as the ranks take them."""
        return checked_weights(sample_weight, X, **rules)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = "accept_sparse" in self._rules
        tags.array_api_support = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows of an interrupted fit, which this process has."""
        return {name: value for name, value in super().__getstate__().items() if name != "_stopped"}
