"""The seconds that a task spends in each phase on this rank: counted for the task, and noted for each iteration."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from xpulab.engine.comm import Communicator
from xpulab.kernels.runtime.device import Device
from xpulab.kernels.streamed import Reading

__all__ = ["Phases"]


class Phases:
    """The part of a task that counts its seconds.

    Attributes
    ----------
    comm : Communicator
    device : Device
    reading : Reading or None
        What was read of rows that the device does not keep.
    """

    comm: Communicator
    device: Device
    engine: Any
    number: int
    client: int
    started: float
    reading: Reading | None

    def begin_phases(self) -> None:
        """Begin to count, with a new communicator."""
        self._transferred = 0.0
        self.device.kernel_seconds = self.device.compile_seconds = 0.0
        self._noted = 0.0  # seconds of kernels at the end of the last iteration
        self._host = 0.0
        self._host_since: float | None = None  # in `on_host`: when it began, less the seconds of other phases by then

    @property
    def transfer(self) -> float:
        """Seconds of transfers of rows to the device and back, and of waiting for rows that are read again."""
        return self._transferred + (self.reading.waited if self.reading is not None else 0.0)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase so far."""
        device, comm = self.device, self.comm
        return {
            "transfer": self.transfer,
            "compile": device.compile_seconds,
            "kernel": device.kernel_seconds,
            "host": self._host if self._host_since is None else max(self._host, self._clock() - self._host_since),
            "communicate": comm.communicate,
            "wait": comm.wait,
        }

    def _clock(self) -> float:
        """Return a time that stands still in all phases but `host`."""
        device, comm = self.device, self.comm
        others = self.transfer + device.compile_seconds + device.kernel_seconds + comm.communicate + comm.wait
        return time.perf_counter() - others

    @contextlib.contextmanager
    def on_host(self) -> Iterator[None]:
        """Count the seconds of the body as work of the host's processor, without those of other phases."""
        self._host_since = self._clock() - self._host
        try:
            yield
        finally:
            self._host, self._host_since = self.seconds()["host"], None

    @contextlib.contextmanager
    def transferring(self) -> Iterator[None]:
        """Count the seconds of the body as transfer, without those of kernels and of communication."""

        def others() -> float:
            return sum(seconds for phase, seconds in self.seconds().items() if phase not in ("transfer", "host"))

        before = others() + self.transfer
        started = time.perf_counter()
        yield
        self._transferred += max(0.0, time.perf_counter() - started - (others() + self.transfer - before))

    def note_iteration(self, run: int, iteration: int, ended: float | None = None) -> None:
        """Note on the board that an iteration has ended, now or then; runs and iterations count from 1."""
        self.note_iterations(run, iteration - 1, 1, 0.0, ended)

    def note_iterations(self, run: int, done: int, n: int, took: float, ended: float | None = None) -> None:
        """Note on the board that `n` iterations, after `done` of this run, have ended, which `took` equally long.

        If they are several, a call of machine code has computed them.
        """
        device, comm, note = self.device, self.comm, self.engine.board.note
        now = time.perf_counter() if ended is None else ended
        computing = min(took, device.kernel_seconds - self._noted)
        self._noted = device.kernel_seconds
        for number in range(1, n + 1):
            after = (n - number) / n
            note(
                self.engine.rank,
                self.number,
                self.client,
                run,
                done + number,
                now - after * took,
                now - after * took - self.started,
                self.transfer,
                device.compile_seconds,
                device.kernel_seconds - after * computing,
                0.0,  # what computes iterations computes on the device
                comm.communicate,
                comm.wait,
            )
