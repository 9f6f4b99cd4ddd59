"""Follow a user's code on the engines: show what the ranks print while they run, and raise their errors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from xpulab.calls import of_interrupt
from xpulab.deploy.plan.probe import core_ranges
from xpulab.deploy.tasks.answers import raise_failed
from xpulab.deploy.tasks.engines import Engines
from xpulab.deploy.tasks.merging import Line, Merging, merged
from xpulab.deploy.tasks.page import Page, is_notebook
from xpulab.deploy.tasks.waiting import Waits
from xpulab.exceptions import CallInterrupted
from xpulab.report import usage
from xpulab.report.rendering import Text, format_size
from xpulab.sharing.answers import Reply, UsersResult
from xpulab.sharing.board import running
from xpulab.sharing.hangs import INSIDE_MPI, Hangs
from xpulab.sharing.transcript import LIMIT, Transcripts, plain

__all__ = ["GONE", "LINES", "CellInterrupted", "CellOutput", "Following", "figures_of", "raise_for_users", "results_of"]

LINES = 40  # lines that are shown at once for each group of ranks with the same output
_PATIENCE = 3.0  # seconds after an exception on a rank until a message names the ranks that still run

#: Message that says what is lost with the engines, and how to restore it.
GONE = (
    "New engines were started; the variables of %%xpu cells and the rows that were only on the engines are gone: run "
    "those cells and scatter these rows again. For the last words of the engines before, type: %xpu_cluster logs"
)


class CellInterrupted(CallInterrupted):
    """Ctrl-C ended code on the engines. IPython shows only the message, which says where each rank was."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


@dataclass
class CellOutput:
    """The output of one cell, or of one function of `run`, on all ranks.

    Attributes
    ----------
    printed : dict of int to str
        Rank -> printed text.
    results : dict of int to str
        Rank -> value of the last expression as text; only ranks on which it is not None.
    values : dict of str to list
        Name of a requested variable -> its values by rank.
    figures : dict of int to list of bytes
        Rank -> figures of matplotlib as PNG.
    """

    printed: dict[int, str]
    results: dict[int, str]
    values: dict[str, list[Any]] = field(default_factory=dict)
    figures: dict[int, list[bytes]] = field(default_factory=dict)

    def text(self, most: int | None = None) -> Text:
        """Return the whole output, each line with its ranks; ranks with the same output share their lines.

        Parameters
        ----------
        most : int, optional
            Number of lines for each group of ranks; all by default.
        """
        return Text("\n".join([*merged(self.printed, most), *merged(self.results, most)]))

    def __str__(self) -> str:
        return self.text(LINES)


