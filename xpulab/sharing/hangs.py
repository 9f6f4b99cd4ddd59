"""Finds ranks that wait for other ranks for ever, in a cell, in a function on the engines, and in a script.

A thread of each rank looks twice a second where the rank's main thread is, and writes on the board whether it waits for
other ranks, for how long, and in which line. The calls themselves do nothing for it. A wait is certain in three cases:

- The rank polls a message of MPI. The moment at which the wait has begun is a variable of the function that polls.
- A thread that runs PyTorch's collectives does so, while the main thread stays in one call.
- The main thread is in a call of mpi4py itself. A signal shows whether it is still the same call: Python runs the
  signal's handler as soon as a call has returned.

Nothing can answer if each rank has ended its code or waits, and no wait has ended for some seconds. A rank that
computes, reads a file or sleeps does not wait: it may still answer.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import itertools
import linecache
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["TOLD", "Hangs", "Watch"]

#: Seconds of a wait after which a line tells the user of it, and after which the waiting ranks raise an error.
TOLD, HOPELESS = 5.0, 8.0

_FRESH = 2.5  # seconds within which a rank that waits writes so again
_BUSY = 0.7  # share of a core: a process that uses more also computes
#: Module and function that polls -> its variable with the moment at which the wait has begun.
_POLLS = {("xpulab.engine.waiting", "poll"): "started", ("xpulab.engine.comm", "_poll"): "entered"}
_COLLECTIVES = "xpulab-collectives"  # name of the thread that runs PyTorch's collectives
_LIBRARIES = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<frozen")
_PROBE = signal.SIGURG  # a process without a handler ignores it
_CALL = re.compile(r"(\w+)\s*\(")


class Watch:
    """Looks where the main thread of this rank is, and writes it on the board.

    Parameters
    ----------
    opened : callable
        Returns the board; called at the first look.
    rank : int
    number : int
        Number of the task that runs the user's code.
    """

    def __init__(self, opened: Callable[[], Any], rank: int, number: int) -> None:
        self._opened, self._rank, self._number = opened, rank, number
        self._hangs: Hangs | None = None
        self._main = threading.main_thread().ident or 0
        self._before = set(threading.enumerate())
        self._place = (0, 0)  # where the main thread was at the last look: a frame, and an instruction
        self._looked, self._spent = time.perf_counter(), time.process_time()
        self._stayed = self._called = 0.0  # seconds at this place, and in one call of mpi4py
        self._returned: bool | None = None  # since the last signal; None if this process has no handler

    def answer_signals(self) -> None:
        """Let the main thread, which calls this method, show when it has returned from a call of mpi4py."""

        def returned(*_: Any) -> None:
            self._returned = True

        signal.signal(_PROBE, returned)
        self._returned = True

    def look(self) -> str:
        """Write on the board whether this rank waits. Return why nothing can answer it; an empty text otherwise."""
        with contextlib.suppress(Exception):  # what is looked at changes meanwhile, and may be anything of the user's
            return self._look()
        return ""

    def _look(self) -> str:
        if self._hangs is None:
            self._board = self._opened()
            self._record, self._hangs = self._board.ranks[self._rank], Hangs(self._board.ranks, self._number)
        frame = sys._current_frames().get(self._main)
        seconds = 0.0 if frame is None or self._has_others() else self._waits(frame)
        if seconds and frame is not None:
            self._record["waits_in"] = _line(frame).encode()
        self._record["waits"] = seconds
        return self._hangs.hopeless() if seconds else ""

    def stack(self) -> list[str]:
        """Return the lines of a traceback of the main thread, from the user's code inwards."""
        frames = [frame for frame in _outward(sys._current_frames().get(self._main)) if frame.f_lineno is not None]
        begun = max((i for i, each in enumerate(frames) if _is_users(each.f_code.co_filename)), default=0)
        shown = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(frames[: begun + 1]))
        return ["Traceback (most recent call last):\n", *shown.format()]

    def _waits(self, frame: FrameType) -> float:
        """Return for how many seconds the main thread, which is in this frame, waits for other ranks; 0 if it works."""
        now, spent = time.perf_counter(), time.process_time()
        passed, busy = now - self._looked, spent - self._spent > _BUSY * (now - self._looked)
        place = id(frame), frame.f_lasti
        self._stayed = self._stayed + passed if place == self._place else 0.0
        self._looked, self._spent, self._place = now, spent, place
        if self._returned is not None and (called := self._in_mpi4py(frame, passed)):
            return called
        if busy:
            return 0.0
        if polled := _polled(frame, now):
            return polled
        return min(self._stayed, max((_polled(each, now) for each in _frames_of(_COLLECTIVES)), default=0.0))

    def _in_mpi4py(self, frame: FrameType, passed: float) -> float:
        """Return for how many seconds the main thread is in one call of mpi4py."""
        if not _calls_mpi4py(frame):
            self._called, self._returned = 0.0, True
            return 0.0
        self._called = 0.0 if self._returned else self._called + passed
        self._returned = False
        signal.pthread_kill(self._main, _PROBE)
        return self._called

    def _has_others(self) -> bool:
        """Return whether the user's code has threads, which may send what this rank or another one waits for."""
        return any(not thread.daemon for thread in set(threading.enumerate()) - self._before)


