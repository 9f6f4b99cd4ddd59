"""One job of joblib: what it calls, and how it ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xpulab.deploy.side_by_side.outcomes import Outcome

__all__ = ["Call", "Job"]

#: A function, its arguments, and its arguments by name.
Call = tuple[Callable[..., object], Sequence[Any], Mapping[str, Any]]


class OnEngine(Exception):
    """The traceback of an error on an engine, which is the cause of the same error in this process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Job:
    """Some calls of joblib, which one engine makes one after the other.

    Parameters
    ----------
    calls : sequence of Call
    told : callable
        Called when the job has ended.

    Attributes
    ----------
    outcome : Outcome or None
        None until the job has ended.
    """

    def __init__(self, calls: Sequence[Call], told: Callable[[object], object]) -> None:
        self.calls, self.told = calls, told
        self.outcome: Outcome | None = None

    @property
    def value(self) -> Any:
        """What the calls have returned.

        Raises
        ------
        Exception
            The exception of a call.
        """
        assert self.outcome is not None
        if self.outcome.error is not None:
            raise self.outcome.error from OnEngine(self.outcome.told)
        return self.outcome.value

    def end(self, outcome: Outcome) -> None:
        """Note the outcome, and warn of what the engine has been warned of."""
        self.outcome = outcome
        for each in outcome.warned:
            warnings.warn_explicit(each.message, each.category, each.filename, each.line)
        self.told(self)
