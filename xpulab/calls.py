"""Finds the public calls of xpulab in which a thread is, in the frames of its stack."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

__all__ = ["called"]


def called() -> list[str]:
    """Return the public calls of xpulab in which this thread is, the innermost first: ``["KMeans.fit"]``."""
    found, frame = [], sys._getframe().f_back
    while frame is not None:
        if name := _public(frame):
            found.append(name)
        frame = frame.f_back
    return found


def _public(frame: FrameType) -> str:
    """Return the name of the public method or function whose frame this is; empty for all other code."""
    name, home = frame.f_code.co_name, frame.f_globals.get("__name__", "")
    owner = None if name.startswith("_") else frame.f_locals.get("self", frame.f_locals.get("cls"))
    if owner is None:
        package = ".".join(home.split(".")[:2])
        mine = (
            home.startswith("xpulab.")
            and name in _all_of(package)
            and _is_of(frame, getattr(sys.modules[package], name))
        )
        return f"{package.removeprefix('xpulab.')}.{name}" if mine else ""
    kind = owner if isinstance(owner, type) else type(owner)
    public = next((each for each in kind.__mro__ if each.__module__.startswith("xpulab.") and _is_public(each)), None)
    if public is None or not _is_of(frame, getattr(kind, name, None)):
        return ""
    return name if public.__name__ in _all_of("xpulab") else f"{kind.__name__}.{name}"


def _is_public(kind: type) -> bool:
    package = ".".join(kind.__module__.split(".")[:2])
    return kind.__name__ in _all_of("xpulab") or kind.__name__ in _all_of(package)


def _all_of(package: str) -> list[str]:
    """Return the public names of one of xpulab's packages; none for a module that is not a package."""
    found = sys.modules.get(package)
    return list(getattr(found, "__all__", ())) if hasattr(found, "__path__") else []


def _is_of(frame: FrameType, function: Any) -> bool:
    return getattr(inspect.unwrap(function), "__code__", None) is frame.f_code
