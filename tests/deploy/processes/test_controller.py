"""The controller's heartbeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from xpulab.deploy.processes import controller


def test_heartbeats_become_rare_after_the_last_engine_has_registered() -> None:
    arriving = [set[str](), {"0"}, {"0", "1"}]
    monitor: Any = SimpleNamespace(hearts=set(), period=100, caller=SimpleNamespace(callback_time=100))

    def beat(monitor: Any) -> None:
        if arriving:
            monitor.hearts = arriving.pop(0)

    slower = controller._ever_slower(beat)
    periods = []
    for _ in range(60):
        slower(monitor)
        periods.append(monitor.caller.callback_time)
    assert periods[:3] == [100, 100, 100]
    assert periods[2:] == sorted(periods[2:])
    assert periods[3] > 100
    assert periods[-1] == controller._LONGEST

    arriving = [{"0", "1", "2"}]
    slower(monitor)
    assert monitor.caller.callback_time == 100
