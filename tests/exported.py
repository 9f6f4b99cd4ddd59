"""Every estimator that xpulab exports, so that tests of all of them take up a new one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import xpulab
from xpulab.estimator.proxy import Proxy

__all__ = ["exported"]


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
    return found
