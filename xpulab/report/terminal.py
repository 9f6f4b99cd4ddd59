"""Reports in a terminal: one line, rewritten in place while a call runs."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["LineView", "LogView", "TextView", "of_a_script"]

_LOG = logging.getLogger("xpulab")


class TextView:
    """One line of a terminal, rewritten in place, and the report as text at the end.

    Parameters
    ----------
    report : Report
        Not used; a view factory is called with it.
    stream : text stream, optional
        Where to write: standard error by default, so that what a program prints stays clean. Where it is no terminal,
        only the end is written.
    whole : callable, optional
        Whether a report that has ended is written as a whole, or as one line; as a whole by default.
    """

    def __init__(
        self, report: Any = None, stream: TextIO | None = None, whole: Callable[[Any], bool] = lambda report: True
    ) -> None:
        self._stream = stream or sys.stderr
        self._whole = whole
        self._shown = False

    def update(self, report: Any) -> None:
        """Rewrite the line."""
        if self._stream.isatty():
            self._write("\r\x1b[K" + report.line()[: shutil.get_terminal_size().columns - 1])
        self._shown = True

    def close(self, report: Any) -> None:
        """Put the standing text in the line's place."""
        erase = "\r\x1b[K" if self._shown and self._stream.isatty() else ""
        if self._shown or report.lasting:
            self._write(f"{erase}{report if self._whole(report) else report.summary}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LineView(TextView):
    """The line of a script: it stays, with how the call ended, if there was time to read it while the call ran."""

    def close(self, report: Any) -> None:
        """Put how it ended in the line's place."""
        if self._shown:
            self._write(f"\r\x1b[K{report.summary}\n")


class LogView:
    """One line in the log of ``xpulab`` for each call, at INFO."""

    def update(self, report: Any) -> None:
        """A log has nothing that could be rewritten."""

    def close(self, report: Any) -> None:
        """Log how it ended."""
        _LOG.info("%s", report.summary)


def of_a_script(report: Any) -> LineView | LogView | None:
    """The view of a report where nobody has subscribed, as in a script: a terminal's line, or a line in the log."""
    if report.display != "none" and sys.stderr is not None and sys.stderr.isatty():
        return LineView(report)
    return LogView() if _LOG.isEnabledFor(logging.INFO) else None
