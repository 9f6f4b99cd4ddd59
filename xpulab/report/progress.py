"""Passes the progress of calls to the views that show it.

An estimator, or a cluster that starts, opens a report and says when the report has changed. Views subscribe to all
reports, and draw them. Neither side knows the other. Another thread draws, so that drawing does not delay the work, and
the work does not delay drawing:

>>> from xpulab.report import progress
>>> with progress.open(progress.TaskReport("start 2 engines", total=2)) as handle:
...     handle.report.done = 1
...     handle.update()
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from xpulab.exceptions import XpulabWarning
from xpulab.report.html import task_html
from xpulab.report.rendering import Displayed, as_of, plain
from xpulab.report.task import Display, Status, TaskRecord
from xpulab.report.terminal import LineView, of_a_script

__all__ = ["ProgressHandle", "Report", "TaskReport", "View", "open", "subscribe"]

_LOG = logging.getLogger("xpulab")

#: Seconds before the first update of a view. A quicker call shows only its result, so that nothing flickers.
FIRST = 0.2
#: Smallest number of seconds between two updates, because a front end draws each update.
INTERVAL = 0.1
#: Largest part of a core's time for drawing; views are drawn less often if it would take more. Sending a drawn view to
#: the front end takes about as much time again.
SHARE = 0.005
#: Seconds after which a view is updated even if nothing was reported, so that its clock goes on.
TICK = 1.0


class Report(Protocol):
    """The interface of reports that views can show: `xpulab.report.fit.FitReport` and `TaskReport`."""

    status: Status
    display: Display

    @property
    def summary(self) -> str:
        """How the call ended, on one line."""

    @property
    def lasting(self) -> bool:
        """Whether a view shows the end of a call that was too quick for a live view."""

    def line(self) -> str:
        """Return the progress of the call, on one line."""

    def finish(self, status: Status = "finished", message: str = "") -> None:
        """Stop the clock, and set the status and the message."""

    def _repr_html_(self) -> str: ...


class View(Protocol):
    """A view shows one report. Different threads call `update` and `close`, but never at the same time."""

    def update(self, report: Any) -> None:
        """Show the progress of ``report``."""

    def close(self, report: Any) -> None:
        """Show how ``report`` ended."""


Factory = Callable[[Any], View | None]
R = TypeVar("R", bound=Report)
T = TypeVar("T")

_factories: list[Factory] = []


def subscribe(factory: Factory) -> Callable[[], None]:
    """Call a factory of views for every report that is opened from now on.

    Parameters
    ----------
    factory : callable
        Takes a report, and returns a `View`, or None if it does not show this report.

    Returns
    -------
    callable
        A function that ends the subscription. Repeated calls do nothing.
    """
    _factories.append(factory)

    def unsubscribe() -> None:
        if factory in _factories:
            _factories.remove(factory)

    return unsubscribe


def open(report: R) -> ProgressHandle[R]:
    """Show ``report`` in a view of each subscriber until the handle is closed; without subscribers, as in a script."""
    return ProgressHandle(report)


class ProgressHandle(Generic[R]):
    """Passes a report's changes to its views, at most ten times a second. The end of the report is always shown.

    As a context manager, it closes itself at the end of the body. A report that still runs is then marked as finished,
    or as interrupted or failed if the body raised an exception. A view that raises an exception is removed, with an
    `XpulabWarning`, and the call goes on.
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
        # The context tells IPython which cell is running. A new thread does not inherit it.
        draw = contextvars.copy_context().run
        self._thread = threading.Thread(target=draw, args=(self._draw,), name="xpulab-progress", daemon=True)
        if self._views:
            self._thread.start()

    @property
    def told(self) -> bool:
        """Whether the user sees the report: in a notebook or IPython, or in a script that shows or logs it."""
        return bool(self._views or _factories)

    def say(self, text: str) -> None:
        """Print a message of a call that runs, if no view shows its progress, as in a script without a terminal."""
        if self.report.display != "none" and not _factories and not any(isinstance(v, LineView) for v in self._views):
            print(text, file=sys.stderr, flush=True)

    def _make_view(self, factory: Factory) -> None:
        view = factory(self.report)
        if view is not None:
            self._views.append(view)

    def update(self, report: R | None = None) -> None:
        """Say that the report has changed, or replace it by ``report``. This takes almost no time."""
        self.report = self.report if report is None else report
        self._changed = True
        self._warn()

    def close(self, report: R | None = None) -> None:
        """Show how the report ended. Repeated calls do nothing."""
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
                self.report.finish("failed", _first_line(error))
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
            self._failures.append(f"a view was removed, because it raised {_first_line(error)}")
            return False
        return True

    def _warn(self) -> None:
        # The caller's thread warns: a filter may turn warnings into errors, and would end the drawing thread. It does
        # not end the call either, which goes on without the view; the log then has the message.
        while self._failures:
            message = self._failures.pop(0)
            try:
                warnings.warn(message, XpulabWarning, stacklevel=3)
            except XpulabWarning:
                _LOG.warning("%s", message)


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, or its name if it has no text. The whole error is shown below the view."""
    try:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    except Exception:
        return type(error).__name__


@dataclass(repr=False)
class TaskReport(TaskRecord, Displayed):
    """The report of a task other than a call of an estimator, such as the start of a cluster; see `TaskRecord`."""

    def __str__(self) -> str:
        if self.status == "running":
            return f"{self.line()}\n  {as_of(self.later)}"
        return "\n  ".join([self.headline, *map(plain, self.message.splitlines())])

    def _repr_html_(self) -> str:
        return task_html(self)
