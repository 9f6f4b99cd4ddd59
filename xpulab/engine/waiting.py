"""Waits for other ranks in such a way that Ctrl-C, or the exception of another rank, ends the wait."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any

__all__ = [
    "GRACE",
    "LAST",
    "Movement",
    "Pauses",
    "asked",
    "cause_of",
    "end_waits",
    "ended_by",
    "hear",
    "held",
    "ignore_interrupts",
    "interrupt",
    "interrupted",
    "leave",
    "look",
    "poll",
    "slowness",
    "users_code",
    "watched_by",
]

_SPIN = 50e-6  # seconds of polling at full speed: as long as a message takes between ranks that are ready
YIELD = 50e-3  # until then other processes may use the core between two polls, and a long message goes on moving
NAP = 50e-6  # seconds of sleep between two later polls, because the other rank is computing
_LONGEST_NAP = 0.5e-3
#: Seconds of looks at messages that are judged together, and processor seconds of them that show that a part of one was
#: moved: in the mean, with so many more for each of several messages, and in total. With each of the three MPIs, a look
#: takes 2e-6 to 6e-6 seconds in the mean where nothing moves, and 20e-6 to 150e-6 where a rank receives, the less, the
#: faster the memory, both also beside eight processes on two cores; at a hundred messages it takes 1e-5 more. What may
#: be either counts as movement: an error in a call that goes on is worse than a wait that only Stop ends.
_WINDOW, _MEAN, _EACH, _TOTAL = 0.25, 15e-6, 0.2e-6, 0.3e-3
#: A piece of work, and the processor seconds that it took where these were measured. Where it takes longer, on a slow
#: machine or beside programs that fill the caches, so do the looks: up to 28e-6 seconds in the mean where it took
#: 160e-6. The mean may be so many times as long, but not the total: a few looks after long pauses always take longer.
_WORK, _USUAL, _SLOWEST = range(2000), 65e-6, 2.0

#: Seconds for which a rank still waits after another rank has raised an exception, because a message that the other
#: rank sent before may not have arrived yet.
LAST = 20e-3

#: Seconds after Ctrl-C for which a rank still waits inside `held`. A rank that will not take part has raised an
#: exception, which ends the wait earlier. Only ranks that wait for each other in different calls wait for this long.
GRACE = 1.0

#: Calls that were left. Their buffers must live: the library may write to them as long as the process runs.
_abandoned: list[object] = []
_check: Callable[[], None] = lambda: None  # noqa: E731
_asked: Callable[[], bool] = lambda: False  # noqa: E731
_hear: Callable[[], None] = lambda: None  # noqa: E731
#: What ends waits in libraries that look at nothing meanwhile, see `ended_by`.
_ends: list[Callable[[], None]] = []
_left: BaseException | None = None
_left_at = 0.0  # the moment of `leave`
_held, _came = False, 0.0  # whether this process is in `held`, and the moment of SIGINT


@contextlib.contextmanager
def watched_by(
    check: Callable[[], None], ends: Callable[[], bool] = lambda: False, heard: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call `check` while a rank waits; an exception of `check` ends the wait.

    `ends` says whether the user has asked a user's code to end, see `asked`; `heard` notes that this has raised an
    exception there, see `hear`.
    """
    global _check, _asked, _hear, _left
    (_check, _asked, _hear), before = (check, ends, heard), (_check, _asked, _hear)
    _left = None
    try:
        yield
    finally:
        _check, _asked, _hear = before


def hear() -> None:
    """Note that the user's request to end raises an exception in the user's code of this process."""
    _hear()


def asked() -> bool:
    """Return whether the user has asked the user's code of this process to end, for threads that see no SIGINT."""
    return _asked()


def ended_by(end: Callable[[], None]) -> None:
    """Note a function that ends waits of this process in a library that looks at nothing meanwhile, such as gloo."""
    _ends.append(end)


def end_waits() -> None:
    """End waits in libraries that look at nothing meanwhile. The calls that wait there raise an error."""
    for end in _ends:
        end()


def leave(error: BaseException) -> None:
    """Note why this process left a wait, because the rank itself may be in a library that hides the exception."""
    global _left, _left_at
    _left, _left_at = _left or error, time.perf_counter()


def cause_of(error: RuntimeError) -> BaseException:
    """Return the exception with which this process left a wait, if a library in C++ has made `error` of it."""
    if _left is None or type(_left).__name__ not in str(error):
        return error
    return _left.with_traceback(error.__traceback__)


def interrupt(*_: object) -> None:
    """Handle SIGINT in a user's code.

    Raises
    ------
    KeyboardInterrupt
        At once, or at the end of `held`.
    """
    global _came
    hear()
    if not _held:
        leave(error := KeyboardInterrupt())
        raise error
    _came = _came or time.perf_counter()


def interrupted() -> bool:
    """Return whether SIGINT came within `held`, and `GRACE` has passed since then."""
    return _held and _came > 0 and time.perf_counter() - _came > GRACE


class held:
    """Hold back Ctrl-C, because this rank has told the other ranks that it will take part in a blocking call.

    A rank that waits for other ranks within this context leaves when one of them has raised an exception, or when
    `interrupted` is true. Ctrl-C reaches all ranks, so all ranks that take part have arrived by then.
    """

    def __enter__(self) -> None:
        global _held, _came
        _came, _held = 0.0, True

    def __exit__(self, *_: object) -> None:
        global _held
        _held = False
        if _came:
            raise KeyboardInterrupt from None


