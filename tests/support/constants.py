"""Other values for the constants of a module, such as a limit that few rows reach."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import xpulab

__all__ = ["constants", "constants_here"]


@contextlib.contextmanager
def constants(cluster: xpulab.XPUCluster, module: str, **values: Any) -> Iterator[None]:
    """Give constants of a module these values on every engine meanwhile."""
    usual = cluster.run(_given, module, values)[0]
    try:
        yield
    finally:
        cluster.run(_given, module, usual)


@contextlib.contextmanager
def constants_here(module: str, **values: Any) -> Iterator[None]:
    """Give constants of a module these values in this process meanwhile."""
    usual = _given(None, module, values)
    try:
        yield
    finally:
        _given(None, module, usual)


def _given(task: Any, module: str, values: dict[str, Any]) -> dict[str, Any]:
    """Change the constants of this process, such as an engine, and return their values before."""
    names = vars(importlib.import_module(module))
    usual = {name: names[name] for name in values}
    names.update(values)
    return usual
