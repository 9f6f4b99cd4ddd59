"""Notebook 09 on two hosts: its cells with their outputs, and the solutions of its exercises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from calls_of_hosts import require_clean
from exercises import solutions_of
from machines import Network

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).resolve().parents[1]
NOTEBOOK = TESTS.parent / "notebooks" / "09_two_hosts.ipynb"


def test_the_notebook_about_two_hosts_runs(hosts: Network) -> None:
    """ssh knows node1 in that run, as it knows the hosts of a reader; `conftest` adds the solutions of exercises."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    number = sum(cell.cell_type == "code" for cell in notebook.cells) + len(solutions_of(notebook)) + 1  # statements
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    path = os.pathsep.join([str(TESTS), str(TESTS / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ["-p", "conftest", "-p", "no:cacheprovider", "--color=no"]
    words = hosts.known_to(sys.executable, "-m", "pytest", *options, str(NOTEBOOK))
    environment = {**outer, "PYTHONPATH": path, "XPULAB_NOTEBOOK_HOSTS": "1"}
    done = subprocess.run(words, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" {number} passed" in done.stdout
    require_clean(hosts.hosts[0])
