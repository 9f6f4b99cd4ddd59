"""Which acceleration is on in this process. Looking at it imports nothing of scikit-learn and of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xpulab.acceleration import Acceleration

__all__ = ["active", "set_active"]

_active: Acceleration | None = None


def active() -> Acceleration | None:
    """Return the acceleration that is on in this process; None if it is off."""
    return _active


def set_active(acceleration: Acceleration | None) -> None:
    """Note which acceleration is on from now on."""
    global _active
    _active = acceleration
