"""Says what to import instead of a name that xpulab does not have.

Python looks for a module of the name before it says that `import xpulab.svm`, or `from xpulab.metrics import f1_score`,
cannot be done. The finder of this module is the last one that it asks.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

__all__ = ["Finder", "advice", "install"]


class Finder:
    """Finds no module; instead it raises an ImportError that says what to import."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise ImportError for a public name in a package of xpulab, if there is anything to say about it."""
        package, _, missing = name.rpartition(".")
        if f"{package}.".startswith("xpulab.") and not missing.startswith("_") and (said := advice(package, missing)):
            # Python hides a ModuleNotFoundError with the name that it looks for, and raises its own error.
            raise (ModuleNotFoundError if package == "xpulab" else ImportError)(said)


def install() -> None:
    """Ask a `Finder` after all other finders. Repeated calls do nothing."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())


def advice(package: str, missing: str) -> str:
    """Return a text on a name that a package of xpulab does not have; empty if there is nothing to say about it."""
    theirs = _of_scikit_learn(package)
    if package == "xpulab" and _exists(f"sklearn.{missing}"):
        return (
            f"xpulab has no module {missing}; scikit-learn's works on arrays: import sklearn.{missing}. Rows on the "
            "engines become an array with .gather()"
        )
    if theirs is not None and hasattr(theirs, missing):
        return (
            f"{package} has no {missing}; scikit-learn's works on arrays: from {theirs.__name__} import {missing}. "
            "Rows on the engines become an array with .gather()"
        )
    meant = _meant(package, missing, theirs)
    return f"{package} has no {missing}; did you mean: {meant}" if meant else ""


def _meant(package: str, missing: str, theirs: ModuleType | None) -> str:
    """Return the import that was meant; empty if no name is similar."""
    own = importlib.import_module(package)
    root = "xpulab.spmd" if f"{package}.".startswith("xpulab.spmd.") else "xpulab"
    names = dict.fromkeys(getattr(own, "__all__", dir(own)), package)  # dir: those of `__getattr__`
    if package == root:
        names |= dict.fromkeys(_modules(root), "")
    for candidates in (names, {name: home for home in _modules(root) for name in _all_of(f"{root}.{home}")}):
        if near := _nearest(missing, candidates):
            home = candidates[near]
            home = home if home.startswith("xpulab") or not home else f"{root}.{home}"
            return f"from {home} import {near}" if home else f"import {root}.{near}"
    if theirs is not None and (near := _nearest(missing, _all_of(theirs.__name__))):
        return f"from {theirs.__name__} import {near}, which works on arrays"
    return ""


def _nearest(missing: str, names: Iterable[str]) -> str:
    """Return the name that is most similar, with the same letters in another case first; empty if none is similar."""
    by_case = {name.lower(): name for name in names}
    near = difflib.get_close_matches(missing.lower(), by_case, 1, 0.75)
    return by_case[near[0]] if near else ""


def _modules(root: str) -> list[str]:
    """Return the modules of xpulab, or of its `spmd`, that have the name of one of scikit-learn, and those beside."""
    found = (module.name for module in pkgutil.iter_modules(importlib.import_module(root).__path__))
    return [name for name in found if name == "basic_statistics" or _exists(f"sklearn.{name}")]


def _all_of(module: str) -> list[str]:
    return list(getattr(importlib.import_module(module), "__all__", []))


def _of_scikit_learn(package: str) -> ModuleType | None:
    """Return scikit-learn's module of the same name; None if there is none."""
    name = package.replace("xpulab.", "sklearn.", 1)
    return importlib.import_module(name) if package.count(".") == 1 and _exists(name) else None


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
