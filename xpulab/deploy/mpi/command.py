"""What every MPI's command line has in common."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xpulab.exceptions import UsageError

__all__ = ["HERE", "Command", "Ranks", "shown", "split"]

#: The name of this host in `Ranks`, if ranks run on this host only.
HERE = "localhost"


@dataclass(frozen=True)
class Ranks:
    """Consecutive ranks on one host.

    Attributes
    ----------
    host : str
        The host as ssh knows it.
    n : int
        Number of ranks.
    """

    host: str
    n: int


@dataclass(frozen=True)
class Command:
    """The first part of a command line that starts ranks; the number of ranks and their program follow.

    Attributes
    ----------
    words : tuple of str
        The program and its options.
    environment : mapping of str to str
        Environment variables of the program.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]


def split(text: str | None) -> tuple[str, ...]:
    """The user's own options for mpiexec as words.

    Raises
    ------
    UsageError
        If a quotation mark is not closed.
    """
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"--mpi-args: received {text!r}, expected options as a shell reads them: {error}") from None


def shown(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command line with its environment, as a shell takes it."""
    return shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), *words])
