"""Views of a report while it changes: HTML in a notebook, one line rewritten in place in a terminal.

The notebook's view is a display that is updated, not a widget. A widget's picture is lost when the notebook is opened
again without its kernel; the last update of a display is the cell's output, in JupyterLab, Notebook, VS Code and
nbconvert alike, and it needs no extension in the browser. Nothing in it could be pressed while the kernel is busy.
"""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab.report.progress import Report

__all__ = ["NotebookView", "NotebookViews", "TextView"]

#: Jupyter's server drops output beyond a megabyte a second; a report of hundreds of engines is redrawn less often.
_BYTES_PER_SECOND = 300_000


class NotebookViews:
    """Makes the views of one notebook; a loop of fits does not fill the notebook with reports.

    The first calls of a cell that show anything have an output each. Those beyond share the last one, which shows the
    latest: each estimator keeps its own ``report_``.
    """

    OUTPUTS_PER_CELL = 4

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._cell = -1
        self._views: list[NotebookView] = []

    def __call__(self, report: Report) -> NotebookView:
        if self._shell.execution_count != self._cell:
            self._cell, self._views = self._shell.execution_count, []
        shown = [view for view in self._views if view.shown]
        if len(shown) >= self.OUTPUTS_PER_CELL:
            return shown[-1]
        self._views = [*shown, NotebookView()]
        return self._views[-1]


class NotebookView:
    """One output of a cell, which shows a report and is rewritten when it changes.

    Attributes
    ----------
    shown : bool
        Whether there is an output yet.
    """

    def __init__(self) -> None:
        self.shown = False
        self._id = f"xpulab-{uuid.uuid4().hex}"
        self._due = 0.0

    def update(self, report: Report) -> None:
        """Show where ``report`` stands."""
        if time.monotonic() >= self._due:
            self._show(report)

    def close(self, report: Report) -> None:
        """Leave the standing report."""
        if self.shown or report.lasting:
            self._show(report)

    def _show(self, report: Report) -> None:
        from IPython.display import display

        bundle = {"text/html": report._repr_html_(), "text/plain": str(report)}
        display(bundle, raw=True, display_id=self._id, update=self.shown)
        self.shown = True
        self._due = time.monotonic() + sum(map(len, bundle.values())) / _BYTES_PER_SECOND


class TextView:
    """One line of a terminal, rewritten in place, and the report as text at the end.

    Parameters
    ----------
    report : Report
        Not used; a view factory is called with it.
    stream : text stream, optional
        Where to write: standard error by default, so that what a program prints stays clean. Where it is no terminal,
        only the end is written.
    """

    def __init__(self, report: Any = None, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = False

    def update(self, report: Report) -> None:
        """Rewrite the line."""
        if self._stream.isatty():
            self._write("\r\x1b[K" + report.line()[: shutil.get_terminal_size().columns - 1])
        self._shown = True

    def close(self, report: Report) -> None:
        """Put the standing text in the line's place."""
        erase = "\r\x1b[K" if self._shown and self._stream.isatty() else ""
        if self._shown or report.lasting:
            self._write(f"{erase}{report}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
