"""The algorithms that the ranks run together, one per file."""

from __future__ import annotations

import importlib
import pkgutil

from xpulab.engine.registry import later

__all__ = ["register_all"]


@later
def register_all() -> None:
    """Import each module of this package, which adds its tasks. A new algorithm is a new file, in no list."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
