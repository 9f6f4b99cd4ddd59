"""Run a notebook's cell on the engines, watch it, and combine the output of the ranks."""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xpulab.deploy.answers import raise_errors
from xpulab.deploy.cluster import XPUCluster
from xpulab.deploy.probe import core_ranges
from xpulab.exceptions import EngineStuckError, UsageError
from xpulab.rendering import Text
from xpulab.sharing.board import awaited

__all__ = ["CellInterrupted", "CellOutput", "run_cell"]

_LINES = 40  # lines that are shown for each group of ranks with the same output
_PATIENCE = 3.0  # seconds after a rank raised until the notebook says which ranks are still running

_FIRST = 1.0  # seconds that a cell waits for another client before the notebook says so

_numbers = itertools.count(1)


@dataclass
class CellOutput:
    """The output of one cell on all ranks.

    Attributes
    ----------
    printed : dict of int to str
        Rank -> printed text.
    results : dict of int to str
        Rank -> value of the last expression as text; only ranks on which it is not None.
    values : list or None
        Values of the requested variable, by rank.
    """

    printed: dict[int, str]
    results: dict[int, str]
    values: list[Any] | None = None

    def text(self, most: int | None = None) -> Text:
        """The whole output, each line with its ranks; ranks with the same output share their lines.

        Parameters
        ----------
        most : int, optional
            Number of lines for each group of ranks; all by default.
        """
        return Text("\n".join([*_marked(self.printed, most), *_marked(self.results, most)]))

    def __str__(self) -> str:
        return self.text(_LINES)


def _marked(texts: dict[int, str], most: int | None) -> list[str]:
    """The lines of all ranks, each marked with the ranks that printed it."""
    groups: dict[str, list[int]] = {}
    for rank, said in texts.items():
        groups.setdefault(said, []).append(rank)
    lines: list[str] = []
    for said, ranks in groups.items():
        mark = f"[{core_ranges(ranks)}] "
        of_group = said.splitlines()
        lines += [mark + line for line in of_group[:most]]
        if most is not None and len(of_group) > most:
            lines.append(f"{mark}… {len(of_group) - most:,} more lines; to see them, type: %xpu_cluster last --output")
    return lines


class CellInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a cell on the engines. The message, which is all that IPython shows, says where each rank was."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def run_cell(
    cluster: XPUCluster, source: str, ranks: Sequence[int] | None = None, out: str | None = None
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
    out : str, optional
        Variable to return to the notebook; arrays on the device become NumPy arrays.

    Raises
    ------
    SyntaxError
        If the source is not valid Python; nothing was sent.
    UsageError
        If a rank does not exist.
    EngineError
        If the cell raised an exception; the message has each distinct traceback with its ranks.
    CellInterrupted
        If the cell was interrupted; a subclass of KeyboardInterrupt.
    EngineStuckError
        If ranks did not end after an interrupt; the cluster was restarted.
    """
    ranks = _checked(ranks, cluster.size)
    name = f"<%%xpu cell {next(_numbers)}>"
    compile(source, name, "exec")
    payload = {"source": source, "name": name, "ranks": ranks, "out": out}
    try:
        replies = cluster.replies("%%xpu", payload, _Watch())
    except EngineStuckError as stuck:
        cluster.restart()
        raise EngineStuckError(
            f"{stuck.args[0].partition('; type')[0]}: it is in a call that cannot be interrupted. The cluster was "
            "restarted; the variables of %%xpu cells and the rows on the engines are lost"
        ) from None
    results = [reply["result"] or {"outcome": reply["status"]} for reply in replies]
    output = CellOutput(
        {rank: said for rank, result in enumerate(results) if (said := _printed(result))},
        {rank: result["value"] for rank, result in enumerate(results) if result.get("value") is not None},
    )
    cluster.last_output = output
    if shown := str(output):
        print(shown)
    _raise(replies, results)
    if out is not None:
        output.values = [pickle.loads(results[rank]["out"]) for rank in ranks]
    return output


def _checked(ranks: Sequence[int] | None, size: int) -> list[int]:
    if ranks is None:
        return list(range(size))
    unknown = sorted(set(ranks) - set(range(size)))
    if size and (unknown or not ranks):
        raise UsageError(f"--ranks: received {','.join(map(str, ranks))}, expected ranks from 0 to {size - 1}")
    return sorted(set(ranks))


def _printed(result: dict[str, Any]) -> str:
    omitted = result.get("omitted")
    return result.get("printed", "") + (
        f"\n… {omitted:,} more characters, which xpulab did not keep" if omitted else ""
    )


def _raise(replies: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """One error for all ranks, if there was one."""
    raise_errors(
        [
            {**reply, "status": result["outcome"], "error": result.get("error") or reply["error"]}
            for reply, result in zip(replies, results, strict=True)
        ],
        users=True,
    )
    interrupted = [rank for rank, result in enumerate(results) if result["outcome"] == "interrupted"]
    if interrupted:
        places = {rank: (results[rank].get("error") or {}).get("at") for rank in interrupted}
        raise CellInterrupted("; ".join(f"rank {rank} was in {at}" for rank, at in places.items() if at))


class _Watch:
    """Print which client the cell waits for, and which ranks still run some seconds after a rank has raised."""

    def __init__(self) -> None:
        self._asked = time.monotonic()
        self._since: float | None = None
        self._told = self._told_waiting = False

    def __call__(self, records: Any, number: int) -> None:
        other = awaited(records, number)
        if other and not self._told_waiting and time.monotonic() - self._asked > _FIRST:
            self._told_waiting = True
            print(f"the cell is waiting for {other}", file=sys.stderr)
        running = [rank for rank, record in enumerate(records) if record["task"] == number]
        raised = [rank for rank, record in enumerate(records) if record["failed"] == number]
        if not running or not raised or self._told:
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > _PATIENCE:
            self._told = True
            print(
                f"rank {core_ranges(raised)} raised an exception, and rank {core_ranges(running)} is still running; "
                "interrupt the kernel to end the cell on all ranks",
                file=sys.stderr,
            )
