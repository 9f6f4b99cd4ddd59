"""By how much the clock of another host is ahead of this host's."""

from __future__ import annotations

import time

import pytest

from xpulab.deploy.remote.clocks import Lateness, ahead


def test_the_message_that_travelled_least_tells_how_late_messages_come() -> None:
    found = Lateness()
    assert found.least is None
    now = time.perf_counter()
    for travelled in (0.3, 0.01, 0.2):
        found.add(now - 1000.0 - travelled)  # of a clock that is a thousand seconds behind
    assert found.least == pytest.approx(1000.01, abs=0.005)
    for _ in range(20):  # the clocks drift, so that old messages do not count
        found.add(time.perf_counter() - 1001.0)
    assert found.least == pytest.approx(1001.0, abs=0.001)


@pytest.mark.parametrize("difference", [1e6, -1e6, 0.0])
def test_what_messages_travel_cancels_out(difference: float) -> None:
    there, here = difference + 0.02, -difference + 0.02
    assert ahead(there, here) == pytest.approx(difference, abs=1e-6)
    assert abs(ahead(there + 0.004, here) - difference) == pytest.approx(0.002)  # a longer way to there
