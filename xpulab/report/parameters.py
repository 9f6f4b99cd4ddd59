"""Plain values that describe the parameters of a call in its report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

__all__ = ["summaries"]


def summaries(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values that describe the parameters, without those that cannot be described.

    A parameter may be any object of the user, whose attributes and texts may raise any exception. A call must not fail
    because of its report.
    """
    found = {}
    for name, value in parameters.items():
        with contextlib.suppress(Exception):
            found[str(name)] = _summary(value)
    return found


def _summary(value: Any) -> Any:
    """Return a plain value that describes ``value``, without a reference to it or to its class.

    The engines get the report. They cannot import the class of a user's string or number, such as an enumeration.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    if isinstance(value, type):
        return value.__name__
    shape = getattr(value, "shape", ())
    if shape != ():
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if hasattr(value, "item"):
        scalar = value.item()
        return _summary(scalar) if type(scalar) is not type(value) else _text(scalar)
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return _text(value)


def _text(value: Any) -> str:
    text = str.__str__(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
