"""Live views of reports: HTML in a notebook, and one line, rewritten in place, in a terminal.

The notebook's view is a display that is updated, not a widget. A widget is lost if the notebook is opened without its
kernel. The last update of a display stays in the cell's output, in JupyterLab, Notebook, VS Code and nbconvert, and it
needs no extension of the browser. Buttons of a widget would not work while the kernel is busy. Pages that do not get
the updates, because they were loaded later, ask for them by a widget without a view; see `xpulab.widgets.pages`.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from xpulab.report import kept
from xpulab.report.calls import Calls
from xpulab.report.record import FitRecord
from xpulab.report.terminal import SearchView, TextView
from xpulab.widgets.pages import Drawing, Pages
from xpulab.widgets.restoring import restore_while_cells_run

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab.report.progress import Report, View

__all__ = ["CellViews", "NotebookViews", "TaskView", "TerminalViews"]

#: Limit for updates, because Jupyter's server drops output beyond a megabyte per second. Long outputs are drawn less
#: often.
_BYTES_PER_SECOND = 300_000
#: In a loop of quick calls the calling thread draws. This is the largest share of its time for drawing.
_SHARE = 0.02
#: Seconds for which a report must have stood before the next cell folds it. If all cells run one after the other, in a
#: front end or by nbconvert, nobody has seen it, and the notebook is to be read as a whole.
SEEN = 1.0
#: Seconds between two copies of the report of a running call on the disk, for a kernel that is restarted.
_KEEP = 10.0


class Output:
    """One output of a cell, which can be updated.

    Parameters
    ----------
    pages : Pages
        Keeps the drawings for pages that do not get the updates.

    Attributes
    ----------
    shown : bool
        Whether the output was shown.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._name = uuid.uuid4().hex
        self._drawn = 0
        self._due = 0.0

    @property
    def shown(self) -> bool:
        """Whether the output was shown."""
        return self._drawn > 0

    @property
    def due(self) -> bool:
        """Whether the output may be updated now."""
        return time.monotonic() >= self._due

    def show(self, thing: Calls | Report, runs: bool = False, final: bool = False) -> None:
        """Show an object as HTML and as text; `final` says that no other drawing follows."""
        from IPython.display import display

        begun = time.thread_time()
        number = self._drawn + 1
        html = self._pages.marked(thing._repr_html_(), self._name, number, final)
        bundle = {"text/html": html, "text/plain": str(thing)}
        display(bundle, raw=True, display_id=f"xpulab-{self._name}", update=self.shown)
        self._drawn = number
        sent = len(html) * self._pages.drawn(self._name, Drawing(number, html, runs, final))
        size = sum(map(len, bundle.values())) + sent
        pause = max(size / _BYTES_PER_SECOND, (time.thread_time() - begun) / _SHARE)
        self._due = time.monotonic() + pause

    def end(self) -> None:
        """Note that no other drawing follows."""
        self._pages.ended(self._name)


class TaskView:
    """The view of a task other than a call of an estimator, such as the start of a cluster."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._output = Output(pages)

    def update(self, report: Report) -> None:
        """Show the progress of ``report``."""
        self._pages.await_drawings()
        if self._output.due:
            self._output.show(report, runs=True)

    def close(self, report: Report) -> None:
        """Show the final report."""
        if self._output.shown or report.lasting:
            self._output.show(report, final=True)


class Cell:
    """The output of all calls of estimators in one cell: one report, or a table of several calls."""

    def __init__(self, pages: Pages) -> None:
        self.calls = Calls()
        self.pages = pages
        self._output = Output(pages)
        self._stale = False
        self._since = 0.0
        self._lock = threading.Lock()

    def show(self, report: FitRecord, now: bool = False) -> bool:
        """Add a call, and show it if `now`, or if the output may be updated. Returns whether it was shown."""
        with self._lock:
            self._since = time.monotonic()
            self.calls.add(report)
            self._stale = not (now or self._output.due or self.calls.over)
            if not self._stale:
                self._output.show(self.calls, self.calls.running, self.calls.over and not self.calls.running)
            return not self._stale

    def end(self) -> None:
        """Show the calls that are not shown yet, after the cell has ended."""
        with self._lock:
            self._since, ran = time.monotonic(), self.calls.running
            self.calls.end()
            if self._stale or self.calls.tabled or ran:  # a search runs until the cell ends, whatever its calls show
                self._output.show(self.calls, self.calls.running, not self.calls.running)
            elif not self.calls.running:
                self._output.end()

    def fold(self) -> None:
        """Fold a report that has finished, and stood for a while, because the next cell begins."""
        with self._lock:
            if self._output.shown and time.monotonic() - self._since >= SEEN and self.calls.fold():
                self._output.show(self.calls, final=True)


class CallView:
    """The view of one call of an estimator, in the output of its cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._updated = self._running = False
        self._kept = time.monotonic()

    def update(self, report: FitRecord) -> None:
        """Show the progress of ``report``."""
        self._cell.pages.await_drawings()
        self._updated = True
        self._running = self._cell.show(report) or self._running
        if time.monotonic() - self._kept > _KEEP:
            self._kept = time.monotonic()
            _keep(report)

    def close(self, report: FitRecord) -> None:
        """Show how the call ended: now if the output shows it as running, otherwise at the cell's end at the latest."""
        if self._updated or report.lasting:
            self._cell.show(report, now=self._running)
        else:
            self._cell.calls.leave_out(report)


