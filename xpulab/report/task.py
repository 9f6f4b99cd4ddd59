"""What calls and other tasks have in common: status, clock and display; and the record of tasks other than calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from xpulab.report.rendering import format_seconds, plain

__all__ = ["DISPLAYS", "Display", "Status", "TaskRecord", "Timed"]

#: How calls are shown while they run and at their end: as a whole report, as one line each, or not at all.
Display = Literal["full", "compact", "none"]
DISPLAYS: tuple[Display, ...] = get_args(Display)
#: A call that is "not converged" has finished, too: it ended at ``max_iter``.
Status = Literal["running", "finished", "not converged", "interrupted", "failed"]


class Timed:
    """The status and the clock that calls of estimators and other tasks have in common."""

    status: Status
    message: str
    seconds: float
    #: How views show the report. `to_dict` does not include it.
    display: Display = "full"
    #: The search of scikit-learn's, of which the call is a part (`xpulab.report.searches.Search`).
    search: Any = None
    _clock: float | None

    #: The command that shows the present state. A view that no longer changes displays it.
    later = "for now, type: %xpu_cluster status"

    @property
    def elapsed(self) -> float:
        """Seconds since the start while the task runs, and `seconds` after its end."""
        if self.status != "running" or self._clock is None:
            return self.seconds
        return time.perf_counter() - self._clock

    @property
    def finished(self) -> bool:
        """Whether the task has done what was asked, to its end."""
        return self.status in ("finished", "not converged")

    def finish(self, status: Status = "finished", message: str = "") -> None:
        """Stop the clock, and set the status and the message.

        Parameters
        ----------
        status : {"finished", "interrupted", "failed"}
            How the task ended.
        message : str
            Why the task was interrupted or failed.
        """
        self.seconds = self.elapsed
        self.status, self.message = self._seen_as(status), message

    def _seen_as(self, status: Status) -> Status:
        return status


@dataclass(repr=False)
class TaskRecord(Timed):
    """A task other than a call of an estimator, such as the start of a cluster.

    Parameters
    ----------
    title : str
        Name of the task, such as ``"start 4 engines"``.
    total : int
        Number of steps.
    done : int
        Number of steps done.
    message : str
        While the task runs, its present step, such as ``"waiting for engine 2 of 4"``. At the end, why it failed.
    status : {"running", "finished", "interrupted", "failed"}
        State of the task.
    seconds : float
        Wall time of the whole task, after its end.
    """

    title: str
    total: int = 1
    done: int = 0
    message: str = ""
    status: Status = "running"
    seconds: float = 0.0
    _clock: float | None = field(default_factory=time.perf_counter, init=False, compare=False)

    #: A task too quick for a live view leaves nothing behind.
    lasting = False

    @property
    def headline(self) -> str:
        """Title, status and seconds of the task, on one line."""
        joint = "in" if self.status == "finished" else "after"
        return f"{plain(self.title)}: {self.status} {joint} {format_seconds(self.seconds)}"

    @property
    def summary(self) -> str:
        """How the task ended, on one line."""
        return "; ".join([self.headline, *map(plain, self.message.splitlines()[:1])])

    def line(self) -> str:
        """Return the progress of the task, on one line."""
        steps = f"{self.done}/{self.total}" if self.total > 1 else ""
        return "  ".join(map(plain, filter(None, [self.title, steps, self.message, format_seconds(self.elapsed)])))
