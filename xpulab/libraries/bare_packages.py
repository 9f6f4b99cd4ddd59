"""Packages of which a process needs single modules: their own code, which imports much more, waits until it is needed.

ipyparallel imports its clients, and jupyter_client its managers of kernels. Neither an engine nor the controller uses
them, and their imports took a third of the processor time of the controller's start.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["bare"]


class _Bare(ModuleType):
    """A package whose own code runs when somebody asks for a name that is none of its modules, and not in `_homes`."""

    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if home := self._homes.get(name):
            return getattr(importlib.import_module(f"{self.__name__}.{home}"), name)
        try:
            return importlib.import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"{self.__name__}.{name}":
                raise
        self.__class__ = ModuleType  # type: ignore[assignment]
        del self._homes
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def bare(package: str, **homes: str) -> None:
    """Have modules of a package be imported without the code of the package itself.

    Parameters
    ----------
    package : str
        Its name. A package that this process has imported stays as it is.
    **homes : str
        Names that others import from the package -> its modules that have them.
    """
    if package not in sys.modules and (spec := find_spec(package)) is not None:
        sys.modules[package] = module = module_from_spec(spec)
        module.__class__ = _Bare
        vars(module)["_homes"] = homes
