"""Pickles a user's function for the engines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

__all__ = ["packed"]

_pickling = threading.Lock()  # which modules are pickled by value is a setting of the whole process


def packed(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Pickle a call of a function.

    Raises
    ------
    TypeError
        If the function or an argument cannot be pickled.
    """
    try:
        return _by_value((function, args, kwargs), function)
    except Exception as error:
        raise TypeError(f"run: {function!r} with its arguments cannot be sent to the engines: {error}") from error


def _by_value(thing: Any, function: Callable[..., Any]) -> bytes:
    """Pickle a call. Includes the code of the function's module, unless it is installed and engines can import it."""
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    home = getattr(module, "__file__", None)
    ours = module is not None and home is not None and not home.startswith((sys.prefix, sys.base_prefix))
    if not ours:
        return cloudpickle.dumps(thing)
    with _pickling:
        cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(thing)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