def _keep(report: FitRecord) -> None:
    """Keep a report, in a thread: the next cell need not wait for it, and the time is none of drawing the view."""
    threading.Thread(target=kept.keep, args=(report,), name="xpulab-keep").start()


class CellViews:
    """Makes the views of a shell, and knows which cell runs.

    Parameters
    ----------
    shell : IPython's InteractiveShell
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._events = shell.events
        self._last: FitRecord | None = None
        self._begin()
        self._events.register("pre_run_cell", self._begin)
        self._events.register("post_run_cell", self._end)

    def close(self) -> None:
        """Make no more views."""
        self._events.unregister("pre_run_cell", self._begin)
        self._events.unregister("post_run_cell", self._end)

    def __call__(self, report: Report) -> View | None:
        """Return the view of a report; None if the report's `display` is "none"."""
        if isinstance(report, FitRecord):
            self._last = report
        return None if report.display == "none" else self._view(report)

    def _view(self, report: Report) -> View:
        raise NotImplementedError

    def _begin(self, *_: object) -> None:
        """Begin the view of a cell."""

    def _end(self, *_: object) -> None:
        """End the view of a cell."""
        if self._last is not None:
            _keep(self._last)
            self._last = None


class NotebookViews(CellViews):
    """The views of a notebook, in which all calls of a cell share one output."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._pages = Pages()
        self._busy = False
        self._cell = self._seen = Cell(self._pages)
        kernel = getattr(shell, "kernel", None)
        self._restored = restore_while_cells_run(kernel, lambda: self._busy, self._pages.loaded)
        super().__init__(shell)

    def close(self) -> None:
        """Make no more views."""
        super().close()
        self._restored()
        self._pages.close()

    def _view(self, report: Report) -> View:
        return CallView(self._cell) if isinstance(report, FitRecord) else TaskView(self._pages)

    def _begin(self, *info: object) -> None:
        self._busy = True
        self._cell = Cell(self._pages)
        if all(getattr(each, "store_history", True) for each in info):  # nobody sees other cells, of extensions
            self._seen.fold()
            self._seen = self._cell

    def _end(self, *_: object) -> None:
        self._busy = False
        self._cell.end()
        super()._end()


class TerminalViews(CellViews):
    """The views of IPython in a terminal.

    The first call of a cell leaves its report, each further call a line, and a search how it has ended.
    """

    def _view(self, report: Report) -> View:
        if not isinstance(report, FitRecord) or report.search is None:
            return TextView(report, whole=self._whole)
        return self._searches.setdefault(report.search, SearchView(report.search))

    def _begin(self, *_: object) -> None:
        self._told = 0
        self._searches: dict[Any, SearchView] = {}

    def _end(self, *_: object) -> None:
        for view in self._searches.values():
            view.end()
        self._searches = {}
        super()._end()

    def _whole(self, report: Report) -> bool:
        if not isinstance(report, FitRecord):
            return True
        self._told += 1
        return self._told == 1 and report.display == "full"
