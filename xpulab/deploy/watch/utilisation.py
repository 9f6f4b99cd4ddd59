"""How busy each engine's processor or device is, and its memory, over the last minutes; the Linux kernel counts it."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

__all__ = ["LENGTH", "PACE", "Sample", "Utilisation", "share_of"]

PACE = 1.0  # seconds between two samples
LENGTH = 180  # samples that are kept

_ENGINE, _CYCLES, _TOTAL = "drm-engine-", "drm-cycles-", "drm-total-cycles-"
Sample = tuple[float, float, float]  # moment, share of the processor or device in [0, 1], bytes of memory
Elsewhere = tuple[float, float, float]  # moment by that host's clock, seconds of processors until then, bytes of memory
Counters = dict[str, tuple[float, float | None]]  # used seconds, or used and all cycles


class Utilisation:
    """Samples of the processes of engines. Where the device is a GPU, its share counts, otherwise that of the cores.

    Parameters
    ----------
    pids : sequence of int
        The engines' processes, by rank; 0 for a process of another host, of which others tell.
    cores : sequence of int
        Number of cores of each engine.
    on_gpu : sequence of bool
        Whether the device of each engine is a GPU.

    Attributes
    ----------
    samples : list of deque of (float, float, float)
        For each rank the last samples: moment (`time.monotonic`), share in [0, 1], and bytes of memory. The share is
        NaN for a GPU of another host.
    """

    def __init__(self, pids: Sequence[int], cores: Sequence[int], on_gpu: Sequence[bool]) -> None:
        self.pids = list(pids)
        self._cores, self._on_gpu = list(cores), list(on_gpu)
        self.samples: list[deque[Sample]] = [deque(maxlen=LENGTH) for _ in pids]
        self._before: dict[int, tuple[float, Counters | None]] = {}

    def sample(self, device_bytes: Sequence[int], elsewhere: Mapping[int, Elsewhere] | None = None) -> None:
        """Take one sample of each engine.

        Parameters
        ----------
        device_bytes : sequence of int
            What each engine has on a device with its own memory.
        elsewhere : mapping of int to (float, float, float), optional
            Rank of another host -> when its process was looked at, by that host's clock, the seconds of processors that
            it had used then, and its bytes of memory.
        """
        for rank, pid in enumerate(self.pids):
            if pid:
                with contextlib.suppress(psutil.Error, OSError):  # it has ended, which `Processes.ended` notices
                    self._add(rank, time.monotonic(), *self._look(rank, pid, device_bytes[rank]))
            elif about := (elsewhere or {}).get(rank):
                read, used, memory = about
                if self._on_gpu[rank]:
                    self._add(rank, read, None, device_bytes[rank])
                else:
                    self._add(rank, read, self._processor(rank, used), memory)

    def _look(self, rank: int, pid: int, device_bytes: int) -> tuple[Counters, int]:
        """Return the counters of a process of this host, and its bytes of memory."""
        if self._on_gpu[rank]:
            return device_counters(pid), device_bytes
        process = psutil.Process(pid)
        times = process.cpu_times()
        return self._processor(rank, times.user + times.system), process.memory_info().rss

    def _processor(self, rank: int, used: float) -> Counters:
        return {"processor": (used / max(1, self._cores[rank]), None)}

    def _add(self, rank: int, read: float, counters: Counters | None, memory: float) -> None:
        """Add a sample if the counters were read after those of the last one; `read` is when, by their host's clock."""
        read_before, before = self._before.get(rank, (read, counters))
        self._before[rank] = read, counters
        if read > read_before:
            share = math.nan if before is None or counters is None else share_of(before, counters, read - read_before)
            self.samples[rank].append((time.monotonic(), share, float(memory)))


def share_of(before: Counters, now: Counters, seconds: float) -> float:
    """Return the share of the busiest engine of a device, or of the processor, in [0, 1]."""
    shares = [0.0]
    for name, (used, whole) in now.items():
        used_before, whole_before = before.get(name, (used, whole))
        passed = seconds if whole is None or whole_before is None else whole - whole_before
        shares.append((used - used_before) / passed if passed > 0 else 0.0)
    return min(1.0, max(shares))


def device_counters(pid: int, proc: Path = Path("/proc")) -> Counters:
    """Return how much a process has used each engine of its GPUs, as Linux's drivers count it [1]_.

    The driver i915 counts nanoseconds, and xe counts cycles of the process beside all cycles of the engine.

    References
    ----------
    .. [1] Linux kernel documentation, "DRM client usage stats".
    """
    found: Counters = {}
    for descriptor in os.listdir(proc / str(pid) / "fd"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # the file was closed in the meantime
            if not os.readlink(proc / str(pid) / "fd" / descriptor).startswith("/dev/dri/"):
                continue
            text = (proc / str(pid) / "fdinfo" / descriptor).read_text()
            lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            client = f"{lines.get('drm-pdev')} {lines.get('drm-client-id')} "  # copies of a descriptor are one client
            for name, value in lines.items():
                if name.startswith(_ENGINE) and not name.startswith(f"{_ENGINE}capacity-"):
                    found[client + name] = int(value.split()[0]) * 1e-9, None
                elif name.startswith(_CYCLES) and (whole := lines.get(_TOTAL + name.removeprefix(_CYCLES))):
                    found[client + name] = float(value.split()[0]), float(whole.split()[0])
    return found
