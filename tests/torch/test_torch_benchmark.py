"""The benchmark of PyTorch runs, and measures every system."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import xpulab

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_every_system_is_measured(
    pair: xpulab.XPUCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(n: int, **_: Any) -> Any:
        assert n == pair.size
        return contextlib.nullcontext(pair.activate())

    monkeypatch.setattr(xpulab, "XPUCluster", start)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["torch_ddp.py", "--rounds", "1", "--steps", "1"])
    runpy.run_path(str(BENCHMARKS / "torch_ddp.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for system in ("a plain process", "torchrun, gloo, 2 processes", "xpulab, 1 engine", "xpulab, 2 engines"):
        (line,) = [line for line in printed.splitlines() if line.strip().startswith(f"{system}  ")]
        assert len(line.strip().removeprefix(system).split()) == (5 if "2 " in system else 4)
    assert "CNN parameters 1,199,882" in printed
