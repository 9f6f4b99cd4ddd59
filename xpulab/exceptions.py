"""Everything that xpulab raises or warns about, under `XpulabError` and `XpulabWarning`.

Wrong *values* given to an estimator raise what scikit-learn raises (`ValueError`, `TypeError`, `NotFittedError`), so
that code written for scikit-learn keeps working; the classes here are for what scikit-learn does not have.
"""

from __future__ import annotations

__all__ = [
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
    "NoClusterError",
    "NotEnoughMemoryError",
    "OneAPIError",
    "OversubscribedWarning",
    "PlanError",
    "UsageError",
    "XpulabError",
    "XpulabWarning",
]


class XpulabError(Exception):
    """Base class of all errors of xpulab.

    IPython shows the message alone: it says what to type next, and holds the engines' tracebacks where they matter.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UsageError(XpulabError, ValueError):
    """A magic, a command or a cluster was given what it does not know; the message says what it knows."""


class OneAPIError(XpulabError, ImportError):
    """The oneAPI runtime could not be found or loaded."""


class PlanError(XpulabError, ValueError):
    """The engines asked for cannot be placed on the devices there are."""


class DeviceError(XpulabError, RuntimeError):
    """A device refused or failed."""


class DeviceNotFoundError(DeviceError, PlanError):
    """No device answers to the name or selector given."""


class KernelLaunchError(DeviceError):
    """The device did not take a kernel; the runtime alone says nothing."""


class KernelBuildError(DeviceError):
    """The catalogue of kernels has not what was asked for, or the device's compiler refused it."""


class NotEnoughMemoryError(XpulabError, MemoryError):
    """Rows do not fit the host or a device; told before any is sent."""


class ClusterError(XpulabError, RuntimeError):
    """Something about the cluster as a whole."""


class NoClusterError(ClusterError):
    """A cluster is needed, and none is running."""


class ClusterStartError(ClusterError):
    """The engines did not start; the message holds the words of mpiexec and of the engines."""


class EngineError(ClusterError):
    """An exception on one or more ranks; the message holds rank, host, device and traceback, once each."""


class EngineLostError(ClusterError):
    """An engine's process ended or fell silent.

    Attributes
    ----------
    reason : str
        Which one, in a line; the message has the last words of all of them.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class EngineStuckError(ClusterError):
    """Engines did not come back from a task that was interrupted; a restart frees them."""


class HandleError(ClusterError, ValueError):
    """A `ShardedArray` whose rows are gone, or live on another cluster."""


class XpulabWarning(UserWarning):
    """Base class of all warnings of xpulab."""


class OversubscribedWarning(XpulabWarning):
    """Several engines share cores or a device."""
