"""The log of accelerated calls: for each call one entry that says where it ran, and why."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from xpulab.report.rendering import Displayed, Html, block, counted, escape, plain

__all__ = ["Entry", "Lines", "Log", "about_lacking"]

_LOG = logging.getLogger("xpulab.accel")
#: Largest number of entries that are kept, and of lines that are shown.
_KEPT, _SHOWN = 1000, 100


@dataclass(frozen=True)
class Entry:
    """One call of a method of scikit-learn.

    Attributes
    ----------
    estimator, method : str
        ``"KMeans"``, ``"fit"``.
    data : str
        The data, such as ``"2,000,000 × 14"``; empty if unknown.
    engines : int
        Number of engines on which the call ran; 0 if scikit-learn computed it.
    kind : str
        The reason in a few words, the same for all calls with this reason.
    reason : str
        The reason with its numbers, or the first line of an error.
    process : str
        ``"worker 123"`` for a call in another process; empty for this process.
    again : bool
        Whether an earlier entry says why this object stays in scikit-learn. The call is counted, and has no line.
    """

    estimator: str
    method: str
    data: str
    engines: int
    kind: str
    reason: str
    process: str = ""
    again: bool = False

    def __str__(self) -> str:
        where = f"on {counted(self.engines, 'engine')}" if self.engines else "in scikit-learn"
        who = f" in {self.process}" if self.process else ""
        data = f", {self.data}" if self.data else ""
        return plain(f"{self.estimator}.{self.method}{data}{who}: {where}, because {self.reason}")


class Lines(Displayed):
    """The entries of a cell, a line for each object and reason; front ends fold them if there are many.

    `lacking` are the names of scikit-learn's classes that were fitted and that xpulab does not have.
    """

    def __init__(self, entries: Iterable[Entry], more: int = 0, lacking: Iterable[str] = ()) -> None:
        self.entries = list(entries)
        self.lacking = sorted(lacking)
        self._told = [entry for entry in self.entries if not entry.again]
        self._more = more + max(0, len(self._told) - _SHOWN)

    @property
    def title(self) -> str:
        """How many calls ran where, on one line."""
        there = sum(each.engines > 0 for each in self.entries)
        here = len(self.entries) - there
        parts = [f"{there} on the engines"] * (there > 0) + [f"{here} in scikit-learn"] * (here > 0)
        n = len(self.entries)
        calls = [f"{counted(n, 'call')} of scikit-learn's names, {' and '.join(parts)}"] * (n > 0)
        return f"accel: {'; '.join([*calls, *about_lacking(self.lacking)])}"

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {line}" for line in self._lines())])

    def _repr_html_(self) -> Html:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self._lines())
        state = " open" if len(self._told) <= 5 else ""
        body = f"<details{state}><summary>{escape(self.title)}</summary>{lines}</details>"
        return block(self.title, [body])

    def _lines(self) -> list[str]:
        before = [f"{counted(self._more, 'earlier call')} not shown; type: %xpu_cluster accel status"]
        return before * (self._more > 0) + [str(each) for each in self._told[-_SHOWN:]]


def about_lacking(names: Iterable[str]) -> list[str]:
    """Return a sentence about scikit-learn's classes that xpulab does not have; an empty list if there are none."""
    listed = ", ".join(names)
    return [f"xpulab has no {listed}"] * bool(listed)


class Log:
    """The entries since accel was turned on.

    Processes that joblib starts write theirs to a file, from which `read` takes them.

    Parameters
    ----------
    file : Path
        The file for entries of other processes.
    owner : int
        Pid of the process that reads the file. Other processes write to it.

    Attributes
    ----------
    total : int
        Number of all entries.
    counts : Counter
        Number of entries by estimator, and whether they ran on the engines.
    kinds : Counter
        Number of entries in scikit-learn by estimator and kind of reason.
    lacking : Counter
        Number of fits of scikit-learn's classes that xpulab does not have, by their names.
    """

    def __init__(self, file: Path, owner: int) -> None:
        self._file, self._owner = file, owner
        self._offset = 0
        self.total = 0
        self.counts: Counter[tuple[str, bool]] = Counter()
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.lacking: Counter[str] = Counter()
        self._entries: deque[Entry] = deque(maxlen=_KEPT)

    def add(self, entry: Entry) -> None:
        """Add an entry, and log its line with the logger ``xpulab.accel`` at level INFO."""
        if os.getpid() != self._owner:
            self._send(entry)
            return
        self.total += 1
        self._entries.append(entry)
        self.counts[entry.estimator, entry.engines > 0] += 1
        if not entry.engines:
            self.kinds[entry.estimator, entry.kind] += 1
        if not entry.again and _LOG.isEnabledFor(logging.INFO):
            _LOG.info("%s", entry)

    def lack(self, name: str) -> None:
        """Note that a class of scikit-learn was fitted that xpulab does not have. Only the owner of the log does."""
        if os.getpid() != self._owner:
            return
        if name not in self.lacking:
            _LOG.info("%s.fit: in scikit-learn, because xpulab has no %s", name, name)
        self.lacking[name] += 1

    def _send(self, entry: Entry) -> None:
        line = json.dumps({**asdict(entry), "process": f"worker {os.getpid()}"}) + "\n"
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:  # accel was turned off while this process worked
            return
        try:
            os.write(descriptor, line.encode())  # one write with O_APPEND: lines of several processes do not mix
        finally:
            os.close(descriptor)

    def read(self) -> None:
        """Add the entries that other processes have written since the last call."""
        if os.getpid() != self._owner or not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self.add(Entry(**json.loads(line)))

    def since(self, total: int, lacking: Mapping[str, int] | None = None) -> Lines:
        """Return the entries that were added when there were `total` entries already, and these numbers of fits."""
        new = self.total - total
        kept = list(self._entries)[-new:] if new else []
        before = lacking or {}
        return Lines(kept, new - len(kept), [name for name, n in self.lacking.items() if n > before.get(name, 0)])
