"""Base classes of the estimators: scikit-learn's classes, whose passes over the rows run on the engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from xpulab._sklearn import _get_output_config
from xpulab.caching import Origin
from xpulab.data import Outgoing, ShardedArray, mapped
from xpulab.deploy.cluster import XPUCluster, current_cluster
from xpulab.deploy.tasks.answers import Answer
from xpulab.deploy.watch.signals import interruptible
from xpulab.estimator.call import Call
from xpulab.estimator.callbacks import Callbacks, CallbackSupportMixin, callback_management_context
from xpulab.estimator.rows import Held, Packing, checked_rows, checked_unnamed, checked_weights, rows_at_once
from xpulab.exceptions import NoClusterError
from xpulab.report.fit import FitReport

__all__ = ["Proxy", "Result", "TransformerProxy"]


class Result:
    """A result with one entry per row: an array in this process, or rows that stay on the engines.

    Parameters
    ----------
    n_columns : int or None
        Number of columns of the result; None for a result of shape (n_samples,).
    dtype : numpy.dtype
    rows : bool
        Whether the result is rows. If X is a `ShardedArray`, these stay on the engines.
    nan : bool, optional
        Whether the rows may have NaN; by default, whether X may.

    Attributes
    ----------
    value : numpy.ndarray or ShardedArray
        The result, after the task has ended.
    """

    def __init__(self, n_columns: int | None, dtype: Any, *, rows: bool = False, nan: bool | None = None) -> None:
        self.n_columns = n_columns
        self.nan = nan
        self.dtype = np.dtype(dtype)
        self.rows = rows
        self.value: Any = None

    def _shape(self, X: Any) -> tuple[int, ...]:
        return (X.shape[0],) if self.n_columns is None else (X.shape[0], self.n_columns)

    def stays_with(self, X: Any) -> bool:
        """Return whether the result is rows that stay on the engines, as those of X."""
        return self.rows and isinstance(X, ShardedArray) and X.stays

    def nbytes(self, X: Any) -> int:
        """Return the bytes of the result of X."""
        return int(np.prod(self._shape(X))) * self.dtype.itemsize

    def of_parts(self, X: Any, parts: Iterable[slice]) -> Iterator[tuple[Any, Result]]:
        """Yield parts of X and a result for each, which is copied into this result when it is there."""
        self.value = np.empty(self._shape(X), self.dtype)
        for part in parts:
            result = Result(self.n_columns, self.dtype, rows=self.rows, nan=self.nan)
            yield X[part], result
            self.value[part] = result.value

    def place(self, cluster: XPUCluster, outgoing: Outgoing, X: Any) -> dict[str, Any]:
        """Allocate the result, or make a handle for it; return the argument that tells the task where to put it."""
        shape = self._shape(X)
        if self.stays_with(X):
            nan = X.nan if self.nan is None else self.nan
            self.value = cluster.made_handle(shape, self.dtype, X.bounds, nan=nan)
            outgoing.after_error(self.value.discard)
            return {"kept": {"handle": self.value.id, "about": self.value.about()}}
        target, self.value = cluster.receive(outgoing, X, shape, self.dtype)
        return {"target": target}


class _With:
    """Sends the rows, and then the arrays that `more` sends."""

    def __init__(self, packing: Packing, more: Callable[[], dict[str, Any]]) -> None:
        self._packing, self._more = packing, more
        self.again = packing.again

    def __call__(self) -> dict[str, Any]:
        return {**self._packing(), **self._more()}


class Proxy(CallbackSupportMixin):
    """Base of estimators whose rows are on the engines. Among the bases, it comes before scikit-learn's class.

    Attributes
    ----------
    report_ : FitReport
        The report of the last fit: the work of each engine, and the seconds of each phase.
    """

    #: Arguments of scikit-learn's `validate_data` for X, where they differ from those for dense, finite rows.
    _rules: ClassVar[Mapping[str, Any]] = {}
    #: The arguments that differ again in methods of a fitted estimator.
    _later_rules: ClassVar[Mapping[str, Any]] = {}
    #: Device memory of a call in addition to its rows: bytes per row, and a share of the bytes of the rows.
    _work_memory: ClassVar[tuple[float, float]] = (0.0, 0.0)
    #: Attributes that scikit-learn's estimator does not have.
    _own: ClassVar[tuple[str, ...]] = ("report_",)

    report_: FitReport
    _held: Held | None = None

    def to_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters and fitted attributes. It needs no cluster.

        Returns
        -------
        sklearn.base.BaseEstimator

        Raises
        ------
        NotFittedError
            If the estimator was not fitted.
        TypeError
            If scikit-learn has no class for this estimator.
        """
        check_is_fitted(self)
        plain = self.sklearn_class()(**self.get_params(deep=False))
        for name, value in vars(self).items():
            if name not in (*self._own, "_skl_callbacks") and not hasattr(plain, name):
                setattr(plain, name, value)
        return plain

    @classmethod
    def sklearn_class(cls) -> type:
        """Return scikit-learn's class with the same results.

        Raises
        ------
        TypeError
            If scikit-learn has none.
        """
        theirs = (c for c in cls.__mro__ if c.__module__.startswith("sklearn.") and c is not CallbackSupportMixin)
        found = next((c for c in theirs if issubclass(c, BaseEstimator) and c is not BaseEstimator), None)
        if found is None:
            raise TypeError(f"scikit-learn has no {cls.__name__}")
        return found

    def _cluster(self) -> XPUCluster:
        """Return the active cluster, for a method of a fitted estimator.

        Raises
        ------
        NoClusterError
            If no cluster is running; the message says how to compute without one.
        """
        try:
            return current_cluster()
        except NoClusterError as error:
            raise NoClusterError(
                f"{error}\nto compute without a cluster, type: xpulab.to_sklearn(model), which returns a copy of "
                "this estimator, or of a Pipeline or a search with it, in scikit-learn's classes"
            ) from None

    def _checked(self, cluster: XPUCluster, X: Any, *, reset: bool, look_now: bool = False, **rules: Any) -> Any:
        """Check X as `checked_rows` does, with the rules of this estimator. Errors are raised before X is sent."""
        held = self._held if self._held is not None and X is self._held.given else None
        if held is not None and held.checked is not None and not reset:
            return held.checked
        rules = {**self._rules, **({} if reset else self._later_rules), **rules}
        with interruptible(f"the check of X for {type(self).__name__}", "; nothing was fitted" if reset else ""):
            rows = checked_rows(self, cluster, X, reset=reset, look_now=look_now, **rules)
        if held is not None:
            held.checked = rows
        return rows

    def _held_as(self, X: Any) -> Held | None:
        """Return the `Held` of an X that `_checked` returned inside of `_sent_once`; None for any other X."""
        return self._held if self._held is not None and X is self._held.checked else None

    @contextlib.contextmanager
    def _sent_once(self, X: Any) -> Iterator[None]:
        """Open a context in which X is sent only once, however many methods are called with it."""
        self._held = None if isinstance(X, ShardedArray) else Held(X)
        try:
            yield
        finally:
            del self._held

    @contextlib.contextmanager
    def _fitting(self, X: Any, sample_weight: np.ndarray | None = None) -> Iterator[None]:
        """Tell callbacks of scikit-learn 1.9 that a fit without iterations begins, and that it has ended."""
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
        then: Callable[[Answer], bool | None] | None = None,
        more: Callable[[Outgoing], dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> Answer:
        """Send X and the columns aligned with it to the engines, and run a task on them.

        If a memory-mapped X is too large for a result with one entry per row, the task runs for one part of the rows
        after the other.

        Parameters
        ----------
        cluster : XPUCluster
        method : str
            The method of this estimator that the user called, for the report. The report of a fit becomes `report_`.
        task : str
            Name of the task.
        X : array or ShardedArray
            As `_checked` returned it.
        y : array or ShardedArray, optional
            As `checked_targets` returned it; the ranks get it with two dimensions.
        sample_weight : numpy.ndarray, optional
            As `checked_weights` returned it.
        result : Result, optional
            The result with one entry per row; its `value` is set.
        rules : mapping, optional
            The rules by which X was checked; `_rules` by default.
        here : callable, optional
            Computes the result in this process, or returns None if the engines have to compute it. If it computes the
            result, the answer is empty.
        then : callable, optional
            Continues with the answer in this process, as a part of the call; returns whether it converged, or None.
        more : callable, optional
            Sends other arrays each time when the rows are sent, and returns the arguments that tell where they are.
        **arguments : Any
            Arguments of the task.

        Returns
        -------
        Answer
            The results of the ranks.

        Raises
        ------
        CallInterrupted
            If the user interrupted the call.
        """
        fits = "fit" in method
        if result is not None and not fits and mapped(X) is not None:
            n = rows_at_once(self, cluster, X, result.nbytes(X))
            if n < X.shape[0]:
                parts = (slice(start, start + n) for start in range(0, X.shape[0], n))
                more_of_it = {"rules": rules, "then": then, "more": more, **arguments}
                for part, of_part in result.of_parts(X, parts):
                    answer = self._ask(cluster, method, task, part, result=of_part, **more_of_it)
                return answer
        with Call(self, method, X, cluster) as call, cluster.outgoing() as outgoing:
            if fits:
                self.report_ = call.report
            if here is not None and result is not None and (found := here()) is not None:
                call.computed_here()
                result.value = found
                return Answer([])
            packing = Packing(
                self, outgoing, call, X, sample_weight, y, {**self._rules, **(rules or {})}, self._held_as(X)
            )
            if result is not None and not result.stays_with(X):
                packing.require_room(result.nbytes(X))
            place = {} if result is None else result.place(cluster, outgoing, X)
            sent = packing if more is None else _With(packing, lambda: more(outgoing))
            answer = call.send(task, sent, **place, **arguments)
            packing.done()
            if result is not None and isinstance(result.value, ShardedArray):
                result.value.origin = Origin.of(self, method, X)
            if then is not None:
                call.report.converged = then(answer)
            return answer

    def _weights(self, sample_weight: Any, X: Any, **rules: Any) -> np.ndarray | None:
        """Check the sample weights, and return them in the form that the ranks take; see `checked_weights`."""
        return checked_weights(sample_weight, X, **rules)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = "accept_sparse" in self._rules
        tags.array_api_support = False
        return tags


class TransformerProxy(Proxy):
    """Base of transformers, whose results are rows."""

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Call `fit`, and then `transform` for the same rows, which are sent once.

        Parameters
        ----------
        X : array-like or ShardedArray of shape (n_samples, n_features)
        y : array-like, optional
            Ignored by most transformers.
        **fit_params : Any
            Parameters of `fit`.

        Returns
        -------
        ndarray or ShardedArray of shape (n_samples, n_features_out)
            A handle if X is a handle.
        """
        with self._sent_once(X):
            return self.fit(X, y, **fit_params).transform(X)

    def _transformed(
        self,
        method: str,
        task: str,
        X: Any,
        n_columns: int,
        *,
        n_given: int | None = None,
        nan: bool | None = None,
        dtype: Any = None,
        **arguments: Any,
    ) -> Any:
        """Transform the rows of X: a handle if X is a handle, otherwise an array. The columns have no names.

        Parameters
        ----------
        method, task : str
            The method that the user called, and the name of the task.
        X : array-like or ShardedArray
        n_columns : int
            Number of columns of the result.
        n_given : int, optional
            Number of columns that X must have, whatever their names. By default X must have the columns of the fit.
        nan : bool, optional
            Whether the result may have NaN; by default, whether X may.
        dtype : numpy.dtype, optional
            Dtype of the result; that of X by default.
        **arguments : Any
            Arguments of the task.

        Raises
        ------
        ValueError
            If `set_output` asks for data frames, and X is a handle.
        """
        cluster = self._cluster()
        if isinstance(X, ShardedArray) and X.stays and method == "transform":
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
        result = Result(n_columns, X.dtype if dtype is None else dtype, rows=True, nan=nan)
        self._ask(cluster, method, task, X, result=result, **arguments)
        return result.value
