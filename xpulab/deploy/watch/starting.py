"""Find ranks that end or are stopped while they start. An mpiexec would wait for ever for a rank that has not
initialised MPI."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil

__all__ = ["Starting"]

_LOOK = 0.5  # seconds between two checks
_REACH = ("ssh", "srun", "pbs_tmrsh")  # programs by which mpiexec reaches other hosts


class Starting:
    """The ranks of this host, while they start.

    Parameters
    ----------
    silence : float
        Seconds that a rank may stand still.
    """

    def __init__(self, silence: float) -> None:
        # A child process of a rank that has just ended is a zombie for a moment; this is not an error.
        self._limits: dict[str, tuple[float, str]] = {
            psutil.STATUS_ZOMBIE: (_LOOK / 2, "ended"),
            psutil.STATUS_STOPPED: (silence, "was stopped"),
        }
        self._looked = 0.0  # time of the last check
        self._odd: dict[tuple[int, str], float] = {}  # (pid, state) -> time since which the process is in that state

    def lost(self, pids: Callable[[], Iterable[int]], now: float | None = None) -> str:
        """Return what has happened to a rank: ``"an engine (pid 7) was stopped"``; "" if nothing has, or too early.

        Parameters
        ----------
        pids : callable
            Returns the pids of the ranks, and of programs that belong to them.
        now : float, optional
            The moment of the call; by default that of `time.monotonic`.
        """
        now = time.monotonic() if now is None else now
        if now - self._looked < _LOOK:
            return ""
        self._looked = now
        since: dict[tuple[int, str], float] = {}
        names: dict[int, str] = {}
        for pid in pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                state: str = process.status()
                if state in self._limits:
                    since[pid, state] = self._odd.get((pid, state), now)
                    names[pid] = process.name()
        self._odd = since
        for (pid, odd), first in since.items():
            limit, what = self._limits[odd]
            if now - first > limit:
                who = "mpiexec's connection to another host" if names[pid] in _REACH else "an engine"
                return f"{who} (pid {pid}) {what}"
        return ""
