"""`partial_fit` on ranks: each adds its own batches, however many, and the first look at a result joins the ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from xpulab.estimator.config import get_config
from xpulab.estimator.proxy import Proxy
from xpulab.spmd._rank.local import kind_of, like
from xpulab.spmd._rank.ranks import ranks

__all__ = ["JOINS", "SINCE", "add", "join", "look"]

#: Estimators that can join what the ranks have seen.
JOINS = (
    *("IncrementalBasicStatistics", "IncrementalEmpiricalCovariance", "IncrementalPCA"),
    *("IncrementalLinearRegression", "IncrementalRidge", "MaxAbsScaler", "MinMaxScaler", "StandardScaler"),
)
#: Attribute with an estimator of this rank alone, which has seen the batches since the last join; the results from
#: before them; and an array of the kind that the results become.
SINCE = "_since"


def add(estimator: Any, proxy: type[Proxy], X: Any, **arguments: Any) -> None:
    """Add a batch of this rank's rows. Until the ranks join, the estimator has no results.

    Parameters
    ----------
    estimator : Proxy
        The estimator of all ranks.
    proxy : type
        Class of the estimator of this rank alone.
    X : LocalRows
    **arguments : Any
        Further arguments of `partial_fit`.
    """
    own: Any = vars(estimator)
    if SINCE not in own:
        estimator._validate_params()
        given = estimator.get_params(deep=False)
        alone: Any = proxy(**{name: given[name] for name in proxy._get_param_names() if name != "n_components"})
        own[SINCE] = alone, {name: own.pop(name) for name in list(own) if name.endswith("_")}, None
    alone, before, _ = own[SINCE]
    if len(X):
        alone.partial_fit(X, **arguments)
    if kind_of(X.array) is not None and get_config()["array_api_dispatch"]:
        own[SINCE] = alone, before, X.array[:0]


def join(estimator: Any) -> None:
    """Join the batches of all ranks, if there are some that have not been joined. All ranks call this together.

    Raises
    ------
    ValueError
        If the ranks have seen different numbers of columns or targets.
    """
    own = vars(estimator)
    if SINCE not in own:
        return
    here = ranks()

    def work() -> None:
        alone, before, kind = own[SINCE]
        mine = {name: value for name, value in vars(alone).items() if name != "report_"}
        every = [SimpleNamespace(**each) for each in here.exchange(mine) if "n_samples_seen_" in each]
        shapes = {(each.n_features_in_, getattr(each, "_n_targets", ())) for each in every}
        if len(shapes | {(before.get("n_features_in_", n), targets) for n, targets in shapes}) > 1:
            raise ValueError(f"the batches have different columns and targets: {sorted(shapes)}; expected the same")
        del own[SINCE]
        own.update(before)
        for name in ("n_features_in_", "feature_names_in_"):
            if every and name not in own and hasattr(every[0], name):
                own[name] = getattr(every[0], name)
        if every:
            estimator._absorb(every)
        own.update({name: like(kind, value) for name, value in own.items() if name.endswith("_")})

    if here.busy:
        work()
    else:
        here.together(f"the results of {type(estimator).__name__}", work)


def look(estimator: Any, name: str) -> Any:
    """Return an attribute that is not there: a result, which the ranks have not joined yet."""
    if SINCE in vars(estimator) and name.endswith("_") and not name.startswith("_"):
        join(estimator)
        return getattr(estimator, name)
    raise AttributeError(f"{type(estimator).__name__!r} object has no attribute {name!r}", name=name, obj=estimator)
