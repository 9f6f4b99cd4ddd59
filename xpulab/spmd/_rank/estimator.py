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
from xpulab.estimator.config import get_config
from xpulab.estimator.interrupted import FITS
from xpulab.estimator.proxy import Proxy
from xpulab.estimator.scoring import ScoredHere
from xpulab.exceptions import UsageError
from xpulab.spmd._rank.batches import JOINS, SINCE, add, join, look
from xpulab.spmd._rank.constructors import attributes_of, meanings
from xpulab.spmd._rank.local import LocalRows, checked, kind_of, like, on_host
from xpulab.spmd._rank.ranks import ProgramRanks, ranks, require_same

if TYPE_CHECKING:
    import dpctl
    import dpnp
    from dpctl.tensor import usm_ndarray

__all__ = ["estimators_of", "on_ranks"]

_ROWS = ("X", "X_test")
_BY_ROW = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "inverse_transform")
#: Packages whose fitted estimators have all that the methods in `_BY_ROW` need on each rank.
_FITTED_ALONE = ("decomposition", "linear_model")
_ALIGNED = ("y", "sample_weight")  # arguments with one entry per row
_HOSTED = ("error_norm", "get_covariance", "get_precision", "to_sklearn")  # they read attributes, and take no rows


def estimators_of(package: ModuleType, **others: type[Proxy]) -> tuple[list[str], Callable[[str], Any], list[str]]:
    """Return the names of the estimators of a package, and a function that makes the one with a name for the ranks.

    They are a module's `__all__` and `__getattr__`. The third value is an empty `__path__`: with it, Python looks for
    modules of names that are missing, and `xpulab.missing` says what was meant.

    Parameters
    ----------
    package : module
        A package with estimators of xpulab in its `__all__`.
    **others : type
        Estimators that take the place of those of the same name.
    """
    proxies = {name: getattr(package, name) for name in package.__all__}
    proxies = {
        name: each for name, each in proxies.items() if isinstance(each, type) and issubclass(each, Proxy)
    } | others

    @functools.cache
    def made(name: str) -> Any:
        if name not in proxies:
            home = package.__name__.replace("xpulab.", "xpulab.spmd.", 1)
            raise AttributeError(f"module {home!r} has no attribute {name!r}")
        return on_ranks(proxies[name], getattr(package, name))

    return sorted(proxies), made, []


def on_ranks(proxy: type[Proxy], named: type[Proxy] | None = None) -> type[Proxy]:
    """Return the estimator of `sklearnex.spmd` for one of xpulab's estimators.

    Every method that takes rows is called on all ranks, and each rank passes its own rows. A result with one entry per
    row has the entries of the rank's own rows; all other results are the same on all ranks.

    Parameters
    ----------
    proxy : type
        The estimator.
    named : type, optional
        The estimator that has its name and its documentation.

    Returns
    -------
    type
        A subclass, with the same parameters and attributes.
    """
    named = named or proxy
    home = f"xpulab.spmd.{named.__module__.split('.')[1]}"
    namespace: dict[str, object] = {"__doc__": _described(named), "__module__": home}
    namespace |= attributes_of(proxy, named.__name__)
    for name, method in inspect.getmembers(proxy, inspect.isfunction):
        parameters = list(inspect.signature(method).parameters)
        takes_rows = len(parameters) > 1 and parameters[1] in _ROWS
        if name in _HOSTED:
            namespace[name] = _hosted(method)
        if name.startswith("_") or not (takes_rows or name == "resume"):
            continue
        ours = method.__module__.startswith("xpulab.")
        if name == "score" and (not ours or issubclass(proxy, ScoredHere)):
            namespace[name] = _score
        elif name == "partial_fit" and named.__name__ in JOINS:
            namespace[name], namespace["__getattr__"] = _batches(method, proxy), look
        else:
            namespace[name] = _own(method) if ours else _theirs(method)
    namespace["__getstate__"] = _hosted_state(proxy)
    return type(named.__name__, (proxy,), namespace)


