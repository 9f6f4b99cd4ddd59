"""What the estimators of `sklearnex.spmd` have beyond those of xpulab: parameters, and hyperparameters of methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from xpulab._sklearn import Interval, StrOptions
from xpulab.estimator.proxy import Proxy

__all__ = ["Hyperparameters", "attributes_of", "meanings"]

_JOBS: dict[str, tuple[Any, list[Any]]] = {"n_jobs": (None, [Integral, None])}
_TREES: dict[str, tuple[Any, list[Any]]] = {
    "max_bins": (256, [Interval(Integral, 2, None, closed="left")]),
    "min_bin_size": (1, [Interval(Integral, 1, None, closed="left")]),
    "local_trees_mode": (False, ["boolean"]),
}
#: Estimator -> its parameters beyond those of xpulab: their defaults, and what scikit-learn's checks accept.
_MORE = {
    **dict.fromkeys(("BasicStatistics", "IncrementalBasicStatistics", "KMeans", "PCA", "MaxAbsScaler"), _JOBS),
    **dict.fromkeys(("EmpiricalCovariance", "IncrementalEmpiricalCovariance"), _JOBS),
    **dict.fromkeys(("RandomForestClassifier", "RandomForestRegressor"), _TREES),
    "IncrementalPCA": {"svd_solver": ("covariance_eigh", [StrOptions({"covariance_eigh", "full"})]), **_JOBS},
}
#: Estimators whose parameters may all be passed by position.
_BY_POSITION = ("LinearRegression", "NearestNeighbors")
#: What a parameter stands for here, for the documentation.
_MEANINGS = {
    "n_jobs": "the ranks compute",
    "max_bins": "a column has as many bins as below",
    "min_bin_size": "bins may have any number of rows",
    "local_trees_mode": "all trees are grown from the rows of all ranks",
    "svd_solver": "the result is exact",
}

_BLOCKS = {"cpu_max_cols_batched": 4096, "cpu_small_rows_max_cols_batched": 1024, "cpu_small_rows_threshold": 10000}
_PRODUCTS = ("fit", {"cpu_grain_size": 1, "cpu_macro_block": 140, **_BLOCKS})
_LINES = ("fit", {"cpu_macro_block": 8192, "gpu_macro_block": 16384, **_BLOCKS})
_FORESTS = {
    "block_size": 32,
    "min_number_of_rows_for_vect_seq_compute": 32,
    "min_trees_for_threading": 100,
    "scale_factor_for_vect_parallel_compute": 0.3,
}
#: Estimator -> the method that has hyperparameters in sklearnex, and their defaults.
_OF: dict[str, tuple[str, Mapping[str, float]]] = {
    **dict.fromkeys(("EmpiricalCovariance", "PCA"), _PRODUCTS),
    **dict.fromkeys(("LinearRegression", "IncrementalLinearRegression"), _LINES),
    "RandomForestClassifier": ("predict", _FORESTS),
}


def attributes_of(proxy: type[Proxy], name: str) -> dict[str, object]:
    """Return the attributes of a class whose constructor takes what that of `sklearnex.spmd` takes.

    Parameters
    ----------
    proxy : type
        The estimator, whose subclass gets the attributes. There are none if its constructor takes everything.
    name : str
        Its name in sklearnex.
    """
    more = _MORE.get(name, {})
    by_position = name in _BY_POSITION
    if not more and not by_position:
        return _hyperparameters_of(name)
    init: Any = proxy.__init__
    signature = inspect.signature(init)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = [p.replace(kind=kind) if by_position else p for p in signature.parameters.values()]
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each[0]) for name, each in more.items()]
    whole = signature.replace(parameters=[*known, *added])

    @functools.wraps(init)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
        given = whole.bind(self, *args, **kwargs)
        given.apply_defaults()
        own = {name: given.arguments.pop(name) for name in more}
        del given.arguments["self"]
        init(self, **given.arguments)
        vars(self).update(own)

    constructor.__signature__ = whole  # type: ignore[attr-defined]
    rules = {**getattr(proxy, "_parameter_constraints", {}), **{name: each[1] for name, each in more.items()}}
    return {
        "__init__": constructor,
        "_parameter_constraints": rules,
        "_own": (*proxy._own, *more),
    } | _hyperparameters_of(name)


def meanings(proxy: type[Proxy]) -> str:
    """Return a sentence for each parameter that changes nothing here, for the documentation."""
    said = [f"`{name}` is accepted for sklearnex: {_MEANINGS[name]}." for name in _MORE.get(proxy.__name__, {})]
    return "".join(f"{sentence}\n" for sentence in said)


class Hyperparameters:
    """The hyperparameters of a method: attributes that may be set. They change nothing here.

    Parameters
    ----------
    estimator, op : str
        Names of the estimator and of its method.
    defaults : mapping of str to int or float
    """

    _owner: str

    def __init__(self, estimator: str, op: str, defaults: Mapping[str, float]) -> None:
        vars(self).update(defaults)
        vars(self)["_owner"] = f"{estimator}.{op}"

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.to_dict():
            raise ValueError(
                f"{self._owner} has no hyperparameter {name!r}; expected one of {', '.join(self.to_dict())}"
            )
        vars(self)[name] = value

    def to_dict(self) -> dict[str, float]:
        """Return the names and the numbers."""
        return {name: value for name, value in vars(self).items() if name != "_owner"}


def _hyperparameters_of(estimator: str) -> dict[str, object]:
    """Return the static methods for a class's hyperparameters; none if sklearnex has none for this estimator."""
    if estimator not in _OF:
        return {}
    op, defaults = _OF[estimator]
    now: dict[str, Hyperparameters] = {}

    def known(given: str) -> None:
        if given != op:
            raise ValueError(f"{estimator} has no hyperparameters for op={given!r}; expected {op!r}")

    def get_hyperparameters(op: str) -> Hyperparameters:
        """Return the hyperparameters of a method. They are accepted for sklearnex, and change nothing."""
        known(op)
        return now.setdefault(op, Hyperparameters(estimator, op, defaults))

    def reset_hyperparameters(op: str) -> None:
        """Set the hyperparameters of a method to their defaults."""
        known(op)
        now.pop(op, None)

    return {
        "get_hyperparameters": staticmethod(get_hyperparameters),
        "reset_hyperparameters": staticmethod(reset_hyperparameters),
    }
