"""Merges the lines that several ranks print. Ranks that print the same text share one copy, marked with their ranks."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from xpulab.deploy.plan.probe import core_ranges
from xpulab.sharing.transcript import CLEARS, SHOWN, shown

__all__ = ["HOLD", "Line", "Merging", "merged", "stamp"]

HOLD = 0.5  # seconds that a line waits for other ranks to print the same line
_PER_SECOND = 10  # lines per second of a group of ranks that are shown in addition to the first ones


class Line(str):
    """A line of output, which begins with the mark of its ranks.

    Attributes
    ----------
    ranks : tuple of int
    """

    ranks: tuple[int, ...]


class Merging:
    """Passes on the lines of several ranks while the ranks print.

    Parameters
    ----------
    say : callable
        Called with each line.
    most : int, optional
        Number of lines of each group of ranks that are passed on at once; further lines are only counted. By default
        all lines are passed on.
    timestamps : bool
        Whether each line begins with the time at which it came.
    clears : bool
        Whether `say` clears the output of ranks that ask for it: what they have printed before need not be passed on.
    """

    def __init__(
        self, say: Callable[[Line], None], most: int | None = None, timestamps: bool = False, clears: bool = False
    ) -> None:
        self._say_line, self._clears = say, clears
        self._timestamps = timestamps
        self._most = most
        self._begun = time.monotonic()
        self._lines: dict[int, deque[tuple[float, str]]] = {}
        self._waiting: dict[int, Counter[str]] = {}  # how often each line is among those of a rank
        self._rest: dict[int, str] = {}  # the beginning of a line that is not yet complete
        self._shown: Counter[tuple[int, ...]] = Counter()
        self._omitted: Counter[tuple[int, ...]] = Counter()
        self._late: dict[str, tuple[tuple[int, ...], str]] = {}  # the last version of an object, by its id

    def add(self, rank: int, text: str) -> None:
        """Add text that a rank has printed."""
        if not text:
            return
        now = time.monotonic()
        *lines, self._rest[rank] = (self._rest.get(rank, "") + text).split("\n")
        # Of a line that a progress bar overwrites many times, only the visible text is kept, and what overwrites it.
        before, overwritten, present = self._rest[rank].rpartition("\r")
        self._rest[rank] = _visible(before) + overwritten + present
        self._append(rank, now, [_visible(line) for line in lines])

    def _append(self, rank: int, now: float, lines: Sequence[str]) -> None:
        if self._clears and (clears := [n for n, line in enumerate(lines[:-1]) if line in CLEARS]):
            lines = lines[clears[-1] :]  # others would be cleared at once: output follows
            self._lines.pop(rank, None)
            self._waiting.pop(rank, None)
        self._lines.setdefault(rank, deque()).extend((now, line) for line in lines)
        self._waiting.setdefault(rank, Counter()).update(lines)

    @property
    def waiting(self) -> bool:
        """Whether there are lines that were not passed on yet."""
        return any(self._lines.values()) or any(self._rest.values())

    def unfinished(self) -> str:
        """Return a line that a rank has begun but not ended, such as a progress bar; "" if there is none."""
        for _, rest in sorted(self._rest.items()):
            if visible := _visible(rest):
                ranks = [other for other, text in self._rest.items() if _visible(text) == visible]
                return f"[{core_ranges(ranks)}] {visible}"
        return ""

    def show(self, running: Sequence[int] = (), last: bool = False) -> None:
        """Pass on the lines that need not wait any longer for other ranks.

        Parameters
        ----------
        running : sequence of int
            Ranks that may still print.
        last : bool
            Whether all ranks have ended.
        """
        if last:
            for rank, rest in self._rest.items():
                if visible := _visible(rest):
                    self._append(rank, time.monotonic(), [visible])
            self._rest.clear()
        self._say_versions(last=False)
        while waiting := {rank: lines for rank, lines in sorted(self._lines.items()) if lines}:
            oldest = min(lines[0][0] for lines in waiting.values())
            before = time.monotonic() - HOLD
            shared = set(running) <= set(waiting) and len({lines[0][1] for lines in waiting.values()}) == 1
            if not last and oldest > before and not shared:
                return  # a rank may still print the line of another one
            # Lines that were printed at about the same time are shown in the order of the ranks, so that the order is
            # the same in every run. A line that another rank has printed, too, waits for its other lines before it.
            ready = [rank for rank, lines in waiting.items() if lines[0][0] <= oldest + HOLD]
            first = next((rank for rank in ready if not self._others(waiting, waiting[rank][0][1])), ready[0])
            self._pass_on(waiting, first, None if last else before)
        if last:
            self._say_versions(last=True)
            for ranks in list(self._omitted):
                self._say_omitted(ranks)

    def _pass_on(self, waiting: Mapping[int, deque[tuple[float, str]]], first: int, before: float | None) -> None:
        """Pass on the lines that the rank `first` has in common with other ranks."""
        head = waiting[first][0][1]
        ranks = tuple(rank for rank, lines in waiting.items() if lines[0][1] == head)
        for number in range(min(len(waiting[rank]) for rank in ranks)):
            since, line = waiting[first][0]
            if any(waiting[rank][0][1] != line for rank in ranks) or (number and before and since > before):
                return
            if number and any(self._waiting[rank][line] for rank in waiting if rank not in ranks):
                return  # the ranks may share it
            for rank in ranks:
                waiting[rank].popleft()
                self._forget(rank, line)
            self._line(ranks, line, since)

    def _forget(self, rank: int, line: str) -> None:
        self._waiting[rank][line] -= 1
        if not self._waiting[rank][line]:
            del self._waiting[rank][line]

    def _others(self, waiting: Mapping[int, deque[tuple[float, str]]], line: str) -> bool:
        """Return whether a rank has this line behind others."""
        return any(self._waiting[rank][line] and lines[0][1] != line for rank, lines in waiting.items())

    def _line(self, ranks: tuple[int, ...], line: str, since: float) -> None:
        if line in CLEARS:
            if self._clears:  # what was shown leaves its room to what follows
                for group in [group for group in self._shown if set(group) & set(ranks)]:
                    del self._shown[group]
                    self._omitted.pop(group, None)
            self._say(ranks, f"[{core_ranges(ranks)}] {line}")
            return
        thing = shown(line.removeprefix(SHOWN)) if self._most is not None and line.startswith(SHOWN) else None
        version = thing["id"] if thing is not None and thing["update"] else None
        self._late.pop(version or "", None)
        if not self._has_room(ranks):
            if version:
                self._late[version] = ranks, line  # a progress bar must not stand still before its end
            else:
                self._omitted[ranks] += 1
            return
        self._say_omitted(ranks)
        self._shown[ranks] += 1
        self._say(ranks, f"{stamp(since)} " * self._timestamps + f"[{core_ranges(ranks)}] {line}")

    def _has_room(self, ranks: tuple[int, ...]) -> bool:
        if self._most is None:
            return True
        return self._shown[ranks] < self._most + _PER_SECOND * int(time.monotonic() - self._begun)

    def _say_versions(self, last: bool) -> None:
        """Pass on the versions of objects for which there was no room, if there is now."""
        for version, (ranks, line) in list(self._late.items()):
            if last or self._has_room(ranks):
                del self._late[version]
                self._shown[ranks] += 1
                self._say(ranks, f"[{core_ranges(ranks)}] {line}")

    def _say(self, ranks: tuple[int, ...], text: str) -> None:
        line = Line(text)
        line.ranks = ranks
        self._say_line(line)

    def _say_omitted(self, ranks: tuple[int, ...]) -> None:
        if omitted := self._omitted.pop(ranks, 0):
            self._say(
                ranks, f"[{core_ranges(ranks)}] … {omitted:,} more lines; to see them, type: %xpu_cluster last --output"
            )


def merged(texts: Mapping[int, str], most: int | None = None) -> list[str]:
    """Merge the lines of complete texts.

    Parameters
    ----------
    texts : mapping of int to str
        Rank -> the text that it printed.
    most : int, optional
        Largest number of lines of each group of ranks; all lines by default.

    Returns
    -------
    list of str
        The lines, each marked with its ranks.
    """
    lines: list[str] = []
    merging = Merging(lines.append, most)
    for rank, text in texts.items():
        merging.add(rank, text)
    merging.show(last=True)
    return lines


def stamp(since: float) -> str:
    """Return the time of day at a moment of `time.monotonic`, to a millisecond."""
    return datetime.fromtimestamp(time.time() + since - time.monotonic()).isoformat(" ", "milliseconds")


def _visible(line: str) -> str:
    """Return what a terminal shows of a line: after a carriage return, text overwrites as many characters.

    Escape sequences take no room, and usually erase the line: with them, the last text is all that is shown.
    """
    if "\r" not in line:
        return line
    seen = ""
    for text in filter(None, line.split("\r")):
        seen = text if "\x1b" in seen + text else text + seen[len(text) :]
    return seen.rstrip(" ")
