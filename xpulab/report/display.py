"""How calls are shown while they run and at their end."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["DISPLAYS", "Display"]

#: As a whole report, as one line each, or not at all.
Display = Literal["full", "compact", "none"]
DISPLAYS: tuple[Display, ...] = get_args(Display)
