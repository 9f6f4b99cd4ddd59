"""`accel`: turns the acceleration of scikit-learn's names on and off, and decides where each call runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import sklearn

from xpulab.acceleration._active import active, set_active
from xpulab.acceleration._log import Entry, Log
from xpulab.acceleration._methods import put_in_place
from xpulab.acceleration._registry import pairs
from xpulab.acceleration._sizes import sizes_of
from xpulab.acceleration._status import AccelerationStatus, status_of
from xpulab.acceleration._twins import Refused, Twins
from xpulab.acceleration._workers import joined
from xpulab.data import ShardedArray
from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.current import at_the_last_end, current_cluster, find_ranks
from xpulab.deploy.side_by_side.jobs import begin_with
from xpulab.exceptions import UsageError, XpulabError, XpulabWarning, warn
from xpulab.report.rendering import Displayed, Html, block, counted, escape
from xpulab.scanning import Scan

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["Acceleration", "accel", "status"]

_NOT_FITTED = "not fitted on engines"

_latest: Acceleration | None = None  # the one that was on last, whose log can still be read


def status() -> AccelerationStatus:
    """Return the status of the acceleration that is on, or was on last in this process."""
    return status_of() if _latest is None else _latest.status()


def accel(*, strict: bool = False, least: int | None = None) -> Acceleration:
    """Let scikit-learn's names compute on the active cluster, where xpulab's estimators compute what was asked.

    From then on methods such as `sklearn.cluster.KMeans.fit` run on the engines: for all objects of scikit-learn's
    classes, old and new, in a `Pipeline`, a `GridSearchCV`, or anywhere else. Objects stay scikit-learn's, and their
    fitted attributes are as scikit-learn sets them. What xpulab's estimator does not take, and data so small that
    engines would only cost time, is computed by scikit-learn. The log has a line for each call, see
    `Acceleration.status`.

    Parameters
    ----------
    strict : bool, default=False
        Whether a call that scikit-learn would have to compute raises `UsageError` instead.
    least : int, optional
        Smallest number of values (rows x columns) of X that the engines compute, for all estimators; by default a
        number for each estimator, which was measured. 0 computes everything on the engines.

    Returns
    -------
    Acceleration
        It is on. As a context manager, it is off at the end of the body.

    Raises
    ------
    NoClusterError
        If no cluster is running. When the last cluster of this process ends, the acceleration ends, too.
    UsageError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> import xpulab
    >>> from sklearn.cluster import KMeans
    >>> X = [[1, 2], [1, 4], [10, 2], [10, 4]]
    >>> with xpulab.XPUCluster(n=2), xpulab.accel(least=0):
    ...     KMeans(n_clusters=2, random_state=0).fit(X).labels_
    array([1, 1, 0, 0], dtype=int32)
    """
    if not isinstance(strict, bool):
        raise UsageError(f"accel: strict={strict!r} was given; expected True or False")
    if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 0):
        raise UsageError(f"accel: least={least!r} was given; expected a number of values, or None")
    current_cluster()
    return Acceleration(strict, least).on()


class Acceleration(Displayed):
    """The acceleration of scikit-learn's names in this process; `accel` makes it.

    Parameters
    ----------
    strict : bool
    least : int or None
        As for `accel`.
    excuse : str
        Why this process, which another one has started, has no cluster; empty if it has one.
    log : Log, optional
        The log; by default a new one.

    Attributes
    ----------
    log : Log
        An entry for each call since accel was turned on.
    """

    def __init__(self, strict: bool, least: int | None, excuse: str = "", log: Log | None = None) -> None:
        self.strict, self.least = strict, least
        self._excuse = excuse
        self._owner = os.getpid()
        self._file: Path | None = None
        if log is None:
            descriptor, name = tempfile.mkstemp(prefix="xpulab-accel-")
            os.close(descriptor)
            self._file = Path(name)
            log = Log(self._file, self._owner)
        self.log = log
        self._twins = Twins()
        # object -> kinds of reasons in the log
        self._said: WeakKeyDictionary[BaseEstimator, set[str]] = WeakKeyDictionary()
        self._undo = contextlib.ExitStack()
        self._before: Acceleration | None = None

    def on(self) -> Acceleration:
        """Turn it on, in place of another one that is on."""
        before = active()
        if isinstance(before, Acceleration):
            self._before = before
            before._pause()
        self._resume()
        return self

    def off(self) -> None:
        """Put scikit-learn's methods back. Repeated calls do nothing."""
        if self.running:
            self._pause()
            each: Acceleration | None = self
            while each is not None:
                each._end()
                each = each._before

    def _resume(self) -> None:
        global _latest
        with contextlib.ExitStack() as undo:
            undo.callback(put_in_place(self._called, self.log.lack))
            undo.callback(at_the_last_end(self.off))
            if self._file is not None:
                about = (self.strict, self.least, str(self._file), self._owner)
                undo.callback(joined(_begin_in_worker, *about))
                undo.callback(begin_with(f"{__name__}:in_jobs", *about))
            self._undo = undo.pop_all()
        _latest = self
        set_active(self)

    def _pause(self) -> None:
        self._undo.close()
        set_active(None)

    def _end(self) -> None:
        self._twins = Twins()
        if self._file is not None and os.getpid() == self._owner:
            self.log.read()
            self._file.unlink(missing_ok=True)

    @property
    def running(self) -> bool:
        """Whether it is on."""
        return active() is self

    def status(self) -> AccelerationStatus:
        """Return the sizes from which on the engines compute, and what ran where so far."""
        return status_of(self.log, self.running, self.strict, self.least)

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Turn it off, and turn on again what was on before it."""
        before = self._before
        if before is None or not self.running:
            self.off()
            return
        self._pause()
        self._end()
        before._resume()

    def __str__(self) -> str:
        if not self.running:
            return "accel is off: scikit-learn's names are scikit-learn's"
        strict = ", and a call that scikit-learn would have to compute is an error" if self.strict else ""
        return (
            f"accel is on: {counted(len(pairs()), 'class', 'classes')} of scikit-learn compute on the engines, "
            f"wherever the engines are faster and take what was asked{strict}; type: %xpu_cluster accel status"
        )

    def _repr_html_(self) -> Html:
        return block("accel", [f'<div class="xpu-note">{escape(str(self))}</div>'])

    def _called(
        self,
        plain: BaseEstimator,
        ours: type,
        name: str,
        plainly: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Any:
        """Compute a call on the engines or by scikit-learn's method `plainly`, and leave a line in the log."""
        fits, X = "fit" in name, args[0] if args else kwargs.get("X", kwargs.get("X_test"))
        shape = _shape_of(X, plain)
        twin = None if fits else self._twins.of(plain)
        kind, reason = self._against(plain, X, shape, fits, twin)
        fault = ""
        if not kind:
            reason = self._in_favour(plain, X, shape, fits)
            try:
                if fits:
                    result = self._twins.fit(plain, ours, name, args, kwargs)
                else:
                    result = self._twins.call(plain, twin, name, args, kwargs)
            except Refused as refused:
                kind, reason, fault = "not computed on engines", str(refused), refused.fault
            else:
                self._add(plain, name, shape, reason, engines=_size())
                return result
        if self.strict:
            raise UsageError(
                f"{type(plain).__name__}.{name} would be computed by scikit-learn, because {reason}\nto allow this, "
                "leave out strict; to compute small data on the engines, too, type: accel on --strict --least 0"
            )
        self._add(plain, name, shape, reason, kind=kind)
        result = plainly(*args, **kwargs)
        if fault:
            warn(
                f"{type(plain).__name__}.{name} of xpulab raised {fault}, and scikit-learn has computed the same call: "
                "this is a fault of xpulab, please report it with this line; the result is scikit-learn's",
                XpulabWarning,
            )
        return result

    def _against(
        self, plain: BaseEstimator, X: object, shape: tuple[int, int] | None, fits: bool, twin: BaseEstimator | None
    ) -> tuple[str, str]:
        """Return why scikit-learn has to compute a call, as kind and reason; empty if the engines can try."""
        if isinstance(X, ShardedArray | Scan):
            return "", ""
        if find_ranks() is None:
            return "no cluster", self._excuse or _no_cluster(self._owner)
        if shape is None:
            return "no rows", f"X is a {type(X).__name__}, and no array of rows"
        if sklearn.get_config()["array_api_dispatch"]:
            return "array API", "scikit-learn's array_api_dispatch is on"
        if getattr(X, "dtype", None) == np.float16:
            return "float16", "X is float16, and the engines compute float32 and float64"
        if not fits and twin is None:
            return _NOT_FITTED, "the engines have not fitted this object"
        least = self._least(plain, fits)
        if least is None:
            return "engines not faster", "the engines were not faster at any size that was measured"
        if self.least is None and shape[1] > shape[0]:
            return "more columns than rows", "X has more columns than rows, with which the engines were not measured"
        if shape[0] * shape[1] < least:
            return "too small", f"{_values(shape)} fewer than {least:,}, from which on the engines are faster"
        return "", ""

    def _in_favour(self, plain: BaseEstimator, X: object, shape: tuple[int, int] | None, fits: bool) -> str:
        if isinstance(X, ShardedArray | Scan) or shape is None:
            return "the rows are there"
        least = self._least(plain, fits)
        which = "the number that was given" if self.least is not None else "from which on the engines are faster"
        return f"{_values(shape)} at least {least:,}, {which}"

    def _least(self, plain: BaseEstimator, fits: bool) -> int | None:
        return self.least if self.least is not None else sizes_of(type(plain).__name__).least(fits)

    def _add(
        self,
        plain: BaseEstimator,
        name: str,
        shape: tuple[int, int] | None,
        reason: str,
        *,
        kind: str = "",
        engines: int = 0,
    ) -> None:
        data = "" if shape is None else f"{shape[0]:,} × {shape[1]:,}"
        again = not engines and self._has_said(plain, kind)
        self.log.add(Entry(type(plain).__name__, name, data, engines, kind, reason, again=again))

    def _has_said(self, plain: BaseEstimator, kind: str) -> bool:
        """Return whether the log says why an object stays in scikit-learn. If its fit stayed, so do other methods."""
        said = self._said.setdefault(plain, set())
        known = kind in said or (bool(said) and kind == _NOT_FITTED)
        said.add(kind)
        return known


