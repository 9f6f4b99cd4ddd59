"""Views of a report while it changes: HTML in a notebook, one line rewritten in place in a terminal.

The notebook's view is a display that is updated, not a widget. A widget's picture is lost when the notebook is opened
again without its kernel; the last update of a display is the cell's output, in JupyterLab, Notebook, VS Code and
nbconvert alike, and it needs no extension in the browser. Nothing in it could be pressed while the kernel is busy.
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

#: Jupyter's server drops output beyond a megabyte a second; what is long is redrawn less often.
_BYTES_PER_SECOND = 300_000
#: Part of the time that drawing may take in a loop of quick calls, which are drawn in the thread that calls.
_SHARE = 0.02


class Output:
    """One output of a cell, which is rewritten.

    Attributes
    ----------
    shown : bool
        Whether it is there yet.
    """

    def __init__(self) -> None:
        self.shown = False
        self._id = f"xpulab-{uuid.uuid4().hex}"
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether it may be rewritten now."""
        return time.monotonic() >= self._due

    def show(self, thing: Any) -> None:
        """Write an object's two forms."""
        from IPython.display import display

        begun = time.thread_time()
        bundle = {"text/html": thing._repr_html_(), "text/plain": str(thing)}
        display(bundle, raw=True, display_id=self._id, update=self.shown)
        self.shown = True
        pause = max(sum(map(len, bundle.values())) / _BYTES_PER_SECOND, (time.thread_time() - begun) / _SHARE)
        self._due = time.monotonic() + pause


class TaskView:
    """An output for something other than a call of an estimator: a cluster that starts, for example."""

    def __init__(self) -> None:
        self._output = Output()

    def update(self, report: Report) -> None:
        """Show where ``report`` stands."""
        if self._output.due:
            self._output.show(report)

    def close(self, report: Report) -> None:
        """Leave the standing report."""
        if self._output.shown or report.lasting:
            self._output.show(report)


class Cell:
    """The output that all calls of estimators in one cell share: one report, or a table of several calls."""

    def __init__(self) -> None:
        self.calls = Calls()
        self._output = Output()
        self._stale = False
        self._lock = threading.Lock()

    def show(self, report: FitRecord, now: bool = False) -> bool:
        """Add a call, and show it: now, or if the output may be rewritten. Whether it was shown."""
        with self._lock:
            self.calls.add(report)
            self._stale = not (now or self._output.due or self.calls.over)
            if not self._stale:
                self._output.show(self.calls)
            return not self._stale

    def end(self) -> None:
        """The cell has ended: show what was not shown yet."""
        with self._lock:
            self.calls.over = True
            if self._stale or self.calls.tabled:
                self._output.show(self.calls)


class CallView:
    """One call of an estimator in the output of its cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._updated = self._running = False

    def update(self, report: FitRecord) -> None:
        """Show where ``report`` stands."""
        self._updated = True
        self._running = self._cell.show(report) or self._running

    def close(self, report: FitRecord) -> None:
        """Show how it ended: now, if it is on the screen as running, otherwise by the end of the cell."""
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
        """The view of a report; None if it is not to be shown."""
        return None if report.display == "none" else self._view(report)

    def _view(self, report: Report) -> View:
        raise NotImplementedError

    def _begin(self, *_: Any) -> None:
        """A cell begins."""

    def _end(self, *_: Any) -> None:
        """It has ended."""


class NotebookViews(CellViews):
    """The views of a notebook: all calls of a cell share one output."""

    def _view(self, report: Report) -> View:
        return CallView(self._cell) if isinstance(report, FitRecord) else TaskView()

    def _begin(self, *_: Any) -> None:
        self._cell = Cell()

    def _end(self, *_: Any) -> None:
        self._cell.end()


class TerminalViews(CellViews):
    """The views of IPython in a terminal: the first call of a cell leaves its report, and others a line each."""

    def _view(self, report: Report) -> View:
        return TextView(report, whole=self._whole)

    def _begin(self, *_: Any) -> None:
        self._told = 0

    def _whole(self, report: Report) -> bool:
        if not isinstance(report, FitRecord):
            return True
        self._told += 1
        return self._told == 1 and report.display == "full"
