"""Live views of reports: HTML in a notebook, and one line, rewritten in place, in a terminal.

The notebook's view is a display that is updated, not a widget. A widget is lost if the notebook is opened without its
kernel. The last update of a display stays in the cell's output, in JupyterLab, Notebook, VS Code and nbconvert, and it
needs no extension of the browser. Buttons of a widget would not work while the kernel is busy.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from xpulab.report.calls import Calls
from xpulab.report.record import FitRecord
from xpulab.report.terminal import TextView

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab.report.progress import Report, View

__all__ = ["CellViews", "NotebookViews", "TaskView", "TerminalViews"]

#: Limit for updates, because Jupyter's server drops output beyond a megabyte per second. Long outputs are drawn less
#: often.
_BYTES_PER_SECOND = 300_000
#: In a loop of quick calls the calling thread draws. This is the largest share of its time for drawing.
_SHARE = 0.02


class Output:
    """One output of a cell, which can be updated.

    Attributes
    ----------
    shown : bool
        Whether the output was shown.
    """

    def __init__(self) -> None:
        self.shown = False
        self._id = f"xpulab-{uuid.uuid4().hex}"
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether the output may be updated now."""
        return time.monotonic() >= self._due

    def show(self, thing: Any) -> None:
        """Show an object as HTML and as text."""
        from IPython.display import display

        begun = time.thread_time()
        bundle = {"text/html": thing._repr_html_(), "text/plain": str(thing)}
        display(bundle, raw=True, display_id=self._id, update=self.shown)
        self.shown = True
        pause = max(sum(map(len, bundle.values())) / _BYTES_PER_SECOND, (time.thread_time() - begun) / _SHARE)
        self._due = time.monotonic() + pause


class TaskView:
    """The view of a task other than a call of an estimator, such as the start of a cluster."""

    def __init__(self) -> None:
        self._output = Output()

    def update(self, report: Report) -> None:
        """Show the progress of ``report``."""
        if self._output.due:
            self._output.show(report)

    def close(self, report: Report) -> None:
        """Show the final report."""
        if self._output.shown or report.lasting:
            self._output.show(report)


class Cell:
    """The output of all calls of estimators in one cell: one report, or a table of several calls."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._output = Output()
        self._stale = False
        self._lock = threading.Lock()

    def show(self, report: FitRecord, now: bool = False) -> bool:
        """Add a call, and show it if `now`, or if the output may be updated. Returns whether it was shown."""
        with self._lock:
            self.calls.add(report)
            self._stale = not (now or self._output.due or self.calls.over)
            if not self._stale:
                self._output.show(self.calls)
            return not self._stale

    def end(self) -> None:
        """Show the calls that are not shown yet, after the cell has ended."""
        with self._lock:
            self.calls.over = True
            if self._stale or self.calls.tabled:
                self._output.show(self.calls)


class CallView:
    """The view of one call of an estimator, in the output of its cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._updated = self._running = False

    def update(self, report: FitRecord) -> None:
        """Show the progress of ``report``."""
        self._updated = True
        self._running = self._cell.show(report) or self._running

    def close(self, report: FitRecord) -> None:
        """Show how the call ended: now if the output shows it as running, otherwise at the cell's end at the latest."""
        if self._updated or report.lasting:
            self._cell.show(report, now=self._running)


class CellViews:
    """Makes the views of a shell, and knows which cell runs.

    Parameters
    ----------
    shell : IPython's InteractiveShell
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._events = shell.events
        self._begin()
        self._events.register("pre_run_cell", self._begin)
        self._events.register("post_run_cell", self._end)

    def close(self) -> None:
        """Make no more views."""
        self._events.unregister("pre_run_cell", self._begin)
        self._events.unregister("post_run_cell", self._end)

    def __call__(self, report: Report) -> View | None:
        """Return the view of a report; None if the report's `display` is "none"."""
        return None if report.display == "none" else self._view(report)

    def _view(self, report: Report) -> View:
        raise NotImplementedError

    def _begin(self, *_: Any) -> None:
        """Called when a cell begins."""

    def _end(self, *_: Any) -> None:
        """Called when a cell has ended."""


class NotebookViews(CellViews):
    """The views of a notebook, in which all calls of a cell share one output."""

    def _view(self, report: Report) -> View:
        return CallView(self._cell) if isinstance(report, FitRecord) else TaskView()

    def _begin(self, *_: Any) -> None:
        self._cell = Cell()

    def _end(self, *_: Any) -> None:
        self._cell.end()


class TerminalViews(CellViews):
    """The views of IPython in a terminal. The first call of a cell leaves its report, and each further call a line."""

    def _view(self, report: Report) -> View:
        return TextView(report, whole=self._whole)

    def _begin(self, *_: Any) -> None:
        self._told = 0

    def _whole(self, report: Report) -> bool:
        if not isinstance(report, FitRecord):
            return True
        self._told += 1
        return self._told == 1 and report.display == "full"
