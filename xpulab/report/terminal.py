"""Reports in a terminal: one line, rewritten in place while a call runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["TextView"]


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
