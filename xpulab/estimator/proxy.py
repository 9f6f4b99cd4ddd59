"""Base classes of the estimators: scikit-learn's classes, whose passes over the rows run on the engines."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from xpulab.caching import Origin
from xpulab.csr import ShardedCSR
from xpulab.data import Outgoing, ShardedArray
from xpulab.deploy.current import current_ranks
from xpulab.deploy.ranks import Ranks
from xpulab.deploy.tasks.answers import Answer
from xpulab.estimator.call import Call
from xpulab.estimator.callbacks import Callbacks, CallbackSupportMixin, callback_management_context
from xpulab.estimator.frames import name_columns_of_handles
from xpulab.estimator.interrupted import Interruptible
from xpulab.estimator.parts import may_come_in_parts, rows_at_once
from xpulab.estimator.rows import checked_rows, checked_unnamed, checked_weights, given_dtype, in_float64
from xpulab.estimator.sending import Result
from xpulab.estimator.sent_once import SentOnce
from xpulab.exceptions import NoClusterError
from xpulab.names import Listed, naming_parameters
from xpulab.report.fit import FitReport

__all__ = ["Proxy", "TransformerProxy"]

name_columns_of_handles()

#: Methods that may have the parameter `out`, of those whose parameters scikit-learn routes.
_WITH_OUT = "predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "inverse_transform"


def _nothing() -> None:
    pass


@functools.cache
def _parameter_names(kind: type[Proxy]) -> tuple[str, ...]:
    return tuple(super(Proxy, kind)._get_param_names())  # type: ignore[misc]  # it comes before scikit-learn's class


class Proxy(Listed, Interruptible, CallbackSupportMixin):  # type: ignore[misc]  # scikit-learn has no types
    """Base of estimators whose rows are on the engines. Among the bases, it comes before scikit-learn's class.

    Attributes
    ----------
    report_ : FitReport
        The report of the last fit: the work of each engine, and the seconds of each phase.
    """

    _internal = frozenset(["sklearn_class", "unfitted_sklearn"])
    #: Arguments of scikit-learn's `validate_data` for X, where they differ from those for dense, finite rows.
    _rules: ClassVar[Mapping[str, Any]] = {}
    #: The arguments that differ again in methods of a fitted estimator.
    _later_rules: ClassVar[Mapping[str, Any]] = {}
    #: Whether rows of one number each may have one dimension.
    _one_d: ClassVar[bool] = False
    #: The fitted attribute in whose dtype scikit-learn computes with later rows, if these are less precise.
    _computes_as: ClassVar[str] = ""
    #: Whether scikit-learn computes in float32 with later rows of float16 and small integers, if that attribute is.
    _narrow: ClassVar[bool] = False
    #: Device memory of a call in addition to its rows: bytes per row, and a share of the bytes of the rows.
    _work_memory: ClassVar[tuple[float, float]] = (0.0, 0.0)
    #: Bytes of the host's memory for each row of a call that reads them in passes; there must be so many.
    _every_row: float = 0.0
    #: Of these, the bytes that `memory` must have room for, because they stand for the row itself.
    _least_row: float = 0.0
    #: Memory of a call with sparse rows in addition, as a share of the bytes of the rows.
    _stored_work: ClassVar[float] = 0.0
    #: Attributes that scikit-learn's estimator does not have.
    _own: ClassVar[tuple[str, ...]] = ("report_",)

    report_: FitReport
    _held: SentOnce | None = None

    set_params = naming_parameters(BaseEstimator.set_params)

    def __init_subclass__(cls, **arguments: Any) -> None:
        for name in _WITH_OUT:
            request = f"__metadata_request__{name}"
            # It is no metadata of the rows. Two classes of one that say so are an error up to scikit-learn 1.7.
            if "out" in inspect.signature(vars(cls).get(name, _nothing)).parameters and not hasattr(cls, request):
                setattr(cls, request, {"out": UNUSED})
        super().__init_subclass__(**arguments)

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
        plain = self.unfitted_sklearn()
        for name, value in vars(self).items():
            if name not in (*self._own, "_skl_callbacks") and not hasattr(plain, name):
                setattr(plain, name, value)
        return plain

    def unfitted_sklearn(self) -> Any:
        """Return scikit-learn's estimator with the same parameters, without those that it does not have."""
        theirs: Any = self.sklearn_class()
        given = self.get_params(deep=False)
        return theirs(**{name: given[name] for name in theirs._get_param_names()})

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters; scikit-learn reads the signature at each call, which takes 40 µs."""
        return list(_parameter_names(cls))  # type: ignore[arg-type]  # a class is hashable

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

    def _cluster(self) -> Ranks:
        """Return the active cluster, for a method of a fitted estimator.

        Raises
        ------
        NoClusterError
            If no cluster is running; the message says how to compute without one.
        """
        try:
            return current_ranks()
        except NoClusterError as error:
            raise NoClusterError(
                f"{error}\nto compute without a cluster, type: xpulab.to_sklearn(model), which returns a copy of "
                "this estimator, or of a Pipeline or a search with it, in scikit-learn's classes"
            ) from None

    def _checked(self, cluster: Ranks, X: Any, *, reset: bool, look_now: bool = False, **rules: Any) -> Any:
        """Check X as `checked_rows` does, with the rules of this estimator. Errors are raised before X is sent."""
        held = self._held if self._held is not None and X is self._held.given else None
        if held is not None and held.checked is not None and not reset:
            return self._as_fitted(cluster, held.checked)
        rules = {**self._rules, **({} if reset else self._later_rules), **rules}
        narrow = not reset and self._in_float32()
        rows = checked_rows(self, cluster, X, reset=reset, look_now=look_now, narrow=narrow, **rules)
        rows = rows if reset else self._as_fitted(cluster, rows)
        if held is not None:
            held.checked = rows
        return rows

    def _as_fitted(self, cluster: Ranks, rows: Any) -> Any:
        """Return checked rows in float64 if the fit was in float64: nothing is rounded before it is computed."""
        fitted = getattr(self, self._computes_as, None)
        return in_float64(rows, cluster) if getattr(fitted, "dtype", None) == np.float64 else rows

    def _in_float32(self) -> bool:
        """Return whether the fit was in float32, and later rows that float32 holds stay in it."""
        return self._narrow and getattr(getattr(self, self._computes_as, None), "dtype", None) == np.float32

    @contextlib.contextmanager
    def _sent_once(self, X: Any) -> Iterator[None]:
        """Open a context in which X is sent only once, however many methods are called with it."""
        self._held = None if isinstance(X, ShardedArray) else SentOnce(X)
        try:
            yield
        finally:
            del self._held

    @contextlib.contextmanager
    def _fitting(self, X: Any, sample_weight: npt.NDArray[Any] | None = None) -> Iterator[None]:
        """Tell callbacks of scikit-learn 1.9 that a fit without iterations begins, and that it has ended."""
        with callback_management_context(self):
            callbacks = Callbacks(self, X, sample_weight, 0, 0)
            yield
            fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and name != "report_"}
            callbacks.end([], fitted)

    def _ask(
        self,
        cluster: Ranks,
        method: str,
        task: str,
        X: Any,
        *,
        y: Any = None,
        sample_weight: npt.NDArray[Any] | None = None,
        result: Result | None = None,
        rules: Mapping[str, Any] | None = None,
        compute_locally: Callable[[], npt.NDArray[Any] | None] | None = None,
        finish: Callable[[Answer], bool | None] | None = None,
        send_more: Callable[[Outgoing], dict[str, Any]] | None = None,
        **arguments: Any,
    ) -> Answer:
        """Send X and the columns aligned with it to the engines, and run a task on them.

        If a memory-mapped X is too large for a result with one entry per row, the task runs for one part of the rows
        after the other.

        Parameters
        ----------
        cluster : Ranks
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
        compute_locally : callable, optional
            Computes the result in this process, or returns None if the engines have to compute it. If it computes the
            result, the answer is empty.
        finish : callable, optional
            Continues with the answer in this process, as a part of the call; returns whether it converged, or None.
        send_more : callable, optional
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
        there = self._held is not None and self._held.are_on(cluster, X)
        if result is not None and not (fits or there) and may_come_in_parts(X, task):
            n = rows_at_once(self, cluster, X, result.nbytes(X))
            if n < X.shape[0]:
                parts = (slice(start, start + n) for start in range(0, X.shape[0], n))
                for_each = {"rules": rules, "finish": finish, "send_more": send_more, **arguments}
                for part, of_part in result.of_parts(X, parts):
                    answer = self._ask(cluster, method, task, part, result=of_part, **for_each)
                return answer
        with Call(self, method, X, cluster) as call:
            if fits:
                self.report_ = call.report
            if compute_locally is not None and result is not None and (found := compute_locally()) is not None:
                call.computed_here()
                result.value = found
                return Answer([])
            answer = call.ask(
                task,
                y=y,
                sample_weight=sample_weight,
                rules={**self._rules, **(rules or {})},
                held=self._held,
                send_more=send_more,
                result=result,
                **arguments,
            )
            if result is not None and isinstance(result.value, ShardedArray):
                result.value.origin = Origin.of(self, method, X)
            if finish is not None:
                call.report.converged = finish(answer)
            return answer

    def _weights(
        self, sample_weight: Any, X: Any, *, dtype: npt.DTypeLike = None, **rules: Any
    ) -> npt.NDArray[Any] | None:
        """Check the sample weights, and return them in the form that the ranks take, by default in the dtype of X."""
        weights: npt.NDArray[Any] | None = checked_weights(sample_weight, X.shape[0], dtype or X.dtype, **rules)
        return weights

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = "accept_sparse" in self._rules
        tags.array_api_support = False
        return tags


