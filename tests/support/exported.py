"""Every estimator that xpulab exports, so that tests of all of them take up a new one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import xpulab
from xpulab.estimator.proxy import Proxy
from xpulab.preprocessing import TargetEncoder

__all__ = [
    "FEW_TREES",
    "FORESTS",
    "exported",
    "numbers_of",
    "outcome",
    "rows_for",
    "targets_for",
    "theirs_of",
    "with_known",
]

#: Beginnings of the names of the forests whose trees are not those of scikit-learn.
FORESTS = ("RandomForest", "ExtraTrees")
#: Parameters of the classes whose many trees take most of the time of a fit, and one of whose default is warned.
FEW_TREES: dict[str, dict[str, Any]] = {
    "HDBSCAN": {"copy": True},  # scikit-learn 1.9 warns that it will be the default
    **{f"HistGradientBoosting{kind}": {"max_iter": 8} for kind in ("Classifier", "Regressor")},
    **{f"{forest}{kind}": {"n_estimators": 3} for forest in FORESTS for kind in ("Classifier", "Regressor")},
}


def exported() -> list[type]:
    """Return every estimator that the packages of xpulab export."""
    packages = (module.name for module in pkgutil.iter_modules(xpulab.__path__) if module.ispkg)
    found = []
    for package in packages:
        if package in ("torch", "spmd"):
            continue
        module = importlib.import_module(f"xpulab.{package}")
        classes = (getattr(module, name) for name in getattr(module, "__all__", []))
        found += [each for each in classes if inspect.isclass(each) and issubclass(each, Proxy)]
    found.remove(TargetEncoder)  # the only transformer that needs targets; tests/tables has its tests
    return found


def theirs_of(kind: Any) -> Any:
    """Return scikit-learn's class; None if there is none."""
    try:
        return kind.sklearn_class()
    except TypeError:
        return None


def outcome(call: Callable[..., Any], *arguments: Any, **given: Any) -> Any:
    """Return what a call returns, or its exception; nothing is warned of."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return call(*arguments, **given)
        except Exception as error:
            return error


def with_known(kind: Any, **given: Any) -> Any:
    """Return an estimator with those of the parameters that its class has, and with few trees."""
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in given.items() if name in known} | FEW_TREES.get(kind.__name__, {}))


def rows_for(kind: Any, X: np.ndarray) -> np.ndarray:
    """Return rows that an estimator takes: without signs if it counts."""
    return np.abs(X) if kind().__sklearn_tags__().input_tags.positive_only else X


def targets_for(kind: Any, y: np.ndarray) -> np.ndarray:
    """Return targets that a regressor takes: positive if those of its distribution are."""
    return np.abs(y) + 0.5 if kind().__sklearn_tags__().target_tags.positive_only else y


def numbers_of(estimator: Any) -> dict[str, np.ndarray]:
    """Return all fitted attributes that are numbers or arrays of numbers, and those of the first tree of a forest."""
    found = {
        name: np.asarray(value) for name, value in vars(estimator).items() if isinstance(value, np.ndarray | float)
    }
    if hasattr(estimator, "estimators_"):
        tree = estimator.estimators_[0].tree_
        found |= {"tree_threshold_": tree.threshold, "tree_value_": tree.value}
    return {name: value for name, value in found.items() if name.endswith("_") and value.dtype.kind in "fiu"}
