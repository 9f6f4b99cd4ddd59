"""The names that a user sees and types: which names of an object complete, and what an error says of a wrong one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar

__all__ = ["Listed", "Named", "meant", "naming_arguments", "naming_parameters", "nearest"]

P = ParamSpec("P")
T = TypeVar("T")

_SIMILAR = 0.6  # smallest similarity of two words, as difflib measures it, for an error to name the other one


def nearest(word: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """Return the known name that is most similar to a word, whatever its case and its dashes; "" if none is.

    Parameters
    ----------
    word : str
    known : iterable of str
        The names that there are.
    others : mapping of str to str, optional
        Words that users may type in place of a known name -> that name.
    """
    by_word = {_plain(other): name for other, name in (others or {}).items()}
    own = {_plain(name): name for name in known}
    by_word |= own
    similar = difflib.SequenceMatcher(b=_plain(word))  # it keeps what it finds out of b

    def ratio(other: str) -> float:
        similar.set_seq1(other)
        return similar.ratio()

    best = max(by_word, key=lambda other: (ratio(other), other in own), default="")
    return by_word[best] if best and ratio(best) >= _SIMILAR else ""


def meant(word: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """Return what an error says of the name that is most similar, ``"; did you mean scatter?"``; "" if none is.

    The parameters are those of `nearest`.
    """
    near = nearest(word, known, others)
    return f"; did you mean {near}?" if near else ""


def _plain(word: str) -> str:
    return word.lower().strip("-").replace("_", "-")


def naming_arguments(function: Callable[P, None], others: Mapping[str, str] | None = None) -> Callable[P, None]:
    """Return a method that does the same, and whose error for a wrong keyword names the one that was meant.

    Python says so from 3.13 on, and only with a similar name.

    Parameters
    ----------
    function : callable
        The method ``__init__`` of a class.
    others : mapping of str to str, optional
        As for `nearest`.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters][1:]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function

    @functools.wraps(function)
    def init(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except TypeError:
            wrong = next((name for name in kwargs if name not in known), None)
            if wrong is None:
                raise
            raise TypeError(
                f"{type(args[0]).__name__}.__init__() got an unexpected keyword argument {wrong!r}"
                f"{meant(wrong, known, others)}"
            ) from None

    return init


def naming_parameters(function: Callable[..., T]) -> Callable[..., T]:
    """Return scikit-learn's method ``set_params``, whose error for a wrong name first says which one was meant."""

    @functools.wraps(function)
    def set_params(estimator: Any, **params: object) -> T:
        try:
            return function(estimator, **params)
        except ValueError as error:
            known = estimator.get_params(deep=False)
            wrong = next((name for name in params if name.partition("__")[0] not in known), None)
            said, dot, valid = str(error).rpartition(". ")
            if wrong is None or not dot or not (near := meant(wrong.partition("__")[0], known)):
                raise
            raise ValueError(f"{said}{near} {valid}") from None

    return set_params


class Listed:
    """Base of objects with public names for other parts of xpulab, which `dir` and completion leave out."""

    #: Names that are public for other parts of xpulab, and not for users.
    _internal: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - self._internal)


class _ListedClass(type):
    """The class of classes that list the names that their objects list."""

    _internal: frozenset[str]

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__()} - cls._internal)


class Named(Listed, metaclass=_ListedClass):
    """Base of objects of which an attribute that does not exist is an error that names the one that was meant.

    IPython's tracebacks do not say this by themselves.
    """

    #: Names that users may look for -> where they are.
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # mypy would take every attribute as one that exists

        def __getattr__(self, name: str) -> NoReturn:
            known = [each for each in dir(self) if each[0] != "_"]
            near = "" if name.startswith("_") else meant(name, known, self._elsewhere)
            # Without the object, Python does not add its own suggestion to the message.
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near}", name=name)