class TransformerProxy(Proxy):
    """Base of transformers, whose results are rows."""

    #: The kinds of dtypes (`numpy.dtype.kind`) that rows keep in `transform`, as in scikit-learn.
    _keeps: ClassVar[str] = ""

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
        n_columns: int | None = None,
        *,
        n_given: int | None = None,
        as_sparse: bool = False,
        nan: bool | None = None,
        dtype: Any = None,
        described: Any = None,
        **arguments: Any,
    ) -> Any:
        """Transform the rows of X: a handle if X is a handle, otherwise an array.

        The columns have no names, unless `set_output` asks for data frames: then scikit-learn has them named.

        Parameters
        ----------
        method, task : str
            The method that the user called, and the name of the task.
        X : array-like or ShardedArray
        n_columns : int, optional
            Number of columns of the result; that of X by default.
        n_given : int, optional
            Number of columns that X must have, whatever their names. By default X must have the columns of the fit.
        as_sparse : bool
            Whether the result of a handle is a handle of sparse rows.
        nan : bool, optional
            Whether the result may have NaN; by default, whether X may.
        dtype : numpy.dtype, optional
            Dtype of the result; that of X by default.
        described : sequence of Column, optional
            What is known of the columns of the result of a table.
        **arguments : Any
            Arguments of the task.
        """
        cluster, given = self._cluster(), given_dtype(X) if self._keeps else None
        if n_given is None:
            X = self._checked(cluster, X, reset=False)
        else:
            X = self._as_fitted(cluster, checked_unnamed(self, cluster, X, n_given, self._in_float32(), **self._rules))
        n_columns = X.shape[1] if n_columns is None else n_columns
        kind = X.dtype if dtype is None else dtype
        result = Result(n_columns, kind, rows=True, as_sparse=as_sparse, nan=nan, described=described)
        answer = self._ask(cluster, method, task, X, result=result, **arguments)
        if isinstance(result.value, ShardedCSR):
            result.value.stored = answer.results[0]["stored"]
        return self._kept(result.value, given)

    def _kept(self, rows: Any, given: np.dtype[Any] | None) -> Any:
        """Return transformed rows in the dtype of the given rows, if scikit-learn's have it."""
        if given is None or given.kind not in self._keeps or given.itemsize > 8 or rows.dtype == given:
            return rows
        if isinstance(rows, ShardedArray):
            made = rows.cast(given)
            made.origin = rows.origin
            return made
        with np.errstate(over="ignore", invalid="ignore"):
            return rows.astype(given)
