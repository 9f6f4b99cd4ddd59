"""Find engines whose heartbeats have stopped."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

__all__ = ["SILENT", "Silence", "most_silence"]

SILENT = 5.0  # seconds without a heartbeat after which the status says so

_ALL = 10  # factor for the limit if all engines are silent together: a laptop sleeps, or someone stopped all engines
_LONGEST_STEP = 1.0  # seconds that count at most between two looks: this process may have slept too


def most_silence(limit: float, n_silent: int, size: int) -> float:
    """Seconds of silence after which engines are stuck.

    Parameters
    ----------
    limit : float
        Limit for one silent engine while other engines are heard.
    n_silent, size : int
        Number of silent engines, and of all engines. A single engine gets no extra time.
    """
    return limit * (_ALL if n_silent == size > 1 else 1)


class Silence:
    """A clock for each engine, reset when its heartbeat changes.

    Parameters
    ----------
    limit : float
        Seconds of silence after which an engine is stuck while other engines are heard.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._beats: npt.NDArray[np.float64] | None = None
        self._silent = np.zeros(0)
        self._alone = np.zeros(0)  # seconds of the silence during which another engine was heard
        self._looked = 0.0

    def stuck(self, heartbeats: npt.NDArray[np.float64], now: float | None = None) -> list[int]:
        """The ranks that are stuck.

        Parameters
        ----------
        heartbeats : numpy.ndarray of shape (size,)
            Last heartbeat of each engine, by any clock: only changes count.
        now : float, optional
            Seconds of any clock, of this process by default.
        """
        now = time.monotonic() if now is None else now
        if self._beats is None:
            self._beats, self._looked = heartbeats.copy(), now
            self._silent, self._alone = np.zeros(len(heartbeats)), np.zeros(len(heartbeats))
            return []
        heard = heartbeats != self._beats
        step = min(now - self._looked, _LONGEST_STEP)
        self._silent += step
        # Engines that are stopped together give their last signs, and the first ones after it, a moment apart.
        if self._silent.min() < self._limit / 2:
            self._alone += step
        self._silent[heard] = self._alone[heard] = 0
        self._looked = now
        self._beats[:] = heartbeats
        stuck = (self._alone > self._limit) | (self._silent > most_silence(self._limit, len(heard), len(heard)))
        return [int(rank) for rank in np.flatnonzero(stuck)]

    def unheard(self, least: float) -> dict[int, float]:
        """Engines that were silent for at least `least` seconds at the last look: rank -> seconds."""
        return {int(rank): float(self._silent[rank]) for rank in np.flatnonzero(self._silent >= least)}
