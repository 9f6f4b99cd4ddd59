"""Reports in a terminal: one line, rewritten in place while a call runs."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["LineView", "LogView", "SearchView", "TextView", "of_a_script"]

_LOG = logging.getLogger("xpulab")


class TextView:
    """One line of a terminal, rewritten in place, and the report as text at the end.

    Parameters
    ----------
    report : Report
        Not used; every view factory gets it.
    stream : text stream, optional
        The stream to write to; by default standard error, so that the program's standard output has no progress in it.
        If the stream is not a terminal, only the end of the report is written.
    whole : callable, optional
        Takes a report that has ended, and returns whether to write all of it, or one line; by default all of it.
    """

    def __init__(
        self, report: Any = None, stream: TextIO | None = None, whole: Callable[[Any], bool] = lambda report: True
    ) -> None:
        self._stream = stream or sys.stderr
        self._whole = whole
        self._shown = False

    def update(self, report: Any) -> None:
        """Write the progress over the line."""
        if self._stream.isatty():
            self._write("\r\x1b[K" + report.line()[: shutil.get_terminal_size().columns - 1])
        self._shown = True

    def close(self, report: Any) -> None:
        """Replace the line by the final text."""
        erase = "\r\x1b[K" if self._shown and self._stream.isatty() else ""
        if self._shown or report.lasting:
            self._write(f"{erase}{report if self._whole(report) else report.summary}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class SearchView(TextView):
    """The line of a search of scikit-learn's, which its calls share; `end` replaces it by how the search has ended.

    Parameters
    ----------
    search : xpulab.report.searches.Search
    """

    def __init__(self, search: Any) -> None:
        super().__init__()
        self._search = search

    def update(self, report: Any) -> None:
        """Write the progress over the line."""
        self._search.add(report)
        super().update(self._search)

    def close(self, report: Any) -> None:
        """Note that a call of the search has ended."""
        (self._search.add if report.lasting else self._search.count)(report)

    def end(self) -> None:
        """Replace the line by the final text."""
        self._search.end()
        super().close(self._search)


class LineView(TextView):
    """The line that a script shows. It finally says how the call ended, unless the call was too quick for a line."""

    def close(self, report: Any) -> None:
        """Replace the line by one that says how the call ended."""
        if self._shown:
            self._write(f"\r\x1b[K{report.summary}\n")


class LogView:
    """Writes one line per call to the logger ``xpulab``, at level INFO."""

    def update(self, report: Any) -> None:
        """Do nothing: lines of a log cannot be rewritten."""

    def close(self, report: Any) -> None:
        """Log how the call ended."""
        _LOG.info("%s", report.summary)


def of_a_script(report: Any) -> LineView | LogView | None:
    """Return the view of a report if nothing has subscribed, as in a script: a line on a terminal or in the log."""
    if report.display != "none" and sys.stderr is not None and sys.stderr.isatty():
        return LineView(report)
    return LogView() if _LOG.isEnabledFor(logging.INFO) else None
