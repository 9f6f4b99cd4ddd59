"""A ``%%xpu`` cell that runs while the notebook goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from xpulab.calls import interruptible, public_methods
from xpulab.console.cells import Cell, CellOutput
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.merging import merged
from xpulab.deploy.tasks.users_code import Following
from xpulab.exceptions import CallInterrupted
from xpulab.report.rendering import Text, counted, format_seconds, in_notebook

__all__ = ["BackgroundCell"]

_GRACE = 5.0  # seconds that `stop` waits for ranks that are in a call that cannot be interrupted


@public_methods("BackgroundCell.")
class BackgroundCell:
    """A ``%%xpu --background`` cell. Tasks that are sent while it runs wait for its end, and say so.

    Parameters
    ----------
    cell : Cell
    done : callable
        Called with the output at the end, if no rank has raised an exception.
    """

    def __init__(self, cell: Cell, done: Callable[[CellOutput], object]) -> None:
        self._cell, self._done = cell, done
        self._notes: list[str] = []
        self._following: Following | None = None
        self._output: CellOutput | None = None
        self._error: BaseException | None = None
        self._asked, self._ended = threading.Event(), threading.Event()
        self._shown: Any = None  # the handle of the output in a notebook
        self._begun, self._seconds = time.monotonic(), 0.0
        threading.Thread(target=self._run, name=f"xpulab-{cell.title}", daemon=True).start()

    @property
    def running(self) -> bool:
        """Whether the cell runs, or waits for another task."""
        return not self._ended.is_set()

    @property
    def output(self) -> Text:
        """The output so far, each line with its ranks, and xpulab's messages about the cell."""
        if self._output is not None:
            lines = self._output.text().splitlines()
        else:
            lines = merged(self._following.printed() if self._following is not None else {}, None)
        return Text("\n".join([*lines, *self._notes]))

    @property
    def values(self) -> dict[str, list[Any]]:
        """The variables of ``--out``, as lists with one entry per rank; empty until the end."""
        return {} if self._output is None else self._output.values

    @property
    def figures(self) -> dict[int, list[bytes]]:
        """Rank -> figures of matplotlib as PNG; empty until the end."""
        return {} if self._output is None else self._output.figures

    @interruptible("BackgroundCell.wait", "; the cell goes on")
    def wait(self, timeout: float | None = None) -> Text:
        """Wait for the end of the cell. An interrupt ends the wait, not the cell.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which the wait ends; by default it has no limit.

        Returns
        -------
        Text
            The output.

        Raises
        ------
        TimeoutError
            If the cell still runs after these seconds.
        EngineError, EngineLostError, CellInterrupted
            As in a cell that does not run in the background.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self!r}; to wait on, call wait() again, and to end the cell, call stop()")
        if self._error is not None:
            raise self._error
        return self.output

    def stop(self) -> None:
        """End the cell on all ranks, as Ctrl-C ends one that does not run in the background.

        Ranks that are in a call that cannot be interrupted end after it; if this is called once more, the engines are
        ended.
        """
        self._asked.set()
        self._ended.wait(_GRACE)

    def _run(self) -> None:
        cell = self._cell
        try:
            with interruptible(cell.title), cell.tasks.following(notes=self._notes) as self._following:
                replies = cell.replies(self._following, self._watch)
            self._output = cell.output(replies, self._following)
            self._done(cell.checked(self._output, replies))
        except BaseException as error:  # raised by `wait`, in the thread of the user
            self._error = error
        finally:
            self._seconds = time.monotonic() - self._begun
            self._ended.set()
            self._show_end()

    def _watch(self, records: Any, number: int) -> None:
        if self._asked.is_set():
            self._asked.clear()
            raise KeyboardInterrupt
        if self._following is not None:
            self._following(records, number)

    def _ipython_display_(self) -> None:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        if in_notebook(get_ipython()):
            self._shown = display(Text(repr(self)), display_id=True)
            if not self.running:  # it has ended meanwhile
                self._show_end()
        else:
            print(repr(self))

    def _show_end(self) -> None:
        """Replace the output of a notebook, which would say for ever that the cell runs."""
        if self._shown is not None:
            self._shown.update(Text(repr(self)))

    def __repr__(self) -> str:
        ranks = f"on rank {core_ranges(self._cell.ranks)}"
        if self.running:
            return f"{self._cell.title}: running {ranks} for {format_seconds(time.monotonic() - self._begun)}"
        after = f"after {format_seconds(self._seconds)} {ranks}"
        if isinstance(self._error, CallInterrupted):
            return f"{self._cell.title}: stopped {after}"
        if self._error is not None:
            said = (str(self._error).splitlines() or [""])[0]
            return f"{self._cell.title}: failed {after}, {type(self._error).__name__}: {said}"
        lines = counted(len(self.output.splitlines()), "line")
        return f"{self._cell.title}: done {after}, {lines} of output"