def _hosted_state(proxy: type[Proxy]) -> Callable[[Proxy], object]:
    """Return a method for what is pickled: NumPy arrays, which need no device."""

    def state(self: Proxy) -> object:
        with _numpy_attributes(self):
            return dict(proxy.__getstate__(self))

    return state


def _described(proxy: type[Proxy]) -> str:
    """Return the documentation of a proxy's estimator for the ranks."""
    _, _, rest = (inspect.getdoc(proxy) or "").partition("\n\n")
    public = proxy.__module__.partition("._")[0]
    return (
        f"`{public}.{proxy.__name__}` for code that runs on the ranks, each of which "
        "passes its own rows.\n\n"
        "Methods that take rows are called on all ranks, and take `queue`, as in sklearnex.spmd. X, y and the weights "
        "are\nNumPy, dpnp or dpctl arrays, with any number of rows. A result with one entry per row has the entries of "
        "the rank's\nrows, in an array of the kind of X. Attributes are NumPy arrays, or under "
        "``xpulab.config_context(array_api_dispatch=True)``\narrays of the kind of X. They are the same on all ranks, "
        f"except those\nwith one entry per row.\n{meanings(proxy)}\n{rest}"
    )


def _with_queue(method: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a method with `queue` after the arguments of `sklearnex.spmd`; `out` is none of these."""
    signature = inspect.signature(method)
    named = [p.replace(kind=p.KEYWORD_ONLY) if p.name == "out" else p for p in signature.parameters.values()]
    queue = inspect.Parameter("queue", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return signature.replace(parameters=sorted([*named, queue], key=lambda p: p.kind))


def _public(
    method: Callable[..., Any], call: Callable[[Proxy, inspect.BoundArguments], Any], alone: bool = False
) -> Callable[..., Any]:
    """Return a method with a method's name and documentation that checks `queue`, and calls a function on all ranks.

    With `alone`, each rank calls it for itself, unless it is a part of a call of all ranks.
    """
    signature = _with_queue(method)
    starts, adds = method.__name__ in FITS, method.__name__ == "partial_fit"

    @functools.wraps(method)
    def public(self: Proxy, *args: object, **kwargs: object) -> Any:
        given = signature.bind(self, *args, **kwargs)
        queue = given.arguments.pop("queue", None)
        if isinstance(_rows_of(given), LocalRows):  # another method of xpulab calls this one
            return method(*given.args, **given.kwargs)
        here = ranks()
        if starts and not adds:
            self.__dict__.pop(SINCE, None)
        elif not adds:
            join(self)
        if alone and not here.busy:
            here = here.alone

        def work() -> Any:
            _require_queue(here, queue)
            with _numpy_attributes(self, _rows_of(given) if starts else None):
                return call(self, given)

        return work() if here.busy else here.together(f"{type(self).__name__}.{method.__name__}", work)

    public.__signature__ = signature  # type: ignore[attr-defined]
    return public


def _hosted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method without rows: it computes with NumPy, and returns arrays of the kind of the attributes."""

    @functools.wraps(method)
    def call(self: Proxy, *args: object, **kwargs: object) -> Any:
        join(self)
        X = next((value for value in vars(self).values() if kind_of(value) is not None), None)
        with _numpy_attributes(self):
            return like(X, method(self, *map(on_host, args), **kwargs))

    return call


@contextlib.contextmanager
def _numpy_attributes(estimator: Proxy, X: Any = None) -> Iterator[None]:
    """Open a context in which all attributes of an estimator are NumPy arrays.

    After a fit with X under ``array_api_dispatch=True``, fitted attributes are arrays of the kind of X.
    """
    own: Any = vars(estimator)
    devices = {name: value for name, value in own.items() if kind_of(value) is not None}
    hosts = {name: on_host(value) for name, value in devices.items()}
    own.update(hosts)
    try:
        yield
    finally:
        if X is not None and kind_of(X) is not None and get_config()["array_api_dispatch"]:
            own.update({name: like(X, value) for name, value in own.items() if name.endswith("_")})
        own.update({name: devices[name] for name, value in hosts.items() if own.get(name) is value})


def _rows_of(given: inspect.BoundArguments) -> Any:
    """Return the rows among the arguments of a call; None if there are none."""
    return next((given.arguments[name] for name in _ROWS if name in given.arguments), None)


def _own(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that xpulab defines: it runs on the engines, and gets handles for the rows of all ranks."""

    def call(self: Proxy, given: inspect.BoundArguments) -> Any:
        here, X = ranks(), _rows_of(given)
        none = here is here.alone and np.ndim(X) == 2 and not len(X)
        if none:  # a rank alone needs a row
            given.arguments["X"] = np.zeros((1, X.shape[1]), X.dtype)
        with _joined(here, self, given):
            found = method(*given.args, **given.kwargs)
        return like(X, found[:0] if none else found)

    alone = method.__name__ in _BY_ROW and method.__module__.split(".")[1] in _FITTED_ALONE
    return _public(method, call, alone)


def _batches(method: Callable[..., Any], proxy: type[Proxy]) -> Callable[..., Any]:
    """Wrap `partial_fit`: each rank adds its own batches."""

    def call(self: Proxy, given: inspect.BoundArguments) -> Proxy:
        with _joined(ranks(), self, given):
            add(self, proxy, **{name: value for name, value in given.arguments.items() if name != "self"})
        return self

    return _public(method, call, alone=True)


def _theirs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that scikit-learn defines: it computes with this rank's rows, and may call xpulab's methods."""

    def call(self: Proxy, given: inspect.BoundArguments) -> Any:
        X = _rows_of(given)
        for name, value in given.arguments.items():
            if name in (*_ROWS, *_ALIGNED):
                given.arguments[name] = on_host(value)
        rows = given.arguments.get("X")
        none = method.__name__ in _BY_ROW and isinstance(rows, np.ndarray) and rows.ndim == 2 and not len(rows)
        if none and rows is not None:  # scikit-learn needs a row, and all ranks must call xpulab's methods together
            given.arguments["X"] = np.zeros((1, rows.shape[1]), rows.dtype)
        found = method(*given.args, **given.kwargs)
        return like(X, found[:0] if none else found)

    return _public(method, call)


def _score(
    self: Proxy, X: object, y: object, sample_weight: object = None, queue: dpctl.SyclQueue | None = None
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

    return work() if here.busy else here.together(f"{type(self).__name__}.score", work)


def _require_queue(here: ProgramRanks, queue: dpctl.SyclQueue | None) -> None:
    """Raise an error if the queue belongs to another device than this rank's device."""
    device = here.engine.device
    if queue is not None and queue.sycl_device != device.queue.sycl_device:
        raise UsageError(
            f"the queue belongs to {queue.sycl_device.name.strip()}, and this rank computes on {device.name}; leave "
            "out queue, or choose the ranks' devices: xpulab run --devices"
        )


@contextlib.contextmanager
def _joined(here: ProgramRanks, estimator: Proxy, bound: inspect.BoundArguments) -> Iterator[None]:
    """Check that all ranks pass the same kinds of arguments, and replace arrays by handles for the rows of all ranks.

    Raises
    ------
    ValueError
        If the ranks passed different parameters, columns or dtypes.
    """
    given = bound.arguments
    name = next((name for name in _ROWS if name in given), None)
    if name is not None and _get_output_config("transform", estimator)["dense"] != "default":
        raise ValueError(
            "the output is set to data frames, and estimators of xpulab.spmd return arrays; type: "
            "set_output(transform='default')"
        )
    facts: dict[str, str] = {}
    arrays: dict[str, np.ndarray[Any, Any] | dpnp.ndarray | usm_ndarray] = {}
    columns = None
    if name is not None and given[name] is not None:
        columns = getattr(given[name], "columns", None)
        arrays[name] = checked(given[name], name, one_d=estimator._one_d)
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
    for fact in dict.fromkeys(name for each in every for name in each[0]):
        require_same(fact, [each[0].get(fact, "none") for each in every])
    handles = {}
    for key, array in arrays.items():
        bounds = np.cumsum([0, *(each[1][key] for each in every)]).tolist()
        handles[key] = given[key] = LocalRows(here, array, bounds, key, columns if key == name else None)
    try:
        with _same_draws(every[0][2]):
            yield
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
