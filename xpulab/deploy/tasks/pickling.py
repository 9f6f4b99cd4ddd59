"""Pickles a user's function for the engines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import cloudpickle

from xpulab.sharing.call_sites import is_users
from xpulab.sharing.classes import dumps

__all__ = ["by_value", "packed"]

_pickling = threading.Lock()  # which modules are pickled by value is a setting of the whole process


def packed(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Pickle a call of a function.

    Raises
    ------
    TypeError
        If the function or an argument cannot be pickled.
    """
    try:
        return by_value((function, args, kwargs), [function])
    except Exception as error:
        raise TypeError(f"run: {function!r} with its arguments cannot be sent to the engines: {error}") from error


def by_value(thing: Any, owners: Iterable[Any] | None, **options: Any) -> bytes:
    """Pickle an object for the engines.

    Parameters
    ----------
    thing : Any
    owners : iterable or None
        Functions and classes. The code of their modules is included, unless it is installed and engines can import it.
        None stands for those of all modules.
    **options : Any
        Arguments of `xpulab.sharing.classes.dumps`.
    """
    names = (
        set(sys.modules) - {"__main__", "__mp_main__"}
        if owners is None
        else {getattr(owner, "__module__", "") or "" for owner in owners}
    )
    modules = [module for name in sorted(names) if (module := sys.modules.get(name)) and _is_users(module)]
    if not modules:
        return dumps(thing, **options)
    with _pickling:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return dumps(thing, **options)
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: ModuleType) -> bool:
    """Return whether a module is a file of the user, which is not installed. A library may put other things there."""
    home = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if not isinstance(home, str) or module.__name__.partition(".")[0] == "xpulab":
        return False
    return is_users(home) and not home.startswith((sys.prefix, sys.base_prefix))
