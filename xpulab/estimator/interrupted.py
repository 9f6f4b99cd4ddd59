"""What an interrupted call says, and the estimator whose fit was interrupted last, even if no variable holds it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

import sklearn
from sklearn.base import BaseEstimator

from xpulab._sklearn import BaseSearchCV
from xpulab.advice import to_have_interrupted, to_resume
from xpulab.calls import PUBLIC, left_of, made, methods_of, of_interrupt, saying
from xpulab.deploy.current import current_cluster
from xpulab.deploy.side_by_side.searches import part_of
from xpulab.deploy.tasks.resuming import NothingToResumeError
from xpulab.exceptions import CallInterrupted
from xpulab.names import naming_arguments

__all__ = ["FITS", "CallInterrupted", "Interruptible", "NothingToResumeError", "interrupted", "sentence"]

#: Methods that fit.
FITS = ("fit", "fit_predict", "fit_transform", "partial_fit")


class Interruptible:
    """Base of estimators. Wherever Ctrl-C hits a method that takes rows, or `resume`, it ends in the one `sentence`.

    These are the methods of each subclass, and those that an estimator inherits from scikit-learn's classes.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, BaseEstimator):
            cls.__init__ = naming_arguments(cls.__init__)  # type: ignore[method-assign]
        # What another base of estimators inherits must not hide the methods of classes that come after it.
        for name, method in methods_of(cls, inherited=issubclass(cls, BaseEstimator)).items():
            if not hasattr(method, PUBLIC) and (name == "resume" or _takes_rows(method)):
                setattr(cls, name, _saying(name, method))


def _takes_rows(method: Callable[..., Any]) -> bool:
    code = inspect.unwrap(method).__code__
    return code.co_varnames[1 : code.co_argcount][:1] in (("X",), ("X_test",))


def _saying(method: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of an estimator as a public call."""

    def name(args: tuple[Any, ...]) -> str:
        return f"{type(args[0]).__name__}.{method}"

    def said(_: str, args: tuple[Any, ...]) -> str:
        return sentence(args[0], type(args[0]).__name__, method)

    return saying(_undone(function, method in FITS), name, said)


def _undone(function: Callable[..., Any], fits: bool) -> Callable[..., Any]:
    """Return a method that does the same. If Ctrl-C ends it anywhere, scikit-learn's configuration is that from before.

    Ctrl-C in the last lines of its `config_context` would leave the checks of parameters off. After a method that fits,
    the estimator has the attributes from before, too, and what an interrupted call keeps for `resume`.
    """

    @functools.wraps(function)
    def done_or_undone(self: Any, *args: Any, **kwargs: Any) -> Any:
        configuration = sklearn.get_config()
        before = vars(self).copy() if fits else {}
        try:
            return function(self, *args, **kwargs)
        except KeyboardInterrupt as interrupt:
            _end_contexts(interrupt)
            sklearn.set_config(**configuration)
            if fits and not isinstance(interrupt, CallInterrupted):
                vars(self).clear()
                vars(self).update(before)
            raise

    return done_or_undone


def _end_contexts(interrupt: BaseException) -> None:
    """End the contexts that were being entered or left when Ctrl-C came.

    Their generators would be ended with the traceback, and would then set the configuration once more.
    """
    error: BaseException | None = interrupt
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == contextlib.__file__:
                frame.clear()
        error = error.__context__


def sentence(estimator: BaseEstimator, name: str, method: str, at: str = "", resumes: bool = False) -> str:
    """Return the sentence about an interrupted call: where it was, what is left of it, and what to type.

    Parameters
    ----------
    estimator : object
        Its method or function was called.
    name, method : str
        Their names, such as "KMeans" and "fit".
    at : str
        Where the call was: ``" in iteration 7"``.
    resumes : bool
        Whether `interrupted` returns the estimator, whose fit can go on.
    """
    call, outer = f"{name}.{method}", _outer(estimator)
    ways = f"type: {to_resume()}; to have it as it is: {to_have_interrupted()}"
    if outer is not None:
        where, who = outer
        alone = f". To go on with this {name} alone, {ways}" if resumes else ""
        return of_interrupt(call, f"{at}, in {where}; {who} itself starts anew") + alone
    if resumes:
        return f"{made(call)} was interrupted{at}; to go on, {ways}"
    whose, _, of = made(call).rpartition(".")
    if whose != name and "fit" in of:  # a fit that uses this estimator
        return of_interrupt(call, left_of(of))
    return of_interrupt(call, f"{at}{left_of(method)}")


def _outer(estimator: BaseEstimator) -> tuple[str, str] | None:
    """Return in which part of which call of scikit-learn's, such as a search, this process calls the estimator.

    Of several nested calls, the outermost one is named, because the user has made it; None if there is none.
    """
    found, part, frame = None, "", sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        part = part_of(frame) or part
        owner = frame.f_locals.get("self")
        if module.startswith("xpulab.") and isinstance(owner, BaseEstimator) and owner is not estimator:
            found, part = None, ""  # scikit-learn's call is a part of this one
        if module.startswith("xpulab.") or name.startswith("_"):
            continue
        if isinstance(owner, BaseSearchCV):
            found = (part or f"{type(owner).__name__}.{name}", "the search")
        elif isinstance(owner, BaseEstimator) and not isinstance(estimator, type(owner)):
            found = (part or f"{type(owner).__name__}.{name}", f"the {type(owner).__name__}")
        elif module.startswith("sklearn.") and callable(vars(sys.modules[module]).get(name)):
            found = (part or name, name)
    return found


def interrupted() -> Any:
    """Return the estimator whose fit was interrupted last on the active cluster; its method `resume` continues it.

    The cluster keeps the estimator and the rows that were passed to `fit` until the fit is resumed, another fit is
    interrupted, or the cluster stops.

    Returns
    -------
    sklearn.base.BaseEstimator or InterruptedSearch
        The estimator, with the centres, labels and report of its last iteration. If it was a part of a search, of which
        some fits had ended, an object whose `resume` goes on with the search, and which has it as `search`.

    Raises
    ------
    NoClusterError
        If no cluster is running.
    NotFittedError
        If no fit on this cluster was interrupted after an iteration had ended.

    Examples
    --------
    After Ctrl-C in ``KMeans(100).fit(X)``, which no variable holds::

        model = xpulab.interrupted().resume()
    """
    return current_cluster().stopped()
