"""Commands on this host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Local"]


@dataclass(frozen=True)
class Local:
    """Starts commands on this host."""

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line that runs a command on this host: the command itself."""
        return list(words)
