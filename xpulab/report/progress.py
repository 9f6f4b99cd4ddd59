"""The one-way link from whatever takes time to whoever shows it.

An estimator, or a cluster that starts, opens a report and says when it changed; views subscribe, and draw. Neither
knows of the other. Drawing happens in a thread of its own, so that it neither delays the work nor is cut off by it:

>>> from xpulab.report import progress
>>> with progress.open(progress.TaskReport("start 2 engines", total=2)) as handle:
...     handle.report.done = 1
...     handle.update()
"""

from __future__ import annotations

import contextvars
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from xpulab.exceptions import XpulabWarning
from xpulab.rendering import Displayed, as_of, plain
from xpulab.report.html import task_html
from xpulab.report.record import Display, Status, TaskRecord
from xpulab.report.terminal import of_a_script

__all__ = ["ProgressHandle", "Report", "TaskReport", "View", "open", "subscribe"]

#: Seconds before a view hears anything: what is done by then shows its result only, and nothing flickers.
FIRST = 0.2
#: Least seconds between two updates; a front end redraws each.
INTERVAL = 0.1
#: Part of a core's time that drawing may take, or a view is drawn less often; sending it takes as much again.
SHARE = 0.005
#: Seconds after which a view is called although nothing was reported, so that its clock goes on.
TICK = 1.0


class Report(Protocol):
    """What can be shown: `xpulab.report.fit.FitReport`, `TaskReport`."""

    status: Status
    display: Display

    @property
    def summary(self) -> str:
        """How it ended, on one line."""

    @property
    def lasting(self) -> bool:
        """Whether the end is worth showing if nothing was shown before."""

    def line(self) -> str:
        """Where it stands, on one line."""

    def finish(self, status: Status = "finished", message: str = "") -> None:
        """Stop the clock."""

    def _repr_html_(self) -> str: ...


class View(Protocol):
    """Something that shows one report. `update` is called from another thread than `close`, never at the same time."""

    def update(self, report: Any) -> None:
        """Show where ``report`` stands."""

    def close(self, report: Any) -> None:
        """Show how ``report`` ended."""


Factory = Callable[[Any], View | None]
R = TypeVar("R", bound=Report)
T = TypeVar("T")

_factories: list[Factory] = []


def subscribe(factory: Factory) -> Callable[[], None]:
    """Have a view made for every report that is opened from now on.

    Parameters
    ----------
    factory : callable
        Takes the report, returns a `View`, or None for none.

    Returns
    -------
    callable
        Ends the subscription; harmless when repeated.
    """
    _factories.append(factory)

    def unsubscribe() -> None:
        if factory in _factories:
            _factories.remove(factory)

    return unsubscribe


def open(report: R) -> ProgressHandle[R]:
    """Show ``report`` in every view subscribed, until the handle is closed; without any, as a script shows it."""
    return ProgressHandle(report)


class ProgressHandle(Generic[R]):
    """Passes a report's changes on to its views, at most ten times a second; how it ended always arrives.

    As a context manager it closes itself, and marks a report that still runs as finished, or as interrupted or failed
    if an exception passes. A view that raises is dropped, with an `XpulabWarning`: it cannot break what it shows.
    """

    def __init__(self, report: R) -> None:
        self.report = report
        self._views: list[View] = []
        self._failures: list[str] = []
        self._changed = True
        self._closed = threading.Event()
        for factory in tuple(_factories) or (of_a_script,):
            self._survives(self._make_view, factory)
        self._warn()
        # The context tells IPython which cell is running; a new thread would start without it.
        draw = contextvars.copy_context().run
        self._thread = threading.Thread(target=draw, args=(self._draw,), name="xpulab-progress", daemon=True)
        if self._views:
            self._thread.start()

    def _make_view(self, factory: Factory) -> None:
        view = factory(self.report)
        if view is not None:
            self._views.append(view)

    def update(self, report: R | None = None) -> None:
        """Say that the report changed, or that ``report`` takes its place. Costs next to nothing."""
        self.report = self.report if report is None else report
        self._changed = True
        self._warn()

    def close(self, report: R | None = None) -> None:
        """Show how the report ended; harmless when repeated."""
        self.report = self.report if report is None else report
        if self._closed.is_set():
            return
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._tell(lambda view: view.close(self.report))
        self._warn()

    def __enter__(self) -> ProgressHandle[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.report.status == "running":
            if isinstance(error, KeyboardInterrupt):
                self.report.finish("interrupted")
            elif error is not None:
                # The first line: whoever raised it shows all of it, right below.
                self.report.finish("failed", f"{type(error).__name__}: {error}".partition("\n")[0])
            else:
                self.report.finish()
        self.close()

    def _draw(self) -> None:
        drawn, pause = time.monotonic(), FIRST
        while not self._closed.wait(pause):
            pause = INTERVAL
            if self._changed or time.monotonic() - drawn >= TICK:
                self._changed = False
                begun = time.thread_time()
                self._tell(lambda view: view.update(self.report))
                drawn = time.monotonic()
                pause = max(INTERVAL, (time.thread_time() - begun) / SHARE)

    def _tell(self, call: Callable[[View], None]) -> None:
        self._views = [view for view in self._views if self._survives(call, view)]

    def _survives(self, call: Callable[[T], None], argument: T) -> bool:
        try:
            call(argument)
        except Exception as error:
            self._failures.append(f"a view was dropped, since it raised {type(error).__name__}: {error}")
            return False
        return True

    def _warn(self) -> None:
        # Warned of in the caller's thread: in the drawing one a filter that turns warnings into errors would end it.
        while self._failures:
            warnings.warn(self._failures.pop(0), XpulabWarning, stacklevel=3)


@dataclass(repr=False)
class TaskReport(TaskRecord, Displayed):
    """Something other than a fit that a user waits for; see `TaskRecord`."""

    def __str__(self) -> str:
        if self.status == "running":
            return f"{self.line()}\n  {as_of(self.later)}"
        return "\n  ".join([self.headline, *map(plain, self.message.splitlines())])

    def _repr_html_(self) -> str:
        return task_html(self)
