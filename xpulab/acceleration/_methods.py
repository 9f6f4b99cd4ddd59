"""Puts methods in the place of those of scikit-learn's classes, and takes them out again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from sklearn.base import BaseEstimator

from xpulab.acceleration._registry import methods, pairs

__all__ = ["put_in_place"]

#: Called with the object, xpulab's class, the name of the method, scikit-learn's bound method, and the arguments.
Called = Callable[[BaseEstimator, type, str, Callable[..., Any], tuple[object, ...], dict[str, object]], Any]

#: Whether a method that was put in place is running: what it calls is a part of it, and is computed where it is.
_within: ContextVar[bool] = ContextVar("xpulab_accel_within", default=False)


#: Modules of scikit-learn whose classes fit other estimators, and a method that every fit of scikit-learn's calls.
_OF_OTHERS = ("compose", "model_selection", "multiclass", "multioutput", "pipeline")
_CHECK = "_validate_params"


def put_in_place(called: Called, lacks: Callable[[str], None]) -> Callable[[], None]:
    """Replace the methods that xpulab's estimators compute, in scikit-learn's classes.

    Objects of subclasses, xpulab's own estimators among them, keep scikit-learn's methods.

    Parameters
    ----------
    called : callable
        Computes a call.
    lacks : callable
        Called with the name of a class of scikit-learn that is fitted, and that xpulab does not have.

    Returns
    -------
    callable
        A function that puts scikit-learn's methods back.
    """
    places = [(theirs, ours, name) for theirs, ours in pairs().items() for name in methods(theirs, ours)]
    before = [vars(theirs).get(name) for theirs, _, name in places]
    new = [_method(*place, own, called) for place, own in zip(places, before, strict=True)]
    for (theirs, _, name), method in zip(places, new, strict=True):
        setattr(theirs, name, method)
    check = vars(BaseEstimator)[_CHECK]
    setattr(BaseEstimator, _CHECK, _checking(check, lacks))

    def put_back() -> None:
        setattr(BaseEstimator, _CHECK, check)
        for (theirs, _, name), own in zip(places, before, strict=True):
            if own is None:  # the class inherits the method
                delattr(theirs, name)
            else:
                setattr(theirs, name, own)

    return put_back


def _checking(check: Callable[..., None], lacks: Callable[[str], None]) -> Callable[..., None]:
    @functools.wraps(check)
    def checking(self: BaseEstimator) -> None:
        kind = type(self)
        part, _, module = kind.__module__.partition(".")
        outer = part == "sklearn" and not _within.get() and not module.startswith(_OF_OTHERS)
        if outer and kind not in pairs() and not kind.__name__.startswith("_"):
            lacks(kind.__name__)
        check(self)

    return checking


def _method(theirs: type, ours: type, name: str, own: Callable[..., Any] | None, called: Called) -> Any:
    @functools.wraps(inspect.getattr_static(theirs, name))  # scikit-learn reads the signature
    def method(self: BaseEstimator, *args: object, **kwargs: object) -> Any:
        plainly = getattr(super(theirs, self), name) if own is None else own.__get__(self)
        if type(self) is not theirs or _within.get():
            return plainly(*args, **kwargs)
        token = _within.set(True)
        try:
            return called(self, ours, name, plainly, args, kwargs)
        finally:
            _within.reset(token)

    return method
