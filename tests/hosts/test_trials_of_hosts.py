"""A small sample of `python -m tests.faults --hosts 3`."""

from __future__ import annotations

import random

import pytest
from machines import Network
from trials_of_hosts import Bench

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120), pytest.mark.flaky(reruns=1)]

SAMPLE = [("agent", "fit")]  # test_look.py has a host of another version


def test_a_sample_of_the_trials(hosts: Network) -> None:
    bench, chance = Bench(hosts, phases=[phase for _, phase in SAMPLE]), random.Random(2)
    try:
        trials = [bench.trial(fault, phase, chance) for fault, phase in SAMPLE]
    finally:
        bench.close()
    assert [(trial.wrong, trial.outcome) for trial in trials] == [("", "recovered")]
