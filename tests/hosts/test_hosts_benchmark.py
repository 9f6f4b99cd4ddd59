"""The benchmark of rows between hosts runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from machines import Network


@pytest.mark.cluster
def test_a_small_sample_of_rows_is_measured(hosts: Network, run_benchmark: Callable[..., str]) -> None:
    options = ["--hosts", "node1", "--ssh-config", hosts.ssh_config, "--mebibytes", "8", "--repeats", "1"]
    text = run_benchmark("scaling/hosts.py", *options)
    assert "8 MiB" in text
    assert "of MPI, new memory" in text
    assert [text.count(name) for name in ("scatter, an engine here", "scatter, helper rank", "gather, ")] == [1, 1, 2]
