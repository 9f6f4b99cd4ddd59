"""Measures a user's code on this rank: its kernels and transfers on the queue, and its calls of MPI by name.

By default nothing is measured, and no call takes longer. `measured` replaces the methods of the communicators and
requests by methods with a clock, and `queue` by a queue that keeps its events.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import dpctl
from mpi4py import MPI

from xpulab.engine.users_mpi import interruptible
from xpulab.engine.users_mpi.large_collectives import nbytes_of
from xpulab.sharing.answers import Measured, UsersResult

if TYPE_CHECKING:
    import dpctl.program

__all__ = ["measured", "pickled", "queue_of"]

_MANY = 1000  # events that are kept until they are read
_MOST = 100_000  # largest number of collective calls of one name whose times are kept
_LAST = 1000  # latest activities whose moments are kept, for a timeline

_Moment = tuple[str, str, float, float]

_usage: _Usage | None = None


class _Command(NamedTuple):
    """A command of the queue: a kernel or a transfer, given to the queue at the moment `given` at the earliest."""

    kind: str
    name: str
    nbytes: int | None
    given: float
    event: dpctl.SyclEvent

    def began(self, ended: float) -> float:
        """Return when the command began, by `time.perf_counter`, by which it had ended at the moment `ended`.

        The clock of the CPU device is that of `time.perf_counter`. Another device may have a clock of its own, which
        also says when the command was submitted.
        """
        submitted, start, end = (
            1e-9 * moment
            for moment in (
                self.event.profiling_info_submit, self.event.profiling_info_start, self.event.profiling_info_end
            )
        )  # fmt: skip
        if self.given <= start <= end <= ended:
            return start
        return self.given + (start - submitted if 0 < submitted <= start else 0.0)


class _Usage:
    """The measurements of one cell.

    Attributes
    ----------
    activities : dict of (kind, name) to (count, bytes or None, seconds)
    collectives : dict of (name, rank, rank ...) to (moments entered, moments left)
        The ranks are those in MPI.COMM_WORLD that take part.
    moments : tuple of two deques of (kind, name, moment, seconds)
        The latest calls of MPI, and the latest commands of the queue, each with the moment at which it began. Commands
        are noted when they are read, which is later than calls that followed them.
    """

    def __init__(self) -> None:
        self.activities: dict[tuple[str, str], tuple[int, int | None, float]] = {}
        self.collectives: dict[tuple[Any, ...], tuple[list[float], list[float]]] = {}
        self.moments: tuple[deque[_Moment], deque[_Moment]] = deque(maxlen=_LAST), deque(maxlen=_LAST)
        self._commands: list[_Command] = []
        self._lock = threading.Lock()
        self._here = threading.local()
        self._started = time.perf_counter()
        self.seconds = 0.0

    def end(self) -> None:
        """End the measurement, and read the remaining events."""
        self.seconds = time.perf_counter() - self._started
        self._read()

    def figures(self) -> Measured:
        """Return all measurements, for the notebook."""
        activities = [(*key, *figures) for key, figures in self.activities.items()]
        return {
            "began": self._started,
            "seconds": self.seconds,
            "activities": activities,
            "collectives": self.collectives,
            "moments": sorted(itertools.chain(*self.moments), key=lambda each: each[2])[-_LAST:],
        }

    def command(self, command: _Command) -> None:
        """Note a command that was given to the queue. It may not have run yet."""
        with self._lock:
            self._commands.append(command)
        if len(self._commands) >= _MANY:
            self._read()

    def pickled(self, kind: str, nbytes: int) -> None:
        """Note that an object was sent or received."""
        if getattr(self._here, "inside", False):
            self._here.pickled[kind] += nbytes

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: object) -> Any:
        """Call a method of MPI, and measure it. Methods that it calls count as a part of it."""
        here = self._here
        if getattr(here, "inside", False):
            return function(*args, **kwargs)
        here.inside, here.pickled = True, {"dumps": 0, "loads": 0}
        entered = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            left = time.perf_counter()
            here.inside = False
            nbytes = max(max(here.pickled.values()), *(nbytes_of(each) for each in (*args, *kwargs.values())))
            self._add("MPI", name, nbytes, entered, left - entered)
            if name in _COLLECTIVE and args:
                moments = self.collectives.setdefault((name, *_members(args[0])), ([], []))
                if len(moments[0]) < _MOST:
                    moments[0].append(entered)
                    moments[1].append(left)

    def _read(self) -> None:
        with self._lock:
            commands, self._commands = self._commands, []
        for each in commands:
            each.event.wait()
            seconds = (each.event.profiling_info_end - each.event.profiling_info_start) * 1e-9
            self._add(each.kind, each.name, each.nbytes, each.began(time.perf_counter()), seconds)

    def _add(self, kind: str, name: str, nbytes: int | None, began: float, seconds: float) -> None:
        with self._lock:
            count, before, spent = self.activities.get((kind, name), (0, None, 0.0))
            whole = None if nbytes is None else (before or 0) + nbytes
            self.activities[kind, name] = count + 1, whole, spent + seconds
            self.moments[kind != "MPI"].append((kind, name, began, seconds))


class _Queue(dpctl.SyclQueue):
    """A user's queue whose events are measured."""

    def submit(self, kernel: dpctl.program.SyclKernel, *args: object, **kwargs: object) -> Any:
        """As dpctl's."""
        event = self.submit_async(kernel, *args, **kwargs)
        event.wait()
        return event

    def submit_async(self, kernel: dpctl.program.SyclKernel, *args: object, **kwargs: object) -> Any:
        """As dpctl's."""
        given, event = time.perf_counter(), super().submit_async(kernel, *args, **kwargs)
        return _given("kernel", kernel.get_function_name(), None, given, event)

    def memcpy(self, dest: object, src: object, count: int) -> None:
        """As dpctl's."""
        self.memcpy_async(dest, src, count).wait()

    def memcpy_async(self, dest: object, src: object, count: int, *args: object, **kwargs: object) -> Any:
        """As dpctl's."""
        given, event = time.perf_counter(), super().memcpy_async(dest, src, count, *args, **kwargs)
        return _given("transfer", "memcpy", count, given, event)


