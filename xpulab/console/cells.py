"""Run a notebook's cell on the engines, watch it, and combine the output of the ranks."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xpulab.calls import interruptible
from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.tasks.merging import merged
from xpulab.deploy.tasks.page import show_object
from xpulab.deploy.tasks.users_code import (
    LINES,
    CellInterrupted,
    CellOutput,
    Following,
    figures_of,
    raise_for_users,
    results_of,
)
from xpulab.deploy.tasks.variables import checked_ranks, received
from xpulab.report import usage
from xpulab.sharing.answers import Reply
from xpulab.sharing.transcript import figure_of

__all__ = ["Cell", "CellInterrupted", "CellOutput", "run_cell"]

_numbers = itertools.count(1)
_OF_IPYTHON = re.compile(r"^\s*[%!?]|=\s*[%!]|\?\s*$", re.MULTILINE)  # a line that may not be Python


def run_cell(
    cluster: XPUCluster, source: str, ranks: Sequence[int] | None = None, out: Sequence[str] = ()
) -> CellOutput:
    """Run a cell on the engines, and print its output.

    Parameters
    ----------
    cluster : XPUCluster
        Its `last_output` is set to the output of this cell.
    source : str
        Python code, which can use ``comm`` (mpi4py's), ``rank``, ``size``, ``device``, ``queue`` and the variables of
        earlier cells, ``await``, and IPython's magics and commands (``%timeit``, ``!ls``).
    ranks : sequence of int, optional
        Ranks that run the cell; ``comm`` then contains only these. All ranks by default.
    out : sequence of str
        Variables to return to the notebook; arrays on the device become NumPy arrays.

    Raises
    ------
    SyntaxError
        If the source is not valid Python; nothing was sent.
    UsageError
        If a rank does not exist.
    EngineError
        If the cell raised an exception; the message has each distinct traceback with its ranks.
    CellInterrupted
        If the cell was interrupted.
    EngineStuckError
        If ranks did not end after an interrupt, and the user interrupted again; new engines were started.
    EngineLostError
        If an engine ended or stood still; new engines were started, unless the cluster has ``recover=False``.
    """
    cell = Cell(cluster, source, ranks, out)
    with interruptible(cell.title), cluster.tasks.following() as following:
        replies = cell.replies(following, following)
    output = cell.output(replies, following)
    for line in merged(output.results, LINES):
        print(line)
    _show_figures(output.figures, cell.shown)
    return cell.checked(output, replies)


class Cell:
    """A cell for the engines. The parameters and the errors are those of `run_cell`.

    Attributes
    ----------
    title : str
        Its name in messages.
    shown : set of (int, int)
        Ranks, and the numbers of their figures that the output has shown.
    """

    def __init__(
        self, cluster: XPUCluster, source: str, ranks: Sequence[int] | None = None, out: Sequence[str] = ()
    ) -> None:
        self.ranks, self.tasks = checked_ranks(ranks, cluster.size), cluster.tasks
        name = f"<%%xpu cell {next(_numbers)}>"
        source, self.title, self._out = _python_of(source), name.strip("<>"), list(out)
        compile(source, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        self._payload = {
            "source": source,
            "name": name,
            "ranks": self.ranks,
            "out": self._out,
            "profile": usage.wanted(),
        }

    def replies(self, following: Following, watch: Callable[[Any, int], None]) -> list[Reply]:
        """Run the cell, and return the reply of each rank."""
        try:
            return self.tasks.replies("%%xpu", {**self._payload, "transcripts": following.paths}, watch)
        finally:
            following.finish()
            self.tasks.last_output = CellOutput(following.printed(), {})

    def output(self, replies: list[Reply], following: Following) -> CellOutput:
        """Return the output of the cell, which is the last one of the cluster."""
        self._results = results = results_of(replies, self.title, self.tasks.engines)
        self.shown = {(rank, number) for rank, result in enumerate(results) for number in result.get("shown", ())}
        self.tasks.last_output = output = CellOutput(
            {rank: text + _omitted(results[rank]) for rank, text in following.printed().items()},
            {rank: result["value"] for rank, result in enumerate(results) if result.get("value") is not None},
            figures=figures_of(results),
        )
        return output

    def checked(self, output: CellOutput, replies: list[Reply]) -> CellOutput:
        """Return the output with the requested variables, or raise the error of the ranks."""
        raise_for_users(replies, self._results, self.title)
        output.values = {
            each: [received(self._results[rank]["out"][each]) for rank in self.ranks] for each in self._out
        }
        return output


def _show_figures(figures: dict[int, list[bytes]], shown: set[tuple[int, int]]) -> None:
    """Show each figure that was not shown yet, with the ranks that drew it."""
    ranks: dict[bytes, dict[int, int]] = {}
    for rank, drawn in figures.items():
        for number, png in enumerate(drawn):
            if (rank, number) not in shown:
                ranks.setdefault(png, {}).setdefault(rank, number)
    for png, drew in ranks.items():
        show_object(list(drew), figure_of(png, next(iter(drew.values()))))


def _python_of(source: str) -> str:
    """Return the Python code of a cell with IPython's magics and commands, which then call those of the rank."""
    if not _OF_IPYTHON.search(source):
        return source
    from IPython.core.inputtransformer2 import TransformerManager  # a process without cells need not import IPython

    return TransformerManager().transform_cell(source)


def _omitted(result: Mapping[str, object]) -> str:
    omitted = result.get("omitted")
    return f"\n… {omitted:,} more characters, which xpulab did not keep" if omitted else ""
