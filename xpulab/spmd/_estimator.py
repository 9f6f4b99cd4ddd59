"""Makes an estimator for the ranks from a proxy: a subclass, whose methods take the rows of each rank."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from xpulab._sklearn import _get_output_config
from xpulab.deploy.plan.probe import core_ranges
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.scoring import ScoredHere
from xpulab.exceptions import UsageError
from xpulab.spmd._local import LocalRows, checked, kind_of, on_host
from xpulab.spmd._ranks import ProgramRanks, ranks

if TYPE_CHECKING:
    import dpctl
    import dpnp
    from dpctl.tensor import usm_ndarray

__all__ = ["estimators_of", "on_ranks"]

_ROWS = ("X", "X_test")
_BY_ROW = ("predict", "predict_proba", "predict_log_proba", "decision_function")
_ALIGNED = ("y", "sample_weight")  # arguments with one entry per row


def estimators_of(package: ModuleType) -> tuple[list[str], Callable[[str], Any], list[str]]:
    """Return the names of the estimators of a package, and a function that makes the one with a name for the ranks.

    They are a module's `__all__` and `__getattr__`. The third value is an empty `__path__`: with it, Python looks for
    modules of names that are missing, and `xpulab.missing` says what was meant.

    Parameters
    ----------
    package : module
        A package with estimators of xpulab in its `__all__`.
    """
    proxies = {name: getattr(package, name) for name in package.__all__}
    proxies = {name: each for name, each in proxies.items() if isinstance(each, type) and issubclass(each, Proxy)}

    @functools.cache
    def made(name: str) -> Any:
        if name not in proxies:
            home = package.__name__.replace("xpulab.", "xpulab.spmd.", 1)
            raise AttributeError(f"module {home!r} has no attribute {name!r}")
        return on_ranks(proxies[name])

    return sorted(proxies), made, []


def on_ranks(proxy: type[Proxy]) -> type[Proxy]:
    """Return the estimator of `sklearnex.spmd` for one of xpulab's estimators.

    Every method that takes rows is called on all ranks, and each rank passes its own rows. A result with one entry per
    row has the entries of the rank's own rows; all other results are the same on all ranks.

    Parameters
    ----------
    proxy : type
        The estimator.

    Returns
    -------
    type
        A subclass, with the same parameters and attributes.
    """
    home = f"xpulab.spmd.{proxy.__module__.split('.')[1]}"
    namespace: dict[str, object] = {"__doc__": _described(proxy), "__module__": home}
    for name, method in inspect.getmembers(proxy, inspect.isfunction):
        parameters = list(inspect.signature(method).parameters)
        takes_rows = len(parameters) > 1 and parameters[1] in _ROWS
        if name.startswith("_") or not (takes_rows or name == "resume"):
            continue
        ours = method.__module__.startswith("xpulab.")
        if name == "score" and (not ours or issubclass(proxy, ScoredHere)):
            namespace[name] = _score
        else:
            namespace[name] = _own(method) if ours else _theirs(method)
    return type(proxy.__name__, (proxy,), namespace)


def _described(proxy: type[Proxy]) -> str:
    """Return the documentation of a proxy's estimator for the ranks."""
    _, _, rest = (inspect.getdoc(proxy) or "").partition("\n\n")
    return (
        f"`{proxy.__module__.rpartition('.')[0]}.{proxy.__name__}` for code that runs on the ranks, each of which "
        "passes its own rows.\n\n"
        "Methods that take rows are called on all ranks, and take `queue`, as in sklearnex.spmd. X, y and the weights "
        "are\nNumPy, dpnp or dpctl arrays, with any number of rows. A result with one entry per row has the entries of "
        "the rank's\nrows, in an array of the kind of X. Attributes are NumPy arrays. They are the same on all ranks, "
        f"except those\nwith one entry per row.\n\n{rest}"
    )