def _given(kind: str, name: str, nbytes: int | None, given: float, event: dpctl.SyclEvent) -> dpctl.SyclEvent:
    if _usage is not None:
        _usage.command(_Command(kind, name, nbytes, given, event))
    return event


def queue_of(queue: dpctl.SyclQueue) -> dpctl.SyclQueue:
    """Return the queue for a user's code: the same queue, or a copy of it that measures if a measurement runs."""
    return queue if _usage is None else _Queue(queue._get_capsule())


def pickled(kind: str, nbytes: int) -> None:
    """Note the bytes of an object that MPI sends ("dumps") or has received ("loads")."""
    if _usage is not None:
        _usage.pickled(kind, nbytes)


@contextlib.contextmanager
def measured(wanted: bool) -> Iterator[UsersResult]:
    """Measure the code in the block; at its end the dictionary has the measurements as ``usage``."""
    found: UsersResult = {}
    if not wanted:
        yield found
        return
    global _usage
    before = [(kind, name, method) for kind in interruptible.KINDS for name, method in _methods(kind)]
    _usage = usage = _Usage()
    for kind, name, method in before:
        setattr(kind, name, _timed(usage, name, method))
    try:
        yield found
    finally:
        for kind, name, method in before:
            setattr(kind, name, method)
        _usage = None
        usage.end()
        found["usage"] = usage.figures()


def _methods(kind: type) -> list[tuple[str, Any]]:
    """Return the methods that a class defines itself, with their names."""
    return [
        (name, method)
        for name, method in vars(kind).items()
        if not name.startswith("_") and (callable(method) or isinstance(method, classmethod))
    ]


def _timed(usage: _Usage, name: str, method: Callable[..., Any] | classmethod[Any, Any, Any]) -> Any:
    function = method.__func__ if isinstance(method, classmethod) else method

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        return usage.call(name, function, *args, **kwargs)

    return classmethod(call) if isinstance(method, classmethod) else call


def _members(comm: MPI.Intracomm) -> list[int]:
    """Return the ranks of a communicator's members among all engines."""
    group = comm.group
    members = MPI.Group.Translate_ranks(group, None, interruptible.WORLD.group)
    group.Free()
    return list(members)


_COLLECTIVE = {
    name
    for collective in (*interruptible.COLLECTIVES, *interruptible.MAKERS)
    for name in (collective, collective.lower())
    if name != "Create_group"
}
