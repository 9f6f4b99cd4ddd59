"""Lines that several ranks print, merged: ranks that print the same share the lines, each marked with its ranks."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from xpulab.deploy.probe import core_ranges

__all__ = ["Merging", "merged"]

_HOLD = 0.5  # seconds that a line waits for other ranks to print the same
_PER_SECOND = 10  # lines of a group of ranks that are shown beyond the first ones


class Merging:
    """Passes on the lines of several ranks as they come.

    Parameters
    ----------
    say : callable
        Called with each line.
    most : int, optional
        Lines of each group of ranks that are shown at once; the rest is counted. All by default.
    """

    def __init__(self, say: Callable[[str], None], most: int | None = None) -> None:
        self._say = say
        self._most = most
        self._begun = time.monotonic()
        self._lines: dict[int, deque[tuple[float, str]]] = {}
        self._rest: dict[int, str] = {}  # the beginning of a line, which is not yet complete
        self._shown: Counter[tuple[int, ...]] = Counter()
        self._omitted: Counter[tuple[int, ...]] = Counter()

    def add(self, rank: int, text: str) -> None:
        """A rank has printed this text."""
        if not text:
            return
        now = time.monotonic()
        *lines, self._rest[rank] = (self._rest.get(rank, "") + text).split("\n")
        # A rest that a progress bar overwrites again and again must not grow.
        self._rest[rank] = "\r" * ("\r" in self._rest[rank]) + _visible(self._rest[rank])
        self._lines.setdefault(rank, deque()).extend((now, _visible(line)) for line in lines)

    def unfinished(self) -> str:
        """The line that a rank has begun and not ended, such as a progress bar; "" if there is none."""
        for _, rest in sorted(self._rest.items()):
            if _visible(rest):
                ranks = [other for other, text in self._rest.items() if text == rest]
                return f"[{core_ranges(ranks)}] {_visible(rest)}"
        return ""

    def show(self, running: Sequence[int] = (), last: bool = False) -> None:
        """Pass on the lines that need not wait for other ranks.

        Parameters
        ----------
        running : sequence of int
            Ranks that may still print.
        last : bool
            Whether no rank prints anything more.
        """
        if last:
            for rank, rest in self._rest.items():
                if rest:
                    self._lines.setdefault(rank, deque()).append((0.0, _visible(rest)))
            self._rest.clear()
        while waiting := {rank: lines for rank, lines in sorted(self._lines.items()) if lines}:
            oldest = min(lines[0][0] for lines in waiting.values())
            before = time.monotonic() - _HOLD
            if not last and oldest > before and not set(running) <= set(waiting):
                return
            # What was printed at about the same time comes in the order of the ranks, so that it is the same each time.
            first = next(rank for rank, lines in waiting.items() if lines[0][0] <= oldest + _HOLD)
            self._pass_on(waiting, first, None if last else before)
        for ranks in list(self._omitted) if last else ():
            self._say_omitted(ranks)

    def _pass_on(self, waiting: Mapping[int, deque[tuple[float, str]]], first: int, before: float | None) -> None:
        """Pass on the lines that a rank's group has in common."""
        head = waiting[first][0][1]
        ranks = tuple(rank for rank, lines in waiting.items() if lines[0][1] == head)
        for number in range(min(len(waiting[rank]) for rank in ranks)):
            since, line = waiting[first][0]
            if any(waiting[rank][0][1] != line for rank in ranks) or (number and before and since > before):
                return
            for rank in ranks:
                waiting[rank].popleft()
            self._line(ranks, line)

    def _line(self, ranks: tuple[int, ...], line: str) -> None:
        room = None if self._most is None else self._most + _PER_SECOND * int(time.monotonic() - self._begun)
        if room is not None and self._shown[ranks] >= room:
            self._omitted[ranks] += 1
            return
        self._say_omitted(ranks)
        self._shown[ranks] += 1
        self._say(f"[{core_ranges(ranks)}] {line}")

    def _say_omitted(self, ranks: tuple[int, ...]) -> None:
        if omitted := self._omitted.pop(ranks, 0):
            self._say(f"[{core_ranges(ranks)}] … {omitted:,} more lines; to see them, type: %xpu_cluster last --output")


def merged(texts: Mapping[int, str], most: int | None = None) -> list[str]:
    """The lines of complete texts, by rank.

    Parameters
    ----------
    texts : mapping of int to str
        Rank -> what it printed.
    most : int, optional
        Lines of each group of ranks; all by default.
    """
    lines: list[str] = []
    merging = Merging(lines.append, most)
    for rank, text in texts.items():
        merging.add(rank, text)
    merging.show(last=True)
    return lines


def _visible(line: str) -> str:
    """What a terminal shows of a line: a carriage return begins it anew."""
    return line.rstrip("\r").rpartition("\r")[2]
