"""A small sample of `python -m tests.faults --rows 2000000`."""

from __future__ import annotations

import random

import pytest
from long_calls import pressed_calls

import xpulab


@pytest.mark.cluster
def test_calls_that_are_interrupted_at_any_moment_say_which_they_were(on_pair: xpulab.XPUCluster) -> None:
    done = list(pressed_calls(on_pair, 30_000, 8, random.Random(0)))
    assert [each for each in done if each.wrong] == []
    assert any(each.said for each in done)
