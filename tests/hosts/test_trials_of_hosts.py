"""A small sample of `python -m tests.faults --hosts 3`."""

from __future__ import annotations

import random

import pytest
from machines import Network
from trials_of_hosts import Bench

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SAMPLE = [("agent", "fit"), ("version", "start")]


def test_a_sample_of_the_trials(hosts: Network) -> None:
    bench, chance = Bench(hosts, phases=[phase for _, phase in SAMPLE if phase != "start"]), random.Random(2)
    try:
        trials = [bench.trial(fault, phase, chance) for fault, phase in SAMPLE]
    finally:
        bench.close()
    assert [trial.wrong for trial in trials] == ["", ""]
    outcomes = [trial.outcome for trial in trials]
    assert outcomes == ["recovered", "told"]