def _begin_in_worker(name: str, strict: bool, least: int | None, file: str, owner: int) -> None:
    """In a worker of joblib: attach to the cluster, and turn accel on. If it cannot attach, the log says why."""
    excuse = ""
    try:
        XPUCluster.attach(name).display = "none"
    except (XpulabError, OSError) as error:
        first = str(error).partition("\n")[0]
        excuse = f"this worker could not attach to the cluster of process {owner}: {first}"
    Acceleration(strict, least, excuse, Log(Path(file), owner)).on()


@contextlib.contextmanager
def in_jobs(strict: bool, least: int | None, file: str, owner: int) -> Iterator[None]:
    """Open a context on a rank that makes jobs of joblib's: accel is on, and computes on the rank's group."""
    acceleration = Acceleration(strict, least, log=Log(Path(file), owner)).on()
    try:
        yield
    finally:
        acceleration.off()


def _values(shape: tuple[int, int]) -> str:
    n = shape[0] * shape[1]
    return f"{n:,} value is" if n == 1 else f"{n:,} values are"


def _size() -> int:
    ranks = find_ranks()
    return ranks.size if ranks is not None else 0


def _no_cluster(owner: int) -> str:
    if os.getpid() == owner:
        return "no cluster is running"
    return f"this process was forked, and only process {owner} can use the cluster"


def _shape_of(X: object, plain: BaseEstimator) -> tuple[int, int] | None:
    """Return the numbers of rows and columns of what may be rows; None for anything else."""
    if X is None and hasattr(plain, "n_samples_fit_"):  # neighbours of the rows of the fit
        return plain.n_samples_fit_, plain.n_features_in_
    shape = getattr(X, "shape", None)
    if shape is None and isinstance(X, list | tuple) and X:
        shape = (len(X), len(X[0]) if hasattr(X[0], "__len__") else 1)
    if not isinstance(shape, tuple) or not 1 <= len(shape) <= 2 or not all(isinstance(n, int) for n in shape):
        return None
    return shape[0], shape[1] if len(shape) == 2 else 1
