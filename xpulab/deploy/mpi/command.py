"""What every MPI's command line has in common."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xpulab.exceptions import UsageError
from xpulab.libraries.libmpi import LIBMPI

__all__ = ["DEFAULT", "HERE", "LIBMPI", "NAMES", "Command", "Found", "RanksOfHost", "ending", "shown", "split"]

#: The name of this host in `RanksOfHost`, if ranks run on this host only.
HERE = "localhost"

#: The MPIs from which users choose.
NAMES = ("intel", "openmpi", "mpich")
DEFAULT = "intel"


@dataclass(frozen=True)
class RanksOfHost:
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
    mpi : str
        Name of the MPI.
    own_library : bool
        Whether the user's variable MPI4PY_LIBMPI names the library.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    mpi: str = DEFAULT
    own_library: bool = False

    def expected(self, n: int) -> dict[str, Any]:
        """Return what `n` ranks compare with what they find, see `xpulab.libraries.libmpi`."""
        return {"mpi": self.mpi, "n": n, "mpiexec": self.words[0], "own": self.own_library}


@dataclass(frozen=True)
class Found:
    """An MPI of this host.

    Attributes
    ----------
    mpiexec : str
        Path of its mpiexec.
    version : tuple of int
        Version that mpiexec says.
    library : str
        Path of its library; empty if mpi4py has to find it.
    """

    mpiexec: str
    version: tuple[int, ...] = ()
    library: str = ""


def split(text: str | None) -> tuple[str, ...]:
    """Return the user's own options for mpiexec as words.

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
    """Return a command line with its environment, as a shell takes it."""
    return shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), *words])


def ending(status: int) -> str:
    """Return how a process ended, from its wait status: "killed by signal: 9 (killed)", "exited with status 3"."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"killed by signal: {number} ({signal.strsignal(number)})".lower()
    return f"exited with status {os.WEXITSTATUS(status)}"
