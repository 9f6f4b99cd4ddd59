"""An import hook with which dpctl, dpnp and numba-dpex find the oneAPI runtime that pip has installed.

Engines, and ranks under `xpulab run`, load the runtime themselves. In any other process, such as a rank that a plain
mpiexec has started, ``import dpctl`` would end with "libintlc.so.5: cannot open shared object file". `import xpulab`
installs the hook, which loads nothing until one of the packages is imported.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["install"]

_PACKAGES = ("dpctl", "dpnp", "numba_dpex")


class _LoadsRuntime:  # not a MetaPathFinder: the import of importlib.abc takes longer than that of xpulab
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _PACKAGES:
            return None
        oneapi: Any = importlib.import_module("xpulab.libraries.oneapi")
        why = None
        try:
            oneapi.load()
        except oneapi.OneAPIError as error:  # dpctl may find a runtime that has another origin
            why = error
        others = (finder for finder in [*sys.meta_path] if finder is not self)  # `load` may have added some
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if why is not None and spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(_explained, loader.exec_module, why)
        return spec


def _explained(execute: Callable[[ModuleType], None], why: ImportError, module: ModuleType) -> None:
    try:
        execute(module)
    except ImportError as error:
        raise type(why)(f"{module.__name__} cannot be imported ({error}): {why}") from error


def install() -> None:
    """Install the hook, once."""
    if not any(isinstance(finder, _LoadsRuntime) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LoadsRuntime())
