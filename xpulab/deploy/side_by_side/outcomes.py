"""What became of jobs of joblib that run on the ranks of a host: files in a folder that a cluster makes for them.

A rank that takes a job creates the file of its number, which only one rank can do. When the job has ended, its outcome
is in a file beside it. So the notebook has what has ended while other jobs run, and after an engine was lost.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

from xpulab.sharing.classes import dumps

__all__ = ["ENDED", "Outcome", "Warned", "claim", "claimed", "found", "keep", "run"]

#: Name of a file whose presence says that no further job is to be taken: one has raised an exception.
ENDED = "ended"
_SUFFIX = ".outcome"


@dataclass(frozen=True)
class Warned:
    """A warning, and where its cause is."""

    message: Warning | str
    category: type[Warning]
    filename: str
    line: int


@dataclass(frozen=True)
class Outcome:
    """What a job returned or raised, and its warnings.

    Attributes
    ----------
    value : object
    error : Exception or None
    told : str
        The traceback on the rank; empty without an error.
    warned : list of Warned
    """

    value: object
    error: Exception | None
    told: str
    warned: list[Warned]


def claim(folder: Path, number: int, rank: int) -> bool:
    """Take a job for a rank; return False if another rank has taken it."""
    try:
        descriptor = os.open(folder / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(str(rank))
    return True


def keep(folder: Path, number: int, outcome: Outcome) -> None:
    """Leave the outcome of a job. After an error, ranks take no further job.

    A value or an exception that cannot be pickled becomes an error that says so.
    """
    try:
        content = dumps(outcome)
    except Exception as reason:
        content = dumps(Outcome(None, _cannot_travel(outcome, reason), outcome.told, []))
    if outcome.error is not None:
        (folder / ENDED).touch()
    half = folder / f"{number}.half"
    half.write_bytes(content)
    half.rename(folder / f"{number}{_SUFFIX}")


def _cannot_travel(outcome: Outcome, reason: Exception) -> Exception:
    if outcome.error is None:
        return TypeError(f"what the job returned cannot be sent from the engine: {reason}")
    said = f"{type(outcome.error).__name__}: {outcome.error}"
    return RuntimeError(f"{said} (this error cannot be sent from the engine: {reason})")


def found(folder: Path, known: set[int]) -> Iterator[tuple[int, Outcome]]:
    """Yield number and outcome of the jobs that have ended and are not known yet; they are then known."""
    for file in sorted(folder.glob(f"*{_SUFFIX}")):
        number = int(file.name.removesuffix(_SUFFIX))
        if number not in known:
            known.add(number)
            yield number, pickle.loads(file.read_bytes())
            file.write_bytes(b"")


def claimed(folder: Path) -> set[int]:
    """Return the numbers of the jobs that ranks have taken."""
    return {int(file.name) for file in folder.iterdir() if file.name.isdecimal()}


def run(calls: Sequence[tuple[Callable[..., object], Sequence[Any], Mapping[str, Any]]]) -> list[object]:
    """Make the calls of a job. What they call by joblib is no further job: it runs at once."""
    with joblib.parallel_config("sequential"):
        return [function(*arguments, **named) for function, arguments, named in calls]
