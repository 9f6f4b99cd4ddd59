"""The benchmark of PyTorch runs, and measures every system."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import xpulab

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_every_system_is_measured(pair: xpulab.XPUCluster, run_benchmark: Callable[..., str]) -> None:
    printed = run_benchmark("pytorch/torch_ddp.py", "--rounds", "1", "--steps", "1", cluster=pair)
    for system in ("a plain process", "torchrun, gloo, 2 processes", "xpulab, 1 engine", "xpulab, 2 engines"):
        (line,) = [line for line in printed.splitlines() if line.strip().startswith(f"{system}  ")]
        assert len(line.strip().removeprefix(system).split()) == (5 if "2 " in system else 4)
    assert "CNN parameters 1,199,882" in printed
