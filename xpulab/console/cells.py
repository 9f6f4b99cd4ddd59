"""Run a notebook's cell on the engines, watch it, and combine the output of the ranks."""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Sequence
from typing import Any

from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.merging import merged
from xpulab.deploy.tasks.users_code import LINES, CellInterrupted, CellOutput, raise_for_users, results_of
from xpulab.deploy.tasks.variables import checked_ranks, received
from xpulab.deploy.watch.signals import interruptible
from xpulab.exceptions import UsageError
from xpulab.report import usage
from xpulab.report.rendering import in_notebook

__all__ = ["CellInterrupted", "CellOutput", "run_cell"]

_numbers = itertools.count(1)


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
        earlier cells.
    ranks : sequence of int, optional
        Ranks that run the cell; ``comm`` then contains only these. All ranks by default.
    out : sequence of str
        Variables to return to the notebook; arrays on the device become NumPy arrays.

    Raises
    ------
    SyntaxError
        If the source is not valid Python; nothing was sent.
    UsageError
        If a rank does not exist, or if the source has a command of IPython (``%timeit``, ``!ls``).
    EngineError
        If the cell raised an exception; the message has each distinct traceback with its ranks.
    CellInterrupted
        If the cell was interrupted.
    EngineStuckError
        If ranks did not end after an interrupt, and the user interrupted again; new engines were started.
    EngineLostError
        If an engine ended or stood still; new engines were started, unless the cluster has ``recover=False``.
    """
    ranks = checked_ranks(ranks, cluster.size)
    name = f"<%%xpu cell {next(_numbers)}>"
    _require_python(source, name)
    payload = {"source": source, "name": name, "ranks": ranks, "out": list(out), "profile": usage.wanted()}
    title = name.strip("<>")
    with interruptible(title), cluster.following() as following:
        try:
            replies = cluster.replies("%%xpu", {**payload, "transcripts": following.paths}, following)
        finally:
            following.finish()
            cluster.last_output = CellOutput(following.printed(), {})
    results = results_of(replies, title)
    output = CellOutput(
        {rank: text + _omitted(results[rank]) for rank, text in following.printed().items()},
        {rank: result["value"] for rank, result in enumerate(results) if result.get("value") is not None},
        figures={rank: result["figures"] for rank, result in enumerate(results) if result.get("figures")},
    )
    cluster.last_output = output
    for line in merged(output.results, LINES):
        print(line)
    _show_figures(output.figures)
    raise_for_users(replies, results, title)
    output.values = {each: [received(results[rank]["out"][each]) for rank in ranks] for each in out}
    return output


def _show_figures(figures: dict[int, list[bytes]]) -> None:
    """Show each figure with the ranks that drew it."""
    ranks: dict[bytes, dict[int, int]] = {}
    for rank, drawn in figures.items():
        for number, png in enumerate(drawn):
            ranks.setdefault(png, {}).setdefault(rank, number)
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    for png, drew in ranks.items():
        width, height = struct.unpack_from(">II", png, 16)
        who, (first, number) = core_ranges(list(drew)), next(iter(drew.items()))
        title = f"[{who}] figure of {width} × {height} pixels"
        if in_notebook(shell):
            print(title)
            from IPython.display import Image, display  # a notebook has imported it

            display(Image(png, alt=f"figure of rank {who}"))
        else:
            print(f"{title}; its PNG is in xpulab.current_cluster().last_output.figures[{first}][{number}]")


def _require_python(source: str, name: str) -> None:
    try:
        compile(source, name, "exec")
    except SyntaxError as error:
        line = (source.splitlines() or [""])[(error.lineno or 1) - 1].strip()
        if not line.startswith(("%", "!")):
            raise
        instead = "subprocess.run(..., shell=True)" if line.startswith("!") else "timeit.timeit(...) or %%xpu_profile"
        raise UsageError(
            f"line {error.lineno}: {line}\nan engine runs plain Python and not IPython's commands; instead, type: "
            f"{instead}"
        ) from None


def _omitted(result: dict[str, Any]) -> str:
    omitted = result.get("omitted")
    return f"\n… {omitted:,} more characters, which xpulab did not keep" if omitted else ""