def _switches() -> int:
    """Return how often this thread has made way for another one that could run."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class Pauses:
    """The pauses between two polls of one wait.

    At first the rank yields its core, so that it sees the end of the wait at once. If the core is then used by another
    process, such as a rank that this one waits for, or after `yields` seconds of waiting, the rank sleeps instead:
    ranks that yield get as much of a core that they share as a rank that computes.

    Parameters
    ----------
    yields, nap : float
        Seconds of the wait in which the rank yields, and the least seconds of each sleep.
    share : float
        Share of the wait so far that each sleep takes, up to half a millisecond: a rank that has waited for long looks
        less often. Only for waits in which no message moves, because each look moves a part of a long message.
    sleep : callable, default=time.sleep
        Sleeps for so many seconds, or until there is something to look at.
    """

    def __init__(
        self, yields: float, nap: float, share: float = 0.0, sleep: Callable[[float], None] | None = None
    ) -> None:
        self._yields, self._nap, self._share = yields, nap, share
        self._sleep = sleep or time.sleep
        self._shared = False

    def pause(self, waited: float) -> None:
        """Pause, after `waited` seconds of waiting."""
        if self._shared or waited > self._yields:
            self._sleep(max(self._nap, min(_LONGEST_NAP, self._share * waited)))
            return
        before = _switches()
        os.sched_yield()
        self._shared = _switches() != before


def slowness() -> float:
    """Return how many times as long as usual the processor takes for its work now."""
    before = time.thread_time()
    sum(_WORK)
    return (time.thread_time() - before) / _USUAL


class Movement:
    """Tells from the processor time of the looks at messages whether parts of them move.

    Parameters
    ----------
    now : float
        The moment, in seconds.
    messages : int
        Number of the messages.
    slow : callable
        Returns how many times as long as usual the processor takes for its work now.
    """

    def __init__(self, now: float, messages: int = 1, slow: Callable[[], float] = slowness) -> None:
        self._since, self._looks, self._used = now, 0, 0.0
        self._mean = _MEAN + _EACH * messages
        self._slow, self._slowness = slow, 1.0

    def seen(self, used: float, now: float) -> bool:
        """Note the processor seconds of a look. Return whether something has moved, at the end of each window."""
        self._looks, self._used = self._looks + 1, self._used + used
        if now - self._since < _WINDOW:
            return False
        before, self._slowness = self._slowness, self._slow()
        slow = min(_SLOWEST, max(1.0, before, self._slowness))
        moved = self._used > max(_TOTAL, slow * self._mean * self._looks)
        self._since, self._looks, self._used = now, 0, 0.0
        return moved


def poll(ready: Callable[[], Any], pending: object = None) -> Any:
    """Call `ready` until its answer is true, and return this answer. If the wait is left, `pending` is kept alive.

    `sharing.hangs` reads the variable `since`: whoever moves a long message to or from this rank has answered it.
    """
    started = since = time.perf_counter()
    messages = len(pending) if isinstance(pending, Sized) else 1
    leaving, pauses, movement = float("inf"), Pauses(YIELD, NAP), Movement(started, messages)
    try:
        answer = ready()
        while not answer:
            now = time.perf_counter()
            waited = now - started
            before = 0.0
            if waited > _SPIN:
                if _left_behind(started):
                    raise InterruptedError
                try:
                    look()
                    if interrupted():
                        raise InterruptedError
                except Exception:
                    leaving = min(leaving, waited + LAST)
                    if waited > leaving:
                        raise
                pauses.pause(now - since)
                before = time.thread_time()
            answer = ready()
            if before and movement.seen(time.thread_time() - before, now):
                since = now
        return answer
    except BaseException:
        _abandoned.append(pending)
        raise


def _left_behind(started: float) -> bool:
    """Return whether Ctrl-C has interrupted a user's code since this wait of one of its threads has started.

    The code may wait for its thread. If it has caught the interrupt, waits that start later are not left.
    """
    by_user = isinstance(_left, KeyboardInterrupt) and started < _left_at
    return by_user and threading.current_thread() is not threading.main_thread()


def look() -> None:
    """Raise an exception if another rank has raised one."""
    _check()


def ignore_interrupts() -> None:
    """Ignore SIGINT. The notebook stops a task through the board, so that all ranks stop at the same point."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:  # a late signal for a user's code that has ended
            pass


class _OfUser:
    """A handler of SIGINT that a user's code has installed: it notes that the request to end has reached the code."""

    def __init__(self, handler: Callable[..., object]) -> None:
        self.handler = handler

    def __call__(self, *arguments: object) -> object:
        hear()
        return self.handler(*arguments)

    @staticmethod
    def inside(handler: Any) -> Any:
        """Return the handler that the user knows."""
        return handler.handler if isinstance(handler, _OfUser) else handler


_signal, _getsignal = signal.signal, signal.getsignal


@functools.wraps(signal.signal)
def _signal_of_user(number: int, handler: Any) -> Any:
    """As Python's, but a handler of SIGINT notes that it was called."""
    if number == signal.SIGINT and callable(handler) and handler is not interrupt:
        handler = _OfUser(handler)
    return _OfUser.inside(_signal(number, handler))


@functools.wraps(signal.getsignal)
def _getsignal_of_user(number: int) -> Any:
    return _OfUser.inside(_getsignal(number))


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """Open a context in which SIGINT raises KeyboardInterrupt, because a user's code does not read the board.

    The code may install its own handler, as in a script: a handler that was called has heard the request.
    """
    _replace(_signal_of_user, _getsignal_of_user)
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        ignore_interrupts()
        _replace(_signal, _getsignal)


def _replace(set_handler: Callable[..., Any], get_handler: Callable[..., Any]) -> None:
    setattr(signal, "signal", set_handler)  # noqa: B010 -- mypy takes neither of the two for the other
    setattr(signal, "getsignal", get_handler)  # noqa: B010
