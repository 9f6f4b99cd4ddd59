"""The memory that rows may take on the engines of a host: a number of bytes, or a share of what is free."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from xpulab.exceptions import UsageError

__all__ = ["EXPECTED", "Memory", "memory", "read_memory"]

#: What errors say of a wrong value.
EXPECTED = "bytes, such as '4GB' or '512MiB', or a share of the free memory, such as 0.5"

_DEFAULT = 0.6  # of the free memory
_UNITS = {"": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("", 1024), ("B", 1000), ("IB", 1024))
}
_UNITS["B"] = 1


@dataclass(frozen=True)
class Memory:
    """The memory for rows and for what grows with them, of all engines of a host together.

    Attributes
    ----------
    share : float
        Of the free memory, if `nbytes` is None.
    nbytes : int or None
    """

    share: float = _DEFAULT
    nbytes: int | None = None

    def of_free(self, free: float, held: float, part: float) -> float:
        """Return the bytes for rows that come now, of so many free ones, for engines that get this part of the rows.

        `held` are those of earlier rows, of all engines of the host.
        """
        if self.nbytes is None:
            return max(0.0, self.share * free)
        return max(0.0, min((self.nbytes - held) * part, free))


def memory(value: object) -> object:
    """Parse what a user types for the option; `read_memory` checks it."""
    text = str(value)
    try:
        return float(text)
    except ValueError:
        return text


def read_memory(value: object) -> Memory:
    """Read the option: None, a share from 0 to 1, a number of bytes above 1, or a text with a unit.

    Raises
    ------
    UsageError
        If it is none of these.
    """
    if value is None:
        return Memory()
    number, unit = value, ""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", value)
        number, unit = (float(found[1]), found[2].upper()) if found else (None, "")
    right = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number) and number >= 0
    if not right or unit not in _UNITS:
        raise UsageError(f"XPUCluster or --memory: memory={value!r} was given; expected {EXPECTED}")
    assert isinstance(number, int | float)
    if not unit and number <= 1:
        return Memory(share=float(number))
    return Memory(nbytes=int(number * _UNITS[unit]))
