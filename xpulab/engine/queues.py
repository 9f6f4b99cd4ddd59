"""The queue of a device that dpnp, dpctl and a user's cells share, with the device's clock on.

dpctl keeps one queue for each device, and everything that is given no queue uses it: arrays fit together only if they
are on the same queue. dpctl makes it without profiling, and has no setting for that; so `dpctl.get_device_cached_queue`
gets its queues from here. Profiling makes no measurable difference to a kernel of 50 µs.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any

import dpctl

__all__ = ["shared_queue"]


class _Profiling:
    """Stands for dpctl's cache: its queues, but with profiling."""

    def __init__(self, before: Any) -> None:
        self._before = before
        self._queues: dict[Any, dpctl.SyclQueue] = {}

    def get_or_create(self, key: Any) -> tuple[dpctl.SyclQueue, bool]:
        """The queue of a device, or of a context and a device; and whether it is new to dpctl."""
        queue, new = self._before.get_or_create(key)
        place = queue.sycl_context, queue.sycl_device
        if place not in self._queues:
            self._queues[place] = dpctl.SyclQueue(*place, property="enable_profiling")
        return self._queues[place], new


def shared_queue(device: dpctl.SyclDevice) -> dpctl.SyclQueue:
    """The queue that everything on this device uses by itself."""
    return dpctl.get_device_cached_queue(device)


with contextlib.suppress(ImportError, AttributeError):  # a release of dpctl that keeps them elsewhere: no profiling
    from dpctl import _sycl_queue_manager as _manager

    # Its default holds in all threads; what a context variable was set to would hold in one.
    _queues = _Profiling(_manager._global_device_queue_cache.get())
    _manager._global_device_queue_cache = ContextVar("xpulab_queues", default=_queues)
