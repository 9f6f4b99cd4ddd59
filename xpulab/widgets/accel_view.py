"""Shows, at the end of a cell, where its calls of scikit-learn's names ran."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from xpulab.acceleration import active
from xpulab.deploy.current import find_current
from xpulab.report.rendering import in_notebook

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from xpulab.acceleration import Lines

__all__ = ["AccelView"]


class AccelView:
    """Shows the lines that the calls of a cell left in the log of accel: as an output in a notebook, otherwise as text.

    It shows nothing if the active cluster has ``display="none"``.

    Parameters
    ----------
    shell : IPython's InteractiveShell
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._begin()
        self._shell.events.register("pre_run_cell", self._begin)
        self._shell.events.register("post_run_cell", self._end)

    def close(self) -> None:
        """Show nothing more."""
        self._shell.events.unregister("pre_run_cell", self._begin)
        self._shell.events.unregister("post_run_cell", self._end)

    def _begin(self, *_: object) -> None:
        self._log = None if (on := active()) is None else on.log
        self._before = (0, {}) if self._log is None else (self._log.total, dict(self._log.lacking))

    def _end(self, *_: object) -> None:
        on = active()
        log = self._log if on is None else on.log  # a cell may turn accel on or off
        if log is None:
            return
        log.read()
        lines = log.since(*self._before) if log is self._log else log.since(0)
        self._begin()
        cluster = find_current()
        if (lines.entries or lines.lacking) and (cluster is None or cluster.display != "none"):
            self._show(lines)

    def _show(self, lines: Lines) -> None:
        if in_notebook(self._shell):
            from IPython.display import display

            display(lines)
        else:
            print(lines, file=sys.stderr)
