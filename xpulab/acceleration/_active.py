"""Which acceleration is on in this process. Looking at it imports nothing of scikit-learn and of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from xpulab.acceleration._log import Log

__all__ = ["Active", "active", "set_active"]


class Active(Protocol):
    """What views and magics use of an `Acceleration`.

    Attributes
    ----------
    strict : bool
    log : Log
    """

    strict: bool
    log: Log

    def off(self) -> None:
        """Put scikit-learn's methods back."""


_active: Active | None = None


def active() -> Active | None:
    """Return the acceleration that is on in this process; None if it is off."""
    return _active


def set_active(acceleration: Active | None) -> None:
    """Note which acceleration is on from now on."""
    global _active
    _active = acceleration
