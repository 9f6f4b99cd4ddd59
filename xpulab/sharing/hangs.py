"""Finds ranks that wait for other ranks for ever, in a cell, in a function on the engines, and in a script.

A thread of each rank looks twice a second where the rank's main thread is, and writes on the board whether it waits for
other ranks, for how long, and in which line. The calls themselves do nothing for it. A wait is certain in these cases:

- The rank polls a message of MPI. The moment since which nothing of it has moved is a variable of the function that
  polls.
- A thread that runs PyTorch's collectives does so, while the main thread stays in one call.
- The main thread is in a call of mpi4py itself. A signal shows whether it is still the same call: Python runs the
  signal's handler as soon as a call has returned.
- PyTorch has a process group of its own backend gloo, and the main thread sleeps in a place where PyTorch waits for
  other ranks: `backward`, a collective, or a message. The Linux kernel counts how often a thread was woken. While the
  count stays the same, the thread has executed nothing, and so is still in the same call.

Nothing can answer if each rank has ended its code or waits, and no wait has ended for some seconds. A rank that
computes, reads a file or sleeps does not wait, as far as these looks tell: it may still answer.

A line tells the user of it after `TOLD` seconds. If it stays so for further `LAST_CHANCE` seconds, the ranks that wait
raise an error. A rank of a cell that waits inside of gloo raises one because its connections are closed. One that waits
in a call of mpi4py itself cannot: there the line is all, and a second Stop ends the engines. For a lock of a window,
which another rank of these has, the error of that rank ends the wait. In a script the process ends instead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from xpulab.sharing.call_sites import called_module, is_users, outward, place

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["INSIDE_MPI", "LAST_CHANCE", "TOLD", "Hangs", "Watch", "tcp_bytes"]

#: Seconds of a wait after which a line tells the user of it, and further seconds after which waiting ranks raise an
#: error.
TOLD, LAST_CHANCE = 5.0, 3.0

#: What is said of a rank that waits in a call of mpi4py itself, which nothing frees; xpulab's own calls can be left.
INSIDE_MPI = " inside of MPI"

_FRESH = 2.5  # seconds within which a rank that waits writes so again
_LOOKS = 2  # times that a rank has to write that it waits, after the last rank has ended: what it sent may be under way
_TRAFFIC = 1 << 16  # bytes by TCP between two looks, with which a part of a message was moved
_BUSY = 0.7  # share of a core: a process that uses more also computes
_IDLE = 0.1  # share of a core: a process that uses less does not compute
#: Modules of PyTorch whose innermost frame is in a call that takes long only if it waits for other ranks.
_WAITS_OF_TORCH = frozenset(
    {
        "torch.autograd.graph",  # runs `backward`, in which DistributedDataParallel reduces the gradients
        "torch.distributed._functional_collectives",
        "torch.distributed.distributed_c10d",
        "torch.distributed.nn.functional",
        "torch.distributed.utils",
        "torch.nn.parallel.distributed",
        "xpulab.engine.torch.gloo",  # makes the connections of a new group
    }
)
#: Module and function that polls -> its variable with the moment since which it waits.
_POLLS = {("xpulab.engine.waiting", "poll"): "since", ("xpulab.engine.comm", "_poll"): "entered"}
#: Modules and functions that make a collective call of MPI after all ranks have met for it: it takes long if there is
#: much to send, and never ends only if a rank has raised an exception.
_MET = {
    ("xpulab.engine.comm", "_together"),
    ("xpulab.engine.users_mpi.interruptible", "together"),
    ("xpulab.engine.users_mpi.large_collectives", "meet_for"),
}
_COLLECTIVES = "xpulab-collectives"  # name of the thread that runs PyTorch's collectives
_TCP_INFO = struct.Struct("=120xQQ")  # of Linux 4.1: tcp_info's tcpi_bytes_acked and tcpi_bytes_received
_PROBE = signal.SIGURG  # does nothing to a process that has no handler for it


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
        self._where = (0, 0)  # where the main thread was at the last look: a frame, and an instruction
        self._looked, self._spent = time.perf_counter(), time.process_time()
        self._carried, self._moved = -1, 0.0  # bytes by TCP until the last look at them, and when some were moved
        self._stayed = self._called = 0.0  # seconds at this place, and in one call of mpi4py
        self._asleep, self._woken = 0.0, -1  # seconds in one call of PyTorch, and how often the thread was woken before
        self._returned: bool | None = None  # since the last signal; None if this process has no handler

    def answer_signals(self) -> Watch:
        """Let the main thread, which calls this method, show when it has returned from a call of mpi4py."""

        def returned(*_: object) -> None:
            self._returned = True

        signal.signal(_PROBE, returned)
        self._returned = True
        return self

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
            self._record["waits_in"] = f"{place(frame)}{self._inside(frame)}".encode()
            self._record["met"] = self._called > 0 and not _MET.isdisjoint(map(_name, outward(frame)))
        seconds = self._unmoved(seconds)
        self._record["waits"] = seconds
        hopeless = self._hangs.hopeless()  # at each look, so that it sees each wait that ends
        return hopeless if seconds else ""

    def _inside(self, frame: FrameType) -> str:
        """Return in which library the main thread, which is in this frame, waits without a look at the board."""
        if self.in_gloo:
            return " inside of gloo"
        return INSIDE_MPI if self._called and not _name(frame)[0].startswith("xpulab.") else ""

    @property
    def in_gloo(self) -> bool:
        """Whether the main thread slept in one call of gloo from the look before the last one to the last one."""
        return self._asleep > 0

    def stack(self) -> list[str]:
        """Return the lines of a traceback of the main thread, from the user's code inwards."""
        frames = [frame for frame in outward(sys._current_frames().get(self._main)) if frame.f_lineno is not None]
        begun = max((i for i, each in enumerate(frames) if is_users(each.f_code.co_filename)), default=0)
        shown = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(frames[: begun + 1]))
        return ["Traceback (most recent call last):\n", *shown.format()]

    def _waits(self, frame: FrameType) -> float:
        """Return for how many seconds the main thread, which is in this frame, waits for other ranks; 0 if it works."""
        now, spent = time.perf_counter(), time.process_time()
        passed, used = now - self._looked, spent - self._spent
        where = id(frame), frame.f_lasti
        self._stayed = self._stayed + passed if where == self._where else 0.0
        self._looked, self._spent, self._where = now, spent, where
        if self._returned is not None and (called := self._in_mpi4py(frame, passed)):
            return called
        asleep = self._in_torch(frame, passed, used)
        if used > _BUSY * passed:
            return 0.0
        if polled := _polled(frame, now):
            return polled
        return asleep or min(self._stayed, max((_polled(each, now) for each in _frames_of(_COLLECTIVES)), default=0.0))

    def _unmoved(self, seconds: float) -> float:
        """Return for how many seconds nothing was sent to or from this rank by TCP, of those that it waits."""
        if not seconds:
            self._carried = -1
            return 0.0
        now, before, self._carried = time.perf_counter(), self._carried, tcp_bytes()
        if before < 0:
            self._moved = now - seconds
        elif self._carried - before > _TRAFFIC:
            self._moved = now
        return max(1e-9, min(seconds, now - self._moved))

    def _in_torch(self, frame: FrameType, passed: float, used: float) -> float:
        """Return for how many seconds the main thread sleeps in one call of PyTorch that waits for ranks of gloo."""
        if not _has_gloo() or not _may_wait_in_torch(frame):
            self._asleep, self._woken = 0.0, -1
            return 0.0
        before, self._woken = self._woken, _woken(threading.main_thread().native_id)
        stays = before == self._woken >= 0 and used < _IDLE * passed
        self._asleep = self._asleep + passed if stays else 0.0
        return self._asleep

    def _in_mpi4py(self, frame: FrameType, passed: float) -> float:
        """Return for how many seconds the main thread is in one call of mpi4py."""
        if "mpi4py.MPI" not in sys.modules or called_module(frame) != "mpi4py.MPI":
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

    def __init__(self, ranks: npt.NDArray[Any], number: int) -> None:
        self._ranks, self._number = ranks, number
        self._seen = [(0.0, 0.0)] * len(ranks)  # what each rank has written, and when it wrote something new
        self._before: list[bool] = []  # which ranks had ended at the last look
        self._looks = [0] * len(ranks)  # how often each rank has written something new since a rank has ended
        self._since = float("inf")  # when it was seen first that nothing can answer

    def told(self) -> str:
        """Return who waits where, if nobody has worked for `TOLD` seconds; an empty text otherwise."""
        return self._described() if self._all_wait() else ""

    def hopeless(self) -> str:
        """Return who waits where, if this has been so for `LAST_CHANCE` seconds of looks; an empty text otherwise."""
        if not self._all_wait():
            self._since = float("inf")
            return ""
        now = time.monotonic()
        self._since = min(self._since, now)
        return self._described() if now - self._since >= LAST_CHANCE else ""

    def _ended(self) -> list[bool]:
        return [bool(record["ended"] == self._number) for record in self._ranks]

    def _all_wait(self) -> bool:
        """Return whether each rank has ended or waits, and at least one waits, for at least `TOLD` seconds.

        Ranks that are in a collective call for which all have met do not wait, unless a rank has ended.
        """
        now, waits, ended = time.monotonic(), self._ranks["waits"].tolist(), self._ended()
        if ended != self._before:
            self._before, self._looks = ended, [0] * len(ended)
        for rank, (wait, (known, _)) in enumerate(zip(waits, self._seen, strict=True)):
            if wait != known:
                self._seen[rank] = wait, now
                self._looks[rank] += 1
        left = [
            wait >= TOLD and now - when < _FRESH and looks >= _LOOKS
            for (wait, when), looks, over in zip(self._seen, self._looks, ended, strict=True)
            if not over
        ]
        met = (self._ranks["met"] > 0) & (self._ranks["waits"] > 0)
        return bool(left) and all(left) and (any(ended) or not met.any())

    def _described(self) -> str:
        """Say of each rank whether it waits, and where, or has ended."""
        groups: dict[str, list[str]] = {}
        for rank, ended in enumerate(self._ended()):
            record = self._ranks[rank]
            where = "" if ended else record["waits_in"].decode(errors="replace")
            groups.setdefault(where, []).append(str(rank))
        finished = groups.pop("", [])
        said = [f"rank {', '.join(ranks)} {_verb('wait', ranks)} in {where}" for where, ranks in groups.items()]
        if finished:
            said.append(f"rank {', '.join(finished)} {'has' if len(finished) == 1 else 'have'} ended")
        return "; ".join(said)


