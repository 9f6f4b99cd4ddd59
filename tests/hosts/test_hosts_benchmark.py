"""The benchmark of rows between hosts runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from machines import Network

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "hosts.py"


@pytest.mark.cluster
def test_a_small_sample_of_rows_is_measured(
    hosts: Network, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--hosts", "node1", "--ssh-config", hosts.ssh_config, "--mebibytes", "8", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["hosts.py", *options])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    text = capsys.readouterr().out
    assert "8 MiB" in text
    assert "of MPI, new memory" in text
    assert [text.count(name) for name in ("scatter, an engine here", "scatter, helper rank", "gather, ")] == [1, 1, 2]
