"""The variables of cells on this rank: their names, types, shapes and bytes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from xpulab.engine.engine import Task
from xpulab.engine.registry import task
from xpulab.sharing.variables import GIVEN, Variable

__all__ = ["described", "names"]

_COMPARED = 16 << 20  # largest number of bytes of an array whose values are compared; a rank reads them in 20 ms
_PLAIN = (bool, int, float, complex, str, bytes, type(None))  # types whose texts tell whether values are the same


@task("names")
def names(task: Task) -> dict[str, object]:
    """Describe the variables of this rank, and the rows that all clients may use."""
    return {
        "variables": described(task.engine.namespace),
        "rows": list(task.engine.descriptions.values()),
    }


def described(namespace: Mapping[str, object]) -> list[Variable]:
    """Describe variables that a user's code has made, in the order of their names, without modules."""
    return [
        _described(name, namespace[name])
        for name in sorted(namespace)
        if not name.startswith("_") and name not in GIVEN and not isinstance(namespace[name], ModuleType)
    ]


def _described(name: str, value: object) -> Variable:
    """Describe one variable. Its class may be the user's, whose attributes may raise any exception."""
    kind = type(value)
    words = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    shape: tuple[int, ...] = ()
    nbytes = sys.getsizeof(value, 0) if kind.__module__ == "builtins" else object.__sizeof__(value)
    if not isinstance(value, type):
        try:
            shape = tuple(int(n) for n in getattr(value, "shape", ()))
            if getattr(value, "dtype", None) is not None:
                words += f" of {value.dtype}"  # type: ignore[attr-defined]
            if hasattr(value, "memory_usage"):  # a table of pandas
                nbytes = int(np.sum(value.memory_usage(index=True)))
            elif isinstance(held := getattr(value, "nbytes", None), int):
                nbytes = held
        except Exception:
            shape = ()
    return Variable(name, words, shape, nbytes, _digest(value))


def _digest(value: object) -> str:
    """Return a text that tells whether values are the same on two ranks; empty if this is not known."""
    if type(value) in _PLAIN:
        text = value if isinstance(value, bytes) else repr(value).encode()
        return hashlib.blake2b(text, digest_size=16).hexdigest()
    if type(value) is np.ndarray and not value.dtype.hasobject and value.nbytes <= _COMPARED:
        return hashlib.blake2b(np.ascontiguousarray(value).view(np.uint8).data, digest_size=16).hexdigest()
    return ""
