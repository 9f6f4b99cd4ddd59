"""Constructors with the parameters of `sklearnex.spmd`, which has some that xpulab's estimators do not have."""

from __future__ import annotations

import functools
import inspect
from numbers import Integral
from typing import Any

from xpulab._sklearn import Interval, StrOptions
from xpulab.estimator.proxy import Proxy

__all__ = ["attributes_of", "meanings"]

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


def attributes_of(proxy: type[Proxy]) -> dict[str, object]:
    """Return the attributes of a class whose constructor takes what that of `sklearnex.spmd` takes.

    Parameters
    ----------
    proxy : type
        The estimator, whose subclass gets the attributes. There are none if its constructor takes everything.
    """
    more = _MORE.get(proxy.__name__, {})
    by_position = proxy.__name__ in _BY_POSITION
    if not more and not by_position:
        return {}
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
    return {"__init__": constructor, "_parameter_constraints": rules}


def meanings(proxy: type[Proxy]) -> str:
    """Return a sentence for each parameter that changes nothing here, for the documentation."""
    said = [f"`{name}` is accepted for sklearnex: {_MEANINGS[name]}." for name in _MORE.get(proxy.__name__, {})]
    return "".join(f"{sentence}\n" for sentence in said)
