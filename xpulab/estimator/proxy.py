"""What every estimator of this package is: scikit-learn's class, whose passes over the rows run on the engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted

from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.answers import Answer
from xpulab.deploy.cluster import XPUCluster, current_cluster
from xpulab.estimator.call import Call
from xpulab.estimator.callbacks import Callbacks, CallbackSupportMixin, callback_management_context
from xpulab.estimator.interrupted import CallInterrupted
from xpulab.estimator.rows import Held, Packing, checked_rows, checked_unnamed, checked_weights
from xpulab.exceptions import NoClusterError
from xpulab.report.fit import FitReport

__all__ = ["Proxy", "Result", "TransformerProxy"]


class Result:
    """What a task gives back for each row: an array in this process, or rows that stay on the engines.

    Parameters
    ----------
    n_columns : int or None
        Columns of the result; None for one number a row.
    dtype : numpy.dtype
    rows : bool
        Whether these are rows, which stay on the engines where X is a `ShardedArray`.
    """

    def __init__(self, n_columns: int | None, dtype: Any, *, rows: bool = False) -> None:
        self.n_columns = n_columns
        self.dtype = np.dtype(dtype)
        self.rows = rows
        self.value: Any = None

    def place(self, cluster: XPUCluster, outgoing: Outgoing, X: Any) -> dict[str, Any]:
        """Makes room for the result, or a handle; the argument of the task that says where it goes."""
        shape = (X.shape[0],) if self.n_columns is None else (X.shape[0], self.n_columns)
        if self.rows and isinstance(X, ShardedArray):
            self.value = cluster.made_handle(shape, self.dtype, X.bounds)
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
    #: Device memory of a call in addition to its rows: bytes per row, and a share of the bytes of the rows.
    _work_memory: ClassVar[tuple[float, float]] = (0.0, 0.0)
    #: Fitted attributes that a plain estimator does not have.
    _own: ClassVar[tuple[str, ...]] = ("report_",)

    report_: FitReport
    _held: Held | None = None

    def to_sklearn(self) -> Any:
        """A plain scikit-learn estimator with the same parameters and what was fitted, which needs no cluster.

        Raises
        ------
        NotFittedError
        """
        check_is_fitted(self)
        plain = self.sklearn_class()(**self.get_params(deep=False))
        for name, value in vars(self).items():
            if name not in (*self._own, "_skl_callbacks", "_stopped", "_stopped_in") and not hasattr(plain, name):
                setattr(plain, name, value)
        return plain

    @classmethod
    def sklearn_class(cls) -> type:
        """The class of scikit-learn whose results this one has.

        Raises
        ------
        TypeError
            If there is none.
        """
        theirs = (c for c in cls.__mro__ if c.__module__.startswith("sklearn.") and c is not CallbackSupportMixin)
        found = next((c for c in theirs if issubclass(c, BaseEstimator) and c is not BaseEstimator), None)
        if found is None:
            raise TypeError(f"scikit-learn has no {cls.__name__}")
        return found

    def _cluster(self) -> XPUCluster:
        """The active cluster, for a method of a fitted estimator.

        Raises
        ------
        NoClusterError
            Says how to compute without one.
        """
        try:
            return current_cluster()
        except NoClusterError as error:
            raise NoClusterError(
                f"{error}\nto compute without a cluster, type: xpulab.to_sklearn(model), which gives a copy for "
                "scikit-learn of this estimator, or of a Pipeline or a search with it"
            ) from None

    def _checked(self, cluster: XPUCluster, X: Any, *, reset: bool, look_now: bool = False, **rules: Any) -> Any:
        """X as rows that can be sent, or the handle; raises before anything is sent."""
        held = self._held if self._held is not None and X is self._held.given else None
        if held is not None and held.checked is not None and not reset:
            return held.checked
        rows = checked_rows(self, cluster, X, reset=reset, look_now=look_now, **{**self._rules, **rules})
        if held is not None:
            held.checked = rows
        return rows

    def _held_as(self, X: Any) -> Held | None:
        """What has X on the engines, or will have, if this is what `_checked` returned inside of `_sent_once`."""
        return self._held if self._held is not None and X is self._held.checked else None

    @contextlib.contextmanager
    def _sent_once(self, X: Any) -> Iterator[None]:
        """Within it X is sent once, however many methods are called with it."""
        self._held = None if isinstance(X, ShardedArray) else Held(X)
        try:
            yield
        finally:
            del self._held

    @contextlib.contextmanager
    def _fitting(self, X: Any, sample_weight: np.ndarray | None = None) -> Iterator[None]:
        """Tells callbacks of scikit-learn 1.9 that a fit without iterations begins, and that it has ended."""
        with callback_management_context(self):
            callbacks = Callbacks(self, X, sample_weight, 0, 0)
            yield
            fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and name != "report_"}
            callbacks.end([], fitted)

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
        here: Callable[[], np.ndarray | None] | None = None,
        then: Callable[[Answer], bool] | None = None,
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
        here : callable, optional
            Computes the result in this process, or returns None if the engines have to. The answer is then empty.
        then : callable, optional
            Goes on with the answer in this process, as a part of the call; returns whether it converged.
        **arguments : Any
            Of the task.
        """
        fits = "fit" in method
        with Call(self, method, X, cluster) as call, Outgoing(cluster.blocks) as outgoing:
            if fits:
                self.report_ = call.report
            if here is not None and result is not None and (found := here()) is not None:
                call.computed_here()
                result.value = found
                return Answer([])
            packing = Packing(
                self, outgoing, call, X, sample_weight, y, {**self._rules, **(rules or {})}, self._held_as(X)
            )
            place = {} if result is None else result.place(cluster, outgoing, X)
            try:
                answer = call.send(task, packing, **place, **arguments)
                packing.done()
                if then is not None:
                    call.report.converged = then(answer)
                return answer
            except KeyboardInterrupt:
                again = f"; nothing was fitted, type: {method}(X) again" if fits else ""
                raise CallInterrupted(f"{type(self).__name__}.{method} was interrupted{again}") from None

    def _weights(self, sample_weight: Any, X: Any, **rules: Any) -> np.ndarray | None:
        """Sample weights as the ranks take them."""
        return checked_weights(sample_weight, X, **rules)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = "accept_sparse" in self._rules
        tags.array_api_support = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows of an interrupted fit, which this process has; `resume` of a copy says so."""
        return {name: value for name, value in super().__getstate__().items() if name != "_stopped"}


class TransformerProxy(Proxy):
    """Base of estimators that make rows of rows."""

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """`fit`, then `transform` of the same rows, which are sent once.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : array-like, optional
        **fit_params : Any
            Of `fit`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features_out)
            A handle for a handle.
        """
        with self._sent_once(X):
            return self.fit(X, y, **fit_params).transform(X)

    def _transformed(
        self, method: str, task: str, X: Any, n_columns: int, *, n_given: int | None = None, **arguments: Any
    ) -> Any:
        """Rows made of the rows of X: a handle for a handle, otherwise an array. As in scikit-learn they have no names.

        Parameters
        ----------
        method, task : str
        X : array-like or ShardedArray
        n_columns : int
            Of the result.
        n_given : int, optional
            So many columns X has to have, whatever their names; None for those of the fit.
        **arguments : Any
            Of the task.

        Raises
        ------
        ValueError
            If `set_output` asks for data frames, and X is a handle.
        """
        cluster = self._cluster()
        if isinstance(X, ShardedArray) and method == "transform":
            dense = _get_output_config("transform", self)["dense"]
            if dense != "default":
                raise ValueError(
                    f"set_output(transform={dense!r}) makes data frames of arrays, and X is a ShardedArray, whose "
                    "rows stay on the engines; pass X.gather(), or set_output(transform='default')"
                )
        if n_given is None:
            X = self._checked(cluster, X, reset=False)
        else:
            X = checked_unnamed(self, cluster, X, n_given, **self._rules)
        result = Result(n_columns, X.dtype, rows=True)
        self._ask(cluster, method, task, X, result=result, **arguments)
        return result.value
