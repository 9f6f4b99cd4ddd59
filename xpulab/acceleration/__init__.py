"""scikit-learn's names compute on the engines, where xpulab's estimators compute what was asked.

`accel` changes methods of scikit-learn's own classes, and nothing else: objects, names that were imported before,
`isinstance`, `clone` and pickles are as without it. `Acceleration.off` puts the methods back.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xpulab.acceleration._active import active

if TYPE_CHECKING:
    from xpulab.acceleration._log import Entry, Lines
    from xpulab.acceleration._state import Acceleration, accel, status
    from xpulab.acceleration._status import AccelerationStatus

__all__ = ["Acceleration", "AccelerationStatus", "Entry", "Lines", "accel", "active", "status"]

# At their first use, because each notebook asks which acceleration is on, and these import scikit-learn.
_HOMES = {
    "Acceleration": "_state",
    "AccelerationStatus": "_status",
    "Entry": "_log",
    "Lines": "_log",
    "accel": "_state",
    "status": "_state",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"xpulab.acceleration.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
