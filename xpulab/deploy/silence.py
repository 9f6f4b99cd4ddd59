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

_PATIENT = 10  # factor for the limit if all engines are silent together (a laptop sleeps), or if a user's code runs
_LONGEST_STEP = 1.0  # seconds that count at most between two looks: this process may have slept too
_BUSY = 0.05  # share of a core that a process must use to count as alive: its threads wake in any case
_DEVICE_TIME = ("drm-engine-", "drm-cycles-")  # what the kernel's GPU drivers count for each open device


class Signs:
    """Signs of life of processes of this host. Only their changes have a meaning.

    A heartbeat needs Python's global interpreter lock, which a call of compiled code may hold for minutes. So the
    kernel's accounts of processor time and of device time count as well.

    Parameters
    ----------
    pids : sequence of int
        The engines' processes, by rank.
    limit : float
        Seconds of silence after which an engine is stuck.
    """

    def __init__(self, pids: Sequence[int], limit: float) -> None:
        self._pids = pids
        self._pace = min(1.0, limit / 4)
        self._looked = time.monotonic()  # most tasks end before the first look
        self._computed = np.zeros(len(pids))  # seconds of processor time at the last look
        self._on_device = np.zeros(len(pids))
        self._busy = np.zeros(len(pids))  # grows with the use of a processor or a device

    def __call__(self, heartbeats: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Numbers that change as long as the processes live, one for each heartbeat."""
        now = time.monotonic()
        if (passed := now - self._looked) >= self._pace:
            self._looked = now
            for rank, pid in enumerate(self._pids):
                with contextlib.suppress(psutil.Error, OSError):  # it has ended, which others notice
                    self._look(rank, pid, passed)
        return heartbeats + self._busy

    def _look(self, rank: int, pid: int, passed: float) -> None:
        times = psutil.Process(pid).cpu_times()
        computed, on_device = times.user + times.system, sum(_device_times(pid))
        if computed - self._computed[rank] >= _BUSY * passed or on_device != self._on_device[rank]:
            self._busy[rank] += 1
        self._computed[rank], self._on_device[rank] = computed, on_device


def _device_times(pid: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """What the kernel has counted for each engine of each GPU that the process has open, in any unit."""
    for descriptor in os.listdir(proc / str(pid) / "fd"):
        with contextlib.suppress(OSError, ValueError):  # closed in the meantime
            if os.readlink(proc / str(pid) / "fd" / descriptor).startswith("/dev/dri/"):
                for line in (proc / str(pid) / "fdinfo" / descriptor).read_text().splitlines():
                    if line.startswith(_DEVICE_TIME):
                        yield int(line.split()[1])


def most_silence(limit: float, n_silent: int, size: int, users: bool = False) -> float:
    """Seconds of silence after which engines are stuck.

    Parameters
    ----------
    limit : float
        Limit for one silent engine while other engines are heard.
    n_silent, size : int
        Number of silent engines, and of all engines. A single engine gets no extra time.
    users : bool
        Whether the engines run a user's code, which may have a reason to stand still: the user is asked first.
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
        """The ranks that are stuck.

        Parameters
        ----------
        signs : numpy.ndarray of shape (size,)
            Last sign of life of each engine, by any clock: only changes count.
        now : float, optional
            Seconds of any clock, of this process by default.
        """
        now = time.monotonic() if now is None else now
        if self._signs is None:
            self._signs, self._looked = signs.copy(), now
            self._silent, self._alone = np.zeros(len(signs)), np.zeros(len(signs))
            return []
        heard = signs != self._signs
        step = min(now - self._looked, _LONGEST_STEP)
        self._silent += step
        # Engines that are stopped together give their last signs, and the first ones after it, a moment apart.
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
        """Engines that were silent for at least `least` seconds at the last look: rank -> seconds."""
        return {int(rank): float(self._silent[rank]) for rank in np.flatnonzero(self._silent >= least)}
