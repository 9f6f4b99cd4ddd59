"""The exceptions and warnings of xpulab, all derived from `XpulabError` or `XpulabWarning`.

`CallInterrupted` alone is none of them: it is a `KeyboardInterrupt`, so that code that expects Ctrl-C keeps working.

Wrong *values* given to an estimator raise what scikit-learn raises (`ValueError`, `TypeError`, `NotFittedError`), so
that code written for scikit-learn keeps working. The classes here are for errors that scikit-learn does not have.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
import traceback
import warnings
from types import FrameType
from typing import Any

__all__ = [
    "CallInterrupted",
    "ClusterError",
    "ClusterStartError",
    "DeviceError",
    "DeviceNotFoundError",
    "EngineError",
    "EngineLostError",
    "EngineStuckError",
    "HandleError",
    "KernelBuildError",
    "KernelLaunchError",
    "NeverAnsweredError",
    "NoClusterError",
    "NotEnoughMemoryError",
    "OneAPIError",
    "OversubscribedWarning",
    "PlanError",
    "UsageError",
    "XpulabError",
    "XpulabWarning",
]


def __dir__() -> list[str]:
    return __all__


class XpulabError(Exception):
    """Base class of all errors of xpulab.

    IPython shows only the message. It says what to type next, and has the tracebacks of the engines if any raised.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class CallInterrupted(KeyboardInterrupt):
    """Ctrl-C, or a notebook's Stop button, ended a call. The message says which call, and what to type next.

    IPython shows the line of the user's code and this message, but not the frames of the libraries that it called.

    Attributes
    ----------
    answer : xpulab.deploy.tasks.answers.Answer or None
        What the engines had computed by then; None if they had not begun the call.
    """

    def __init__(self, message: str, answer: object = None) -> None:
        super().__init__(message)
        self.answer: Any = answer

    def _render_traceback_(self) -> list[str]:
        mine = [each for each in traceback.walk_tb(self.__traceback__) if each[0].f_globals["__name__"] == "__main__"]
        where = [f"line {n}: {linecache.getline(frame.f_code.co_filename, n).strip()}" for frame, n in mine[-1:]]
        _forget_variables(self)
        return [*where, f"KeyboardInterrupt: {self}"]


def _forget_variables(error: BaseException) -> None:
    """Clear the variables of libraries in a traceback, which IPython keeps: they hold the rows of the call."""
    following: BaseException | None = error
    while following is not None:
        for frame, _ in traceback.walk_tb(following.__traceback__):
            if frame.f_globals["__name__"] != "__main__":
                with contextlib.suppress(RuntimeError):  # the frame of IPython, which still runs
                    frame.clear()
                    _ = frame.f_locals  # up to Python 3.12 a copy, which is made anew and so becomes empty
        following = following.__context__


class UsageError(XpulabError, ValueError):
    """A magic, a command or a cluster got an argument that it does not accept; the message says what it accepts."""


class OneAPIError(XpulabError, ImportError):
    """The oneAPI runtime could not be found or loaded."""


class PlanError(XpulabError, ValueError):
    """The requested engines cannot be placed on the available devices."""


class DeviceError(XpulabError, RuntimeError):
    """A device rejected an operation, or failed."""


class DeviceNotFoundError(DeviceError, PlanError):
    """No device matches the given name or selector."""


class KernelLaunchError(DeviceError):
    """The device did not start a kernel. xpulab checks this, because the runtime reports no error."""


class KernelBuildError(DeviceError):
    """The catalogue lacks the requested kernel, or the device's compiler rejected it."""


class NotEnoughMemoryError(XpulabError, MemoryError):
    """Rows do not fit into the memory of the host or a device; raised before any row is sent to the engines."""


class ClusterError(XpulabError, RuntimeError):
    """An error of the cluster as a whole."""


class NoClusterError(ClusterError):
    """A call needs a cluster, and none is running."""


class ClusterStartError(ClusterError):
    """The engines did not start; the message has the log of mpiexec and of the engines."""


class EngineError(ClusterError):
    """One or more ranks raised exceptions. The message has rank, host, device and traceback of each distinct one."""


class EngineLostError(ClusterError):
    """An engine's process ended or stopped responding.

    Attributes
    ----------
    reason : str
        One line that names the engine and the cause; the message also has the last log lines of all processes.
    moment : float
        When it was noticed, by `time.perf_counter`; by default now.
    """

    def __init__(self, message: str, reason: str = "", moment: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.moment = time.perf_counter() if moment is None else moment


class EngineStuckError(ClusterError):
    """Engines did not end a task after an interrupt; a restart of the cluster frees them."""


class NeverAnsweredError(ClusterError):
    """A rank waits for other ranks, and all of them have ended or wait, too. The message has the line of each."""


class HandleError(ClusterError, ValueError):
    """The rows of a `ShardedArray` are gone, or are on another cluster."""


class XpulabWarning(UserWarning):
    """Base class of all warnings of xpulab."""


class OversubscribedWarning(XpulabWarning):
    """Several engines share cores or a device."""


def warn(message: str, kind: type[Warning]) -> None:
    """Warn at the line of the user's code that has called xpulab, not at a line of xpulab or of a library."""
    frame: FrameType | None = sys._getframe()
    level = 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("xpulab", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level + 1)


def error_fields(error: BaseException) -> dict[str, str]:
    """Return what of an exception another process needs to raise it again: type, module, message and traceback."""
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
