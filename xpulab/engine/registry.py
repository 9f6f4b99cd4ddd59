"""The tasks that a rank can run: the decorator `task` registers a function for each.

The algorithms are imported, and so registered, at the first of their tasks, or when the engine has been idle for a
while: an engine starts a fifth sooner without them, and one that runs only the user's code does not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

__all__ = ["METRIC_NAMES", "TASKS", "later", "look_for", "register", "task"]

_Function = Callable[..., Mapping[str, object]]
_Registered = TypeVar("_Registered", bound=_Function)

#: Name of a task -> the function that runs on every rank. The decorator `task` adds entries.
TASKS: dict[str, _Function] = {}

#: Name of a task -> names of the metrics of its iterations; the task minimises or maximises the first one.
METRIC_NAMES: dict[str, tuple[str, ...]] = {}


_later: list[Callable[[], None]] = []


def later(import_modules: Callable[[], None]) -> Callable[[], None]:
    """Have `register` call a function, once, that imports modules with further tasks."""
    _later.append(import_modules)
    return import_modules


def register() -> None:
    """Register all tasks."""
    while _later:
        _later.pop()()


def look_for(name: str) -> None:
    """Register all tasks if there is none of this name."""
    if name not in TASKS:
        register()


def task(name: str, metrics: tuple[str, ...] = ()) -> Callable[[_Registered], _Registered]:
    """Register a function as a task. The function gets the `Task` and the payload as keywords, and returns a dict.

    Parameters
    ----------
    name : str
        Name with which the notebook asks for the task.
    metrics : tuple of str
        Names of the metrics of its iterations; it minimises or maximises the first one. If the result has a
        ``history``, each entry consists of run, iteration, these metrics, and seconds.
    """

    def register(function: _Registered) -> _Registered:
        TASKS[name] = function
        METRIC_NAMES[name] = metrics
        return function

    return register
