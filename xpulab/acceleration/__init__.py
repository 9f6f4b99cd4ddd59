"""scikit-learn's names compute on the engines, where xpulab's estimators compute what was asked.

`accel` changes methods of scikit-learn's own classes, and nothing else: objects, names that were imported before,
`isinstance`, `clone` and pickles are as without it. `Acceleration.off` puts the methods back.
"""

from __future__ import annotations

from xpulab.acceleration._log import Entry, Lines
from xpulab.acceleration._state import Acceleration, accel, active, status
from xpulab.acceleration._status import AccelerationStatus

__all__ = ["Acceleration", "AccelerationStatus", "Entry", "Lines", "accel", "active", "status"]
