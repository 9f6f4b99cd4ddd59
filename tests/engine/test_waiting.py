"""Pauses between the polls of a wait: a rank leaves its core to a process that computes on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from xpulab.engine import waiting

FOREVER = float("inf")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The naps so far; none of them takes time. Other threads of this process sleep as ever."""
    naps: list[float] = []
    monkeypatch.setattr(waiting, "time", SimpleNamespace(sleep=naps.append))
    return naps


def test_beside_a_process_that_computes_a_rank_sleeps(slept: list[float]) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # on the same core, as it inherits it
    try:
        pauses, deadline = waiting.Pauses(FOREVER, 0.5), time.monotonic() + 60
        while not slept and time.monotonic() < deadline:
            pauses.pause(0.0)
        assert slept == [0.5]
        pauses.pause(0.0)  # and it goes on sleeping
        assert slept == [0.5, 0.5]
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cores)


def test_alone_on_its_core_a_rank_yields_for_a_while_and_then_sleeps(
    slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []  # before and after each yield, at how often the rank has made way
    monkeypatch.setattr(waiting, "_switches", lambda: looks.append(None))
    pauses = waiting.Pauses(1.0, 0.25)
    for waited in (0.1, 0.9, 1.1):
        pauses.pause(waited)
    assert (len(looks), slept) == (4, [0.25])


def test_the_longer_a_rank_has_waited_the_longer_it_sleeps(slept: list[float]) -> None:
    pauses = waiting.Pauses(0.0, 20e-6, 0.01)
    for waited in (1e-4, 1e-2, 1e-1, 100.0):
        pauses.pause(waited)
    assert slept == pytest.approx([20e-6, 1e-4, 5e-4, 5e-4])


@pytest.mark.parametrize(
    ("looks", "used", "messages", "slow", "moved"),
    [
        (1500, 2e-6, 1, 1.0, False),
        (1500, 6e-6, 1, 1.0, False),  # beside programs that fill the caches
        (5, 40e-6, 1, 1.0, False),  # on a machine that is so busy that some looks take long
        (1500, 20e-6, 100, 1.0, False),
        (1500, 20e-6, 1, 1.0, True),  # on a machine with fast memory
        (1500, 115e-6, 1, 1.0, True),
        (12, 41e-6, 1, 1.0, True),  # a part with each of few looks
        (1000, 28e-6, 1, 2.4, False),  # on a slow machine, beside other programs
        (1000, 28e-6, 1, 0.5, True),  # on a fast one
        (1000, 31e-6, 1, 9.0, True),
        (12, 41e-6, 1, 9.0, True),
    ],
)
def test_processor_time_of_looks_tells_whether_messages_move(
    looks: int, used: float, messages: int, slow: float, moved: bool
) -> None:
    movement = waiting.Movement(0.0, messages, lambda: slow)
    for window in (1, 2):
        seen = [movement.seen(used, 0.25 * (window - 1 + look / looks)) for look in range(1, looks + 1)]
        assert seen == [False] * (looks - 1) + [moved]


def test_movement_is_judged_by_the_slower_of_two_windows() -> None:
    now = iter([3.0, 1.0, 1.0])
    movement = waiting.Movement(0.0, 1, lambda: next(now))
    ends = [[movement.seen(20e-6, 0.25 * (window + look / 80)) for look in range(1, 81)][-1] for window in range(3)]
    assert ends == [False, False, True]
    assert waiting.slowness() > 0