def _with_queue(method: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a wrapper the name, the documentation and the signature of a method, and the argument `queue`."""
    signature = inspect.signature(method)
    queue = inspect.Parameter("queue", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    last = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]

    def name(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        wrapper = functools.wraps(method)(wrapper)
        wrapper.__signature__ = signature.replace(parameters=[*parameters, queue, *last])  # type: ignore[attr-defined]
        return wrapper

    return name


def _own(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that xpulab defines: it runs on the engines, and gets handles for the rows of all ranks."""
    signature = inspect.signature(method)

    @_with_queue(method)
    def call(self: Proxy, *args: object, queue: dpctl.SyclQueue | None = None, **kwargs: object) -> Any:
        here = ranks()
        given = signature.bind(self, *args, **kwargs).arguments
        X = next((given[name] for name in _ROWS if name in given), None)
        if isinstance(X, LocalRows):  # another method of xpulab calls this one
            return method(self, *args, **kwargs)

        def work() -> Any:
            _require_queue(here, queue)
            with _joined(here, self, method.__name__, signature, (self, *args), kwargs) as bound:
                return _like(X, method(*bound.args, **bound.kwargs))

        return work() if here.busy else here.together(work)

    return call


def _theirs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that scikit-learn defines: it computes with this rank's rows, and may call xpulab's methods."""
    signature = inspect.signature(method)

    @_with_queue(method)
    def call(self: Proxy, *args: object, queue: dpctl.SyclQueue | None = None, **kwargs: object) -> Any:
        here = ranks()
        given = signature.bind(self, *args, **kwargs)
        X = given.arguments.get("X")

        def work() -> Any:
            _require_queue(here, queue)
            for name, value in given.arguments.items():
                if name in (*_ROWS, *_ALIGNED):
                    given.arguments[name] = on_host(value)
            rows = given.arguments.get("X")
            none = method.__name__ in _BY_ROW and isinstance(rows, np.ndarray) and rows.ndim == 2 and not len(rows)
            if none and rows is not None:  # scikit-learn needs a row, and all ranks must call xpulab's methods together
                given.arguments["X"] = np.zeros((1, rows.shape[1]), rows.dtype)
            found = method(*given.args, **given.kwargs)
            return _like(X, found[:0] if none else found)

        return work() if here.busy else here.together(work)

    return call


def _score(
    self: Proxy, X: object, y: object, sample_weight: object = None, *, queue: dpctl.SyclQueue | None = None
) -> float:
    """Return a classifier's mean accuracy, or a regressor's coefficient of determination, for the rows of all ranks.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        If a classifier has several outputs, a row counts as right if all of its outputs are right.
    sample_weight : array-like of shape (n_samples,), optional
        Weights of the rows; 1 by default.
    queue : dpctl.SyclQueue, optional
        A queue of this rank's device.

    Returns
    -------
    float
        The same on all ranks.
    """
    here = ranks()

    def work() -> float:
        _require_queue(here, queue)
        found = np.asarray(self.predict(on_host(X)))
        true = np.asarray(on_host(y))
        if found.shape != true.shape:
            raise ValueError(f"y has the shape {true.shape}; expected the shape of the predictions, {found.shape}")
        weights = np.ones(len(true)) if sample_weight is None else np.asarray(on_host(sample_weight), np.float64)
        if weights.shape != (len(true),):
            raise ValueError(f"sample_weight has the shape {weights.shape}; expected ({len(true)},)")

        def total(values: np.ndarray[Any, Any]) -> Any:
            return np.sum(here.exchange(np.tensordot(weights, values, 1)), axis=0)

        weight = total(np.ones(len(true)))
        if is_classifier(self):
            return float(total((found == true).all(axis=tuple(range(1, true.ndim)))) / weight)
        found, true = found.astype(np.float64), true.astype(np.float64)
        residual, squares = total((true - found) ** 2), total((true - total(true) / weight) ** 2)  # by output
        with np.errstate(divide="ignore", invalid="ignore"):
            scores: Any = np.where(squares > 0, 1 - residual / squares, np.where(residual > 0, 0.0, 1.0))
        return float(scores.mean())

    return work() if here.busy else here.together(work)


def _require_queue(here: ProgramRanks, queue: dpctl.SyclQueue | None) -> None:
    """Raise an error if the queue belongs to another device than this rank's device."""
    device = here.engine.device
    if queue is not None and queue.sycl_device != device.queue.sycl_device:
        raise UsageError(
            f"the queue belongs to {queue.sycl_device.name.strip()}, and this rank computes on {device.name}; leave "
            "out queue, or choose the ranks' devices: xpulab run --devices"
        )


def _like(X: Any, result: object) -> Any:
    """Return results with one entry per row as arrays of the same kind as X, on the queue of X."""
    module = kind_of(X)
    if module is None:
        return result
    if isinstance(result, tuple):
        return tuple(_like(X, each) for each in result)
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "biuf":
        return result
    return module.asarray(result, usm_type=X.usm_type, sycl_queue=X.sycl_queue)


@contextlib.contextmanager
def _joined(
    here: ProgramRanks,
    estimator: Proxy,
    method: str,
    signature: inspect.Signature,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Iterator[inspect.BoundArguments]:
    """Check that all ranks pass the same kinds of arguments, and replace arrays by handles for the rows of all ranks.

    Raises
    ------
    ValueError
        If the ranks called different methods, or passed different parameters, columns or dtypes.
    """
    bound = signature.bind(*args, **kwargs)
    given = bound.arguments
    name = next((name for name in _ROWS if name in given), None)
    if name is not None and _get_output_config("transform", estimator)["dense"] != "default":
        raise ValueError(
            "the output is set to data frames, and estimators of xpulab.spmd return arrays; type: "
            "set_output(transform='default')"
        )
    facts = {"methods": f"{type(estimator).__name__}.{method}"}
    arrays: dict[str, np.ndarray[Any, Any] | dpnp.ndarray | usm_ndarray] = {}
    columns = None
    if name is not None and given[name] is not None:
        columns = getattr(given[name], "columns", None)
        arrays[name] = checked(given[name], name)
        n = arrays[name].shape[0]
        for other in _ALIGNED:
            if given.get(other) is not None and np.ndim(value := on_host(given[other])):
                arrays[other] = _aligned(value, other, n)
        for key, array in arrays.items():
            numbers = array.dtype.kind in "biuf"
            facts[f"shapes of a row of {key}"] = str(array.shape[1:])
            facts[f"dtypes of {key}"] = str(array.dtype) if numbers else "no numbers"
        facts["names of columns"] = "none" if columns is None else str(list(columns))
    facts["arguments"] = ", ".join(sorted(arrays))
    plain = {key: value for key, value in given.items() if key != "self" and key not in arrays}
    for key, value in {**estimator.get_params(deep=False), **plain}.items():
        facts[f"values of {key}"] = _value(value)
    draws = "random_state" in estimator.get_params(deep=False) and estimator.random_state is None
    state = check_random_state(None).get_state() if draws and here.engine.rank == 0 else None
    every = here.exchange((facts, {key: len(array) for key, array in arrays.items()}, state))
    _require_same([each[0] for each in every])
    handles = {}
    for key, array in arrays.items():
        bounds = np.cumsum([0, *(each[1][key] for each in every)]).tolist()
        handles[key] = given[key] = LocalRows(here, array, bounds, key, columns if key == name else None)
    try:
        with _same_draws(every[0][2]):
            yield bound
    finally:
        for handle in handles.values():
            handle.forget()


def _aligned(value: npt.ArrayLike, name: str, n: int) -> np.ndarray[Any, Any]:
    """Check and return the targets or weights of this rank's rows.

    Raises
    ------
    ValueError
        If their number differs from the number of rows.
    """
    array = np.asarray(value)
    if array.shape[0] != n:
        raise ValueError(f"Found input variables with inconsistent numbers of samples: X {n}, {name} {array.shape[0]}")
    return array


@contextlib.contextmanager
def _same_draws(state: tuple[object, ...] | None) -> Iterator[None]:
    """Open a context in which random_state=None draws the same on all ranks, from the generator of rank 0."""
    if state is None:
        yield
        return
    random = check_random_state(None)
    before = random.get_state()
    random.set_state(state)
    try:
        yield
    finally:
        if ranks().engine.rank:
            random.set_state(before)


def _value(value: object) -> str:
    """Return a text that is the same on two ranks only if they passed the same value."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)
    name = getattr(value, "__qualname__", None) or type(value).__name__
    try:
        return f"{name} {joblib.hash(on_host(value))}"
    except Exception:  # it has no hash: a function of a cell, for example
        return name


def _require_same(every: list[dict[str, str]]) -> None:
    """Raise the same error on all ranks if they passed different things. The message names the things and the ranks."""
    for name in dict.fromkeys(key for facts in every for key in facts):
        groups: dict[str, list[int]] = {}
        for rank, facts in enumerate(every):
            groups.setdefault(facts.get(name, "none"), []).append(rank)
        if len(groups) > 1:
            shown = "; ".join(f"{value} (rank {core_ranges(of_rank)})" for value, of_rank in groups.items())
            raise ValueError(
                f"the ranks passed different {name}: {shown}; expected the same on all ranks, each with its own rows"
            )
