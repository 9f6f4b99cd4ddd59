"""Gives a user's objects the state that their copies on the engines have after a fit."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from skorch.callbacks import Callback

__all__ = ["returned"]


def returned(old: Any, new: Any, seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """Return the value that an attribute has after a fit: the old object, where users may hold it, in its new state.

    skorch changes the callbacks and the module that a user gives it. Here their copies on the engines are changed.

    Parameters
    ----------
    old, new : Any
        The value before the fit, and the copy that rank 0 has sent. Callbacks, modules, and the lists, dicts and sets
        in them, stay the objects that they were.
    seen : dict, optional
        Objects that have their new state, with this state, by their `id`.

    Returns
    -------
    Any
    """
    seen = {} if seen is None else seen
    if type(old) is not type(new) or old is new:
        return new
    if type(old) is tuple and len(old) == len(new):
        return tuple(returned(before, after, seen) for before, after in zip(old, new, strict=True))
    if not (isinstance(old, Callback | torch.nn.Module) or type(old) in (list, dict, set)):
        return new
    if id(old) in seen:
        return old if seen[id(old)][1] is new else new
    seen[id(old)] = old, new
    if type(old) is list:
        old[:] = [returned(before, after, seen) for before, after in itertools.zip_longest(old[: len(new)], new)]
    elif type(old) is set:
        old.clear()
        old.update(new)
    else:
        mine, sent = (each if type(each) is dict else vars(each) for each in (old, new))
        after = {name: returned(mine.get(name), value, seen) for name, value in sent.items()}
        mine.clear()
        mine.update(after)
    return old
