"""Finds in the packages which of scikit-learn's classes have an estimator of xpulab, and which methods it computes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path

from xpulab.estimator.proxy import Proxy

__all__ = ["methods", "pairs"]


@functools.cache
def pairs() -> dict[type, type]:
    """Return scikit-learn's classes and, for each, the estimator of xpulab with the same name, module and results."""
    found = {}
    for package in _packages():
        module = importlib.import_module(f"xpulab.{package}")
        for name in module.__all__:
            ours = getattr(module, name)
            theirs = _theirs(ours)
            if theirs is not None:
                found[theirs] = ours
    return found


def _packages() -> list[str]:
    """Return the packages of xpulab that have the name of a package of scikit-learn."""
    ours = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]) if module.ispkg)
    return sorted(name for name in ours if importlib.util.find_spec(f"sklearn.{name}") is not None)


def _theirs(ours: object) -> type | None:
    if not (isinstance(ours, type) and issubclass(ours, Proxy)):
        return None
    try:
        theirs = ours.sklearn_class()
    except TypeError:  # scikit-learn has no class for it
        return None
    return theirs if theirs.__name__ == ours.__name__ else None


def methods(theirs: type, ours: type) -> list[str]:
    """Return the public methods of scikit-learn's class that xpulab's class computes, in alphabetical order."""
    written = {
        name
        for each in ours.__mro__
        if each.__module__.startswith("xpulab.")
        for name, value in vars(each).items()
        # `Interruptible` also puts methods of scikit-learn's into the class.
        if inspect.isfunction(value) and value.__module__.startswith("xpulab.") and not name.startswith("_")
    }
    return sorted(name for name in written if inspect.isfunction(inspect.getattr_static(theirs, name, None)))
