"""Find engines that give no sign of life: no heartbeat, and no use of a processor or of a device."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

__all__ = ["SILENT", "Signs", "Silence", "most_silence"]

SILENT = 5.0  # seconds without a sign of life after which the status says so

_PATIENT = 10  # factor for the limit if all engines are silent at once (a laptop sleeps), or if a user's code runs
_LONGEST_STEP = 1.0  # largest number of seconds that count between two checks, because this process may have slept, too
_BUSY = 0.05  # share of a core that a process must use to count as alive; its idle threads use less
_DEVICE_TIME = ("drm-engine-", "drm-cycles-")  # counters of use that Linux's GPU drivers have for each open device


class Signs:
    """Signs of life of processes of this host: numbers of which only the changes have a meaning.

    A heartbeat needs Python's global interpreter lock, which a call of compiled code may hold for minutes. Therefore
    the use of a processor or a GPU, which the Linux kernel counts, is a sign of life, too.

    Parameters
    ----------
    pids : sequence of int
        The engines' processes, by rank; 0 for a process of another host.
    limit : float
        Seconds of silence after which an engine is stuck.

    Attributes
    ----------
    used : numpy.ndarray of shape (n,)
        Seconds of processors that each process had used at the last check.
    read : float
        The moment of this check (`time.monotonic`); 0 before the first.
    """

    def __init__(self, pids: Sequence[int], limit: float) -> None:
        self._pids = pids
        self._pace = min(1.0, limit / 4)
        self._looked = time.monotonic()  # time of the last check; most tasks end before the first
        self.used, self.read = np.zeros(len(pids)), 0.0
        self._on_device = np.zeros(len(pids))
        self._busy = np.zeros(len(pids))  # grows with the use of a processor or a device

    def __call__(self, heartbeats: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return for each heartbeat a number that changes as long as the process lives."""
        now = time.monotonic()
        if (passed := now - self._looked) >= self._pace:
            self._looked = self.read = now
            for rank, pid in ((rank, pid) for rank, pid in enumerate(self._pids) if pid):
                with contextlib.suppress(psutil.Error, OSError):  # it has ended, which `Processes.ended` notices
                    self._look(rank, pid, passed)
        return heartbeats + self._busy

    def _look(self, rank: int, pid: int, passed: float) -> None:
        times = psutil.Process(pid).cpu_times()
        computed, on_device = times.user + times.system, sum(_device_times(pid))
        if computed - self.used[rank] >= _BUSY * passed or on_device != self._on_device[rank]:
            self._busy[rank] += 1
        self.used[rank], self._on_device[rank] = computed, on_device


def _device_times(pid: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """Counters of the Linux kernel for each engine of each GPU that the process has open, in any unit."""
    for descriptor in os.listdir(proc / str(pid) / "fd"):
        with contextlib.suppress(OSError, ValueError):  # the file was closed in the meantime
            if os.readlink(proc / str(pid) / "fd" / descriptor).startswith("/dev/dri/"):
                for line in (proc / str(pid) / "fdinfo" / descriptor).read_text().splitlines():
                    if line.startswith(_DEVICE_TIME):
                        yield int(line.split()[1])


def most_silence(limit: float, n_silent: int, size: int, users: bool = False) -> float:
    """Return the seconds of silence after which engines are stuck.

    Parameters
    ----------
    limit : float
        Limit for one silent engine while other engines are heard.
    n_silent, size : int
        Number of silent engines, and of all engines. A single engine gets no extra time.
    users : bool
        Whether the engines run a user's code, which may have a reason to wait; they get ten times as long.
    """
    return limit * (_PATIENT if users or n_silent == size > 1 else 1)


class Silence:
    """A clock for each engine, reset when its sign of life changes.

    Parameters
    ----------
    limit : float
        Seconds of silence after which an engine is stuck while other engines are heard.
    users : bool
        As for `most_silence`.
    """

    def __init__(self, limit: float, users: bool = False) -> None:
        self._limit = limit
        self._users = users
        self._signs: npt.NDArray[np.float64] | None = None
        self._silent = np.zeros(0)
        self._alone = np.zeros(0)  # seconds of the silence during which another engine was heard
        self._looked = 0.0

    def stuck(self, signs: npt.NDArray[np.float64], now: float | None = None) -> list[int]:
        """Return the ranks that are stuck.

        Parameters
        ----------
        signs : numpy.ndarray of shape (size,), dtype float64
            A number for each engine, in any unit. A change is a sign of life.
        now : float, optional
            Time in seconds; by default `time.monotonic` of this process.
        """
        now = time.monotonic() if now is None else now
        if self._signs is None:
            self._signs, self._looked = signs.copy(), now
            self._silent, self._alone = np.zeros(len(signs)), np.zeros(len(signs))
            return []
        heard = signs != self._signs
        step = min(now - self._looked, _LONGEST_STEP)
        self._silent += step
        # Engines that are stopped together do not give their last signs of life at exactly the same moment, nor the
        # first ones after they continue. So another engine counts as heard if it was silent for less than half the
        # limit.
        if self._silent.min() < self._limit / 2:
            self._alone += step
        self._silent[heard] = self._alone[heard] = 0
        self._looked = now
        self._signs[:] = signs
        stuck = (self._alone > most_silence(self._limit, 1, 2, self._users)) | (
            self._silent > most_silence(self._limit, len(heard), len(heard), self._users)
        )
        return [int(rank) for rank in np.flatnonzero(stuck)]

    def unheard(self, least: float) -> dict[int, float]:
        """Engines that were silent for at least `least` seconds at the last check: rank -> seconds."""
        return {int(rank): float(self._silent[rank]) for rank in np.flatnonzero(self._silent >= least)}
