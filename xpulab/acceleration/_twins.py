"""Runs methods of xpulab's estimators for objects of scikit-learn's classes, which get the fitted attributes."""

from __future__ import annotations

import contextlib
import dis
import os
import traceback
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state

from xpulab.data import ShardedArray
from xpulab.deploy.current import find_current
from xpulab.exceptions import NoClusterError

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["Refused", "Twins"]

#: Attributes of an object that are no part of a fit.
_KEPT = ("_skl_callbacks", "_parent_callback_ctx")
#: Attributes that may change after a fit, in addition to the parameters.
_SETTINGS = {"_sklearn_output_config", "_metadata_request", *_KEPT}


#: The instruction of a line that raises an exception on purpose.
_RAISE = dis.opmap["RAISE_VARARGS"]


class Refused(Exception):
    """xpulab's estimator does not take the call, and has not changed anything; the message is the first line of why.

    Attributes
    ----------
    fault : str
        The error and its place, if nothing has raised it on purpose. If scikit-learn then computes the call, it is a
        fault of xpulab; if scikit-learn refuses it, too, the arguments were wrong. Otherwise empty.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error).partition("\n")[0])
        self.fault = "" if _on_purpose(error) else f"{type(error).__name__}: {self} ({_place(error)})"


def _on_purpose(error: Exception) -> bool:
    """Return whether xpulab itself has raised an error about arguments, or a check of scikit-learn that it called."""
    if isinstance(error, MemoryError | NoClusterError):
        return True
    frames = list(traceback.walk_tb(error.__traceback__))
    homes = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    beyond = homes[::-1].index("xpulab")  # calls that the last function of xpulab has made
    if beyond:
        return "sklearn" in homes[-beyond:]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def _place(error: Exception) -> str:
    """Return the last line of xpulab that was running when the error came."""
    lines = [each for each in traceback.extract_tb(error.__traceback__) if f"{os.sep}xpulab{os.sep}" in each.filename]
    return f"{lines[-1].filename}:{lines[-1].lineno}" if lines else "unknown line"


class Twins:
    """For each object that the engines have fitted, its twin: xpulab's estimator with the same parameters and state.

    The twin keeps what only xpulab's estimators have, such as rows that stay on the engines. The object has fitted
    attributes as scikit-learn sets them. If one of these is changed, the object has no twin any more.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[BaseEstimator, tuple[BaseEstimator, dict[str, object]]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, plain: BaseEstimator) -> BaseEstimator | None:
        """Return the twin of a fitted object, with the present parameters; None if it has none."""
        if plain not in self._held:
            return None
        twin, then = self._held[plain]
        now = vars(plain)
        changed = {name for name in now.keys() | then.keys() if now.get(name, self) is not then.get(name, self)}
        if changed - {*plain.get_params(deep=False), *_SETTINGS}:
            del self._held[plain]
            return None
        for name in changed:
            if name in now:
                vars(twin)[name] = now[name]
            else:
                vars(twin).pop(name, None)
        self._held[plain] = twin, dict(now)
        return twin

    def fit(
        self, plain: BaseEstimator, ours: type, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call a method that fits, such as `fit_transform`, and return its result.

        Raises
        ------
        Refused
            If xpulab's estimator does not take the arguments.
        """
        self._held.pop(plain, None)
        twin: Any = object.__new__(ours)
        vars(twin).update(vars(plain))
        try:
            with _refusing(plain, args):
                result = getattr(twin, name)(*args, **kwargs)
        except KeyboardInterrupt:
            with contextlib.suppress(NotFittedError):
                self._take(plain, twin)
                self._resumable(plain, twin)
            raise
        self._take(plain, twin)
        return plain if result is twin else result

    def call(
        self, plain: BaseEstimator, twin: BaseEstimator, name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call a method of a fitted object that does not fit; errors are those of `fit`."""
        with _refusing(plain, args):
            return getattr(twin, name)(*args, **kwargs)

    def _take(self, plain: BaseEstimator, twin: BaseEstimator) -> None:
        """Give the object the fitted attributes of its twin, as scikit-learn sets them."""
        vars(twin).pop("resume", None)
        state = vars(twin.to_sklearn())
        kept = {name: vars(plain)[name] for name in _KEPT if name in vars(plain)}
        vars(plain).clear()
        vars(plain).update(state, **kept)
        self._held[plain] = twin, dict(vars(plain))

    def _resumable(self, plain: BaseEstimator, twin: BaseEstimator) -> None:
        """After an interrupt, let `xpulab.interrupted().resume()` continue the fit of the object, and return it."""
        cluster = find_current()
        if cluster is None or cluster.interrupted is not twin:
            return

        def resume() -> Any:
            try:
                type(twin).resume(twin)
            except KeyboardInterrupt:
                self._take(plain, twin)
                self._resumable(plain, twin)
                raise
            self._take(plain, twin)
            return plain

        vars(twin)["resume"] = resume


@contextlib.contextmanager
def _refusing(plain: BaseEstimator, args: tuple[object, ...]) -> Iterator[None]:
    """Turn an error about arguments into `Refused`, and take back random numbers that were drawn before it.

    Whether the arguments are wrong, or only xpulab does not take them, scikit-learn's own method shows.
    """
    if any(isinstance(each, ShardedArray) for each in args):
        yield  # scikit-learn takes no rows on engines
        return
    source = vars(plain).get("random_state")
    drawn = check_random_state(source) if isinstance(source, np.random.RandomState) or source is None else None
    before = None if drawn is None else drawn.get_state()
    try:
        yield
    except (ValueError, TypeError, MemoryError, NoClusterError) as error:
        if drawn is not None:
            drawn.set_state(before)
        raise Refused(error) from error
