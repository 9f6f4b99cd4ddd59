"""Pickles classes that no module has, such as those of a cell, so that each remains one class on its journeys.

cloudpickle sends the code of such a class, and makes a class of it. Here each class has a key, too: a process that has
the class of a key takes its own. Ranks that have run the same cell give its classes the same keys.
"""

from __future__ import annotations

import io
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

__all__ = ["Pickler", "dumps", "found_by", "name_all"]

_keys: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
_copies: weakref.WeakSet[type] = weakref.WeakSet()  # classes whose code came from another process
_find: Callable[[], None] = lambda: None  # noqa: E731


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with the keys of classes."""

    def reducer_override(self, thing: Any) -> Any:
        """As cloudpickle's; the other process makes a class of the code only if it does not have the class."""
        reduced = super().reducer_override(thing)
        if not isinstance(thing, type) or not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        make, arguments, state, _, _, fill = reduced
        if (slots := vars(thing).get("__slots__")) and isinstance(arguments[3], dict):
            arguments[3]["__slots__"] = slots  # cloudpickle sets them later, when objects already have a __dict__
        return _class_of, (_key_of(thing), make, arguments), (fill, state), None, None, _filled


def dumps(thing: object, **options: Any) -> bytes:
    """Pickle an object as `cloudpickle.dumps` does, with the same options, and with the keys of classes."""
    file = io.BytesIO()
    Pickler(file, **options).dump(thing)
    return file.getvalue()


def found_by(find: Callable[[], None]) -> None:
    """Call `find` when a class without a key is pickled, or one with an unknown key arrives; it calls `name_all`."""
    global _find
    _find = find


def name_all(namespace: Mapping[str, object], origin: str) -> None:
    """Give keys to the classes among variables that have none.

    Parameters
    ----------
    namespace : mapping of str to object
        The variables of cells.
    origin : str
        The code that has defined the classes: each process that runs it has the same text.
    """
    for name, thing in sorted(dict(namespace).items()):
        if isinstance(thing, type) and thing.__module__ == "__main__" and thing not in _keys:
            key = f"{origin} {name}"
            if key not in _classes:
                _register(thing, key)
                within = {each: inner for each, inner in vars(thing).items() if _is_part(inner, thing)}
                name_all(within, key)


def _is_part(inner: object, outer: type) -> bool:
    """Return whether a class was defined in the body of another one."""
    return isinstance(inner, type) and inner.__qualname__.startswith(f"{outer.__qualname__}.")


def _register(thing: type, key: str) -> None:
    _keys[thing], _classes[key] = key, thing


def _key_of(thing: type) -> str:
    if thing not in _keys:
        _find()
    if thing not in _keys:
        _register(thing, uuid.uuid4().hex)
    return _keys[thing]


def _class_of(key: str, make: Callable[..., type], arguments: Any) -> type:
    """Return this process's class of a key, or a new one, without its attributes, if there is none."""
    if key not in _classes:
        _find()
    if (known := _classes.get(key)) is not None:
        return known
    thing = make(*arguments)
    _register(thing, key)
    _copies.add(thing)
    return thing


def _filled(thing: type, state: Any) -> None:
    """Set the attributes of a class as they are where it was sent. A class that was defined here keeps its own."""
    fill, attributes = state
    if thing in _copies:
        fill(thing, attributes)