def _verb(verb: str, subjects: list[str]) -> str:
    return f"{verb}s" if len(subjects) == 1 else verb


def _frames_of(name: str) -> list[FrameType]:
    """Return where the threads of this name are: each of PyTorch's process groups has one."""
    frames = sys._current_frames()
    return [frames[each.ident] for each in threading.enumerate() if each.name == name and each.ident in frames]


def _polled(frame: FrameType | None, now: float) -> float:
    """Return for how many seconds a thread polls a message; 0 if it does not."""
    for each in outward(frame):
        variable = _POLLS.get(_name(each))
        if variable is not None:
            begun: float = each.f_locals.get(variable, now)
            return max(0.0, now - begun)
    return 0.0


def _name(frame: FrameType) -> tuple[str, str]:
    """Return the module and the function of a frame."""
    return frame.f_globals.get("__name__", ""), frame.f_code.co_name


def _may_wait_in_torch(frame: FrameType) -> bool:
    """Return whether a frame is in a call of PyTorch that takes long only if it waits for other ranks."""
    modules = (_name(each)[0] for each in outward(frame))
    if next((module for module in modules if not module.startswith("torch._")), "") in _WAITS_OF_TORCH:
        return True
    called = called_module(frame)
    if called in ("torch", "") and place(frame).endswith("(wait)"):  # of a `torch.Future`, or of what cannot be told
        return True
    return called.startswith(("torch.distributed", "torch._C._distributed"))


def _has_gloo() -> bool:
    """Return whether PyTorch has a process group of its backend gloo, in a process that has imported PyTorch."""
    dist: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if dist is None or not dist.is_initialized():
        return False
    return any("gloo" in str(config) for config in dist._world.pg_backend_config.values())


def _woken(thread: int | None) -> int:
    """Return how often a thread was put to sleep or made way for others, if it sleeps now; otherwise -1.

    A thread that the kernel counts as running, or that waits for a disk, does not sleep.
    """
    lines = dict(line.split(":", 1) for line in Path(f"/proc/self/task/{thread}/status").read_text().splitlines())
    if lines["State"].split()[0] != "S":
        return -1
    return int(lines["voluntary_ctxt_switches"]) + int(lines["nonvoluntary_ctxt_switches"])


def tcp_bytes() -> int:
    """Return the bytes that this process's open TCP connections have received, and sent and seen acknowledged."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, struct.error):  # no socket of TCP, or closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    total += sum(_TCP_INFO.unpack(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)))
    return total