class Hangs:
    """Judges from the board whether the ranks of a task wait for ever.

    Parameters
    ----------
    ranks : numpy.ndarray
        Records of `Board.ranks`.
    number : int
        Number of the task.
    """

    def __init__(self, ranks: Any, number: int) -> None:
        self._ranks, self._number = ranks, number
        self._seen = [(0.0, 0.0)] * len(ranks)  # what each rank has written, and when it wrote something new

    def told(self) -> str:
        """Return who waits where, if nobody has worked for `TOLD` seconds; an empty text otherwise."""
        return self._described() if self._all_wait(TOLD) else ""

    def hopeless(self) -> str:
        """Return who waits where, if nothing can answer them; an empty text otherwise."""
        return self._described() if self._all_wait(HOPELESS) else ""

    def _ended(self) -> list[bool]:
        return [bool(record["ended"] == self._number) for record in self._ranks]

    def _all_wait(self, least: float) -> bool:
        """Return whether each rank has ended or waits, and at least one waits, for at least these seconds."""
        now, waits = time.monotonic(), self._ranks["waits"].tolist()
        self._seen = [seen if seen[0] == one else (one, now) for seen, one in zip(self._seen, waits, strict=True)]
        left = [
            one >= least and now - when < _FRESH
            for (one, when), ended in zip(self._seen, self._ended(), strict=True)
            if not ended
        ]
        return bool(left) and all(left)

    def _described(self) -> str:
        """Say of each rank whether it waits, and where, or has ended."""
        groups: dict[str, list[str]] = {}
        for rank, ended in enumerate(self._ended()):
            where = "" if ended else self._ranks["waits_in"][rank].decode(errors="replace")
            groups.setdefault(where, []).append(str(rank))
        finished = groups.pop("", [])
        said = [f"rank {', '.join(ranks)} {_verb('wait', ranks)} in {where}" for where, ranks in groups.items()]
        if finished:
            said.append(f"rank {', '.join(finished)} {'has' if len(finished) == 1 else 'have'} ended")
        return "; ".join(said)


def _verb(verb: str, subjects: list[str]) -> str:
    return f"{verb}s" if len(subjects) == 1 else verb


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames_of(name: str) -> list[FrameType]:
    """Return where the threads of this name are: each of PyTorch's process groups has one."""
    frames = sys._current_frames()
    return [frames[each.ident] for each in threading.enumerate() if each.name == name and each.ident in frames]


def _polled(frame: FrameType | None, now: float) -> float:
    """Return for how many seconds a thread polls a message; 0 if it does not."""
    for each in _outward(frame):
        variable = _POLLS.get((each.f_globals.get("__name__", ""), each.f_code.co_name))
        if variable is not None:
            return max(0.0, now - each.f_locals.get(variable, now))
    return 0.0


def _line(frame: FrameType) -> str:
    """Return the line of the user's code in which the main thread is, and what it calls there: ``"line 2 (recv)"``."""
    frames = [each for each in _outward(frame) if _is_users(each.f_code.co_filename)]
    if not frames:
        return "a library"
    file, outermost = frames[0].f_code.co_filename, frames[-1].f_code.co_filename
    within = "" if file == outermost or file.startswith("<%%xpu") else f" of {Path(file).name}"
    if file.startswith("<") and within:  # a function without a file, which the notebook has sent
        within = f" of {frames[0].f_code.co_name}"
    call = _call(frames[0])
    name = _loaded(frames[0]) if call is None else _name(call)
    return f"line {frames[0].f_lineno}{within}" + (f" ({name})" if name else "")


def _is_users(file: str) -> bool:
    return not file.startswith(_LIBRARIES) and "site-packages" not in file


def _call(frame: FrameType) -> ast.Call | None:
    """Return the call that a frame makes; None if it cannot be told."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    with_places = getattr(frame.f_code, "co_positions", None)  # since Python 3.11
    if with_places is not None:
        first, last, begin, end = next(itertools.islice(with_places(), frame.f_lasti // 2, None))
        if first is not None and first == last:
            whole = linecache.getline(frame.f_code.co_filename, first).encode()
            line = whole[begin:end].decode(errors="replace")
    try:
        found = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
    except SyntaxError:  # such as the first line of a loop
        names = _CALL.findall(line)
        return ast.Call(ast.Name(names[-1]), [], []) if names else None
    return found[0] if found else None


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "a call")


def _loaded(frame: FrameType) -> str:
    """Return the name of the method that a frame without a source calls; empty if there is none."""
    name = ""
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti:
            break
        if step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and "NULL" in step.argrepr):
            name = str(step.argval)
    return name


def _calls_mpi4py(frame: FrameType) -> bool:
    """Return whether the innermost frame calls a method of an object of mpi4py, which is no function of Python."""
    if "mpi4py.MPI" not in sys.modules:
        return False
    call = _call(frame)
    if call is None or not isinstance(call.func, ast.Attribute):
        return False
    owner = _value(call.func.value, frame)
    return type(owner).__module__ == "mpi4py.MPI" or getattr(owner, "__module__", "") == "mpi4py.MPI"


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the object that a name, or an attribute of one, has in a frame; None for other expressions."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr, None)
    return None