class Following:
    """Follows a user's code on the engines. It is a `watch` for `Conversation.replies`.

    It prints the output of the ranks, and messages: which client the code waits for, which ranks still run some seconds
    after a rank has raised an exception, and which ranks give no sign of life.

    Parameters
    ----------
    engines : Engines
    folder : pathlib.Path
        Folder of the cluster's logs.
    also : callable, optional
        Called with each rank, "out", and what it has printed.
    timestamps : bool
        Whether each line begins with the time at which it came.
    notes : list of str, optional
        Takes the messages. Neither these nor the output are printed then.
    """

    def __init__(
        self,
        engines: Engines,
        folder: Path,
        also: Callable[[int, str, str], None] | None = None,
        timestamps: bool = False,
        notes: list[str] | None = None,
    ) -> None:
        self._notes = notes
        self._engines = engines
        self._transcripts = Transcripts(folder, engines.size)
        self._size = engines.size
        self._also = also
        self._page = Page()
        self._merging = Merging(self._say, LINES if also is None else None, timestamps, clears=is_notebook())
        self._overwritten = ""  # the shown line that the next line overwrites
        self._waits = Waits(threads=True)
        self._since: float | None = None
        self._told = self._told_of_hang = False
        self._hangs: Hangs | None = None
        self._told_still: set[int] = set()
        self._told_full: set[int] = set()
        self._over = False

    @property
    def paths(self) -> list[str]:
        """The file into which each rank writes its output."""
        return self._transcripts.paths

    def printed(self) -> dict[int, str]:
        """Return rank -> what it printed, for ranks that printed something."""
        return {rank: text for rank in range(self._size) if (text := self._transcripts.printed(rank))}

    def finish(self) -> None:
        """Print the rest of the output, after all ranks have ended. May be called twice.

        The next call, of any thread, reads what is printed afterwards, and closes the files.
        """
        if self._over:
            return
        self._over = True
        self._read()
        self._merging.show(last=True)
        self._overwrite("")
        if (between := self._engines.between) is None:
            self._transcripts.close()
        else:
            between.go_on(self._transcripts)

    def __call__(self, records: Any, number: int) -> None:
        now = time.monotonic()
        busy = running(records, number)
        raised = [rank for rank, record in enumerate(records) if record["failed"] == number]
        self._read()
        self._merging.show(busy)
        self._overwrite(self._merging.unfinished())
        if other := self._waits.news(records, number):
            self._note(f"the code is waiting for {other}")
        self._ask_about(busy)
        self._hangs = self._hangs or Hangs(records, number)
        if not self._told_of_hang and (hang := self._hangs.told()):
            self._told_of_hang = True
            cure = f"Stop frees {'it' if len(busy) == 1 else 'them'}"
            if INSIDE_MPI in hang:
                cure = "Stop does not end a call inside of MPI, and a second Stop ends the engines"
            self._note(f"{hang}; {cure}")
        if busy and raised and not self._told:
            self._since = self._since or now
            if now - self._since > _PATIENCE:
                self._told = True
                self._note(
                    f"rank {core_ranges(raised)} raised an exception{self._last_line(raised[0])}, and rank "
                    f"{core_ranges(busy)} is still running; interrupt the kernel to end the code on all ranks"
                )

    def _ask_about(self, busy: list[int]) -> None:
        """Print which ranks give no sign of life; the user may know the reason."""
        limit = self._engines.options.silence
        unheard = self._engines.unheard
        still = {rank for rank, seconds in unheard.items() if seconds > limit} & set(busy) - self._told_still
        if still:
            self._told_still |= still
            self._note(
                f"rank {core_ranges(sorted(still))} has stood still for {limit:g} s: it gives no sign of life, and "
                "uses no processor and no GPU. Interrupt the kernel to end the code; if it goes on like this, the "
                f"engines are ended {limit * 9:g} s from now"
            )

    def _read(self) -> None:
        for rank, text in enumerate(self._transcripts.read()):
            self._merging.add(rank, text)
            if self._also is not None:
                self._also(rank, "out", plain(text))
        if full := set(self._transcripts.full) - self._told_full:
            self._told_full |= full
            self._note(
                f"rank {core_ranges(full)} has printed {format_size(LIMIT)}, the most that xpulab keeps of a rank's "
                "output in one call; the rest is lost: write more into a file of your own"
            )

    def raised(self) -> str:
        """Return the tracebacks of ranks that raised an exception before another error occurred; "" if none did."""
        by_text: dict[str, list[int]] = {}
        for rank in range(self._size):
            if text := self._transcripts.raised(rank):
                by_text.setdefault(text, []).append(rank)
        return "".join(f"Before, rank {core_ranges(ranks)} raised:\n{text}\n" for text, ranks in by_text.items())

    def raised_on(self, rank: int) -> str:
        """Return the traceback of a rank that has raised an exception; "" if it has not."""
        return self._transcripts.raised(rank)

    def _last_line(self, rank: int) -> str:
        lines = self.raised_on(rank).strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def _say(self, line: Line) -> None:
        if self._notes is not None:
            return
        self._overwrite("")
        self._page.line(line)

    def _note(self, text: str) -> None:
        if self._notes is not None:
            self._notes.append(text)
            return
        self._overwrite("")
        self._page.message(text)

    def _overwrite(self, line: str) -> None:
        """Show a line that the next output overwrites, if the output of this process can be overwritten."""
        if line != self._overwritten and self._notes is None and _overwrites():
            width = len(self._overwritten)
            print(f"\r{line.ljust(width)}", end="" if line else "\r", flush=True)
        self._overwritten = line


def _overwrites() -> bool:
    """Return whether a carriage return in this process's output goes back to the beginning of the line."""
    return is_notebook() or sys.stdout.isatty()


def results_of(replies: list[Reply], title: str, engines: Engines) -> list[UsersResult]:
    """Return what a user's code left on each rank; `%%xpu_profile` and the history learn what it did there."""
    results = [reply["result"] or UsersResult(outcome=reply["status"]) for reply in replies]
    ahead = None if engines.board is None else engines.board.ranks["ahead"].tolist()
    run = usage.collected(title, results, max(reply["total"] for reply in replies), ahead)
    engines.history.add(run, datetime.now() - timedelta(seconds=run.seconds))
    return results


def figures_of(results: list[UsersResult]) -> dict[int, list[bytes]]:
    """Return rank -> the figures of matplotlib that a user's code has drawn there, as PNG."""
    return {rank: result["figures"] for rank, result in enumerate(results) if result.get("figures")}


def raise_for_users(replies: list[Reply], results: list[UsersResult], title: str) -> None:
    """Raise one error for all ranks on which a user's code, of this title, raised an exception or was interrupted."""
    failed = [
        (reply["engine"], error)
        for reply, result in zip(replies, results, strict=True)
        if result["outcome"] == "error" and (error := result.get("error") or reply["error"])
    ]
    raise_failed(failed, len(replies), users=True)
    interrupted = [rank for rank, result in enumerate(results) if result["outcome"] == "interrupted"]
    if interrupted:
        places = {rank: (results[rank].get("error") or {}).get("at") for rank in interrupted}
        said = "".join(f"; rank {rank} was in {at}" for rank, at in places.items() if at)
        raise CellInterrupted(f"{title} was interrupted{said}" if said else of_interrupt(title))
    if any(reply["status"] == "interrupted" for reply in replies):
        raise CellInterrupted(
            f"{title} ran to its end on all ranks: it had ended when the interrupt came, or the code has caught it"
        )
