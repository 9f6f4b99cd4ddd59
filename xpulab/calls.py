"""The public calls of xpulab: in which of them a thread is, and the one sentence in which Ctrl-C ends each of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from xpulab.advice import to_repeat
from xpulab.exceptions import CallInterrupted

__all__ = [
    "PUBLIC",
    "called",
    "interruptible",
    "left_of",
    "made",
    "methods_of",
    "of_interrupt",
    "public_call",
    "public_methods",
    "saying",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=type)

#: Attribute of functions that are public calls.
PUBLIC = "_is_public_call"


def saying(
    function: Callable[P, R],
    name: Callable[[tuple[Any, ...]], str],
    sentence: Callable[[str, tuple[Any, ...]], str] = lambda call, _: of_interrupt(call),
) -> Callable[P, R]:
    """Return a public call, which does the same as a function. Wherever Ctrl-C hits it, it raises `CallInterrupted`.

    Parameters
    ----------
    function : callable
    name : callable
        Returns the name of the call for its positional arguments.
    sentence : callable
        Returns the message for this name and these arguments. The message of another public call inside of this one is
        passed on.
    """

    @functools.wraps(function)
    def public(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except CallInterrupted:
            raise
        except KeyboardInterrupt:
            raise CallInterrupted(sentence(name(args), args)) from None

    vars(public)[PUBLIC] = True
    return public


def public_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function of one of the packages, such as ``metrics.accuracy_score``; see `saying`."""
    name = f"{function.__module__.split('.')[1]}.{function.__name__}"
    return saying(function, lambda _: name)


def public_methods(before: str = "") -> Callable[[T], T]:
    """Return a decorator of a public class: each of its public methods is a public call; see `saying`.

    Parameters
    ----------
    before : str
        What comes before the name of a method in the sentence, such as ``"Explorer."``.
    """

    def decorated(kind: T) -> T:
        for name, method in methods_of(kind).items():
            call = f"{before}{name}"
            setattr(kind, name, saying(method, functools.partial(_same, call)))
        return kind

    return decorated


def _same(name: str, _: tuple[Any, ...]) -> str:
    return name


def methods_of(kind: type, *, inherited: bool = True) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class by name; without `inherited`, only those that the class itself defines."""
    kinds = reversed(kind.__mro__) if inherited else [kind]
    found = {name: thing for each in kinds for name, thing in vars(each).items()}
    return {name: thing for name, thing in found.items() if not name.startswith("_") and inspect.isfunction(thing)}


def called() -> list[str]:
    """Return the public calls of xpulab in which this thread is, the innermost first: ``["KMeans.fit"]``."""
    found, frame = [], sys._getframe().f_back
    while frame is not None:
        if frame.f_globals is globals() and frame.f_code.co_name == "public":
            found.append(frame.f_locals["name"](frame.f_locals["args"]))
        frame = frame.f_back
    return found


@contextlib.contextmanager
def interruptible(call: str, left: str = "") -> Iterator[None]:
    """Turn Ctrl-C in this context, which may also be a decorator, into a `CallInterrupted`.

    Parameters
    ----------
    call, left : str
        As for `of_interrupt`.

    Raises
    ------
    CallInterrupted
        If the body was interrupted. That of a call inside the body is passed on.
    """
    try:
        yield
    except CallInterrupted:
        raise
    except KeyboardInterrupt:
        raise CallInterrupted(of_interrupt(call, left)) from None


def left_of(method: str) -> str:
    """Return what is left of an interrupted method of an estimator, for `of_interrupt`."""
    if method == "partial_fit":
        return "; its rows do not count"
    return "; nothing was fitted" if "fit" in method else ""


def of_interrupt(call: str, left: str = "") -> str:
    """Return the sentence about a call that Ctrl-C has ended.

    The sentence names the public call that the user has made, if this call is a part of it.

    Parameters
    ----------
    call : str
        Name of the call, such as ``"scatter"``.
    left : str
        Where it was, and what is left of it: ``"; nothing was fitted"``.
    """
    return f"{made(call)} was interrupted{left}: {to_repeat()}"


def made(call: str) -> str:
    """Return the name of the public call that the user has made, of which `call` is a part."""
    outermost = (called() or [call])[-1]
    return call if call.startswith(f"{outermost}(") else outermost
