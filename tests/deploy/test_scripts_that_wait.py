"""Plain scripts that share a cluster: a call says for whom it waits, also when that client was stopped or killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

import xpulab

pytestmark = pytest.mark.cluster

RUNS = """
import os, sys, time
import xpulab

def busy(task, told):
    while not os.path.exists(told):
        time.sleep(0.02)

with xpulab.XPUCluster.attach(sys.argv[1]) as cluster:
    cluster.run(busy, sys.argv[2])
"""
FITS = """
import sys
import numpy as np
import xpulab
from xpulab.cluster import KMeans

with xpulab.XPUCluster.attach(sys.argv[1]):
    X = np.random.default_rng(0).normal(size=(20_000, 8))
    print(KMeans(3, random_state=0, n_init=1).fit(X).labels_.shape)
"""
LISTS = """
import sys
import xpulab

with xpulab.XPUCluster.attach(sys.argv[1]) as cluster:
    cluster.handles()
    cluster.run(lambda task: print("done"))
"""


@pytest.mark.parametrize(
    ("source", "title", "number"), [(FITS, "KMeans.fit", signal.SIGKILL), (LISTS, "xpulab: handles", signal.SIGSTOP)]
)
def test_a_script_says_for_whom_it_waits(
    pair: xpulab.XPUCluster, tmp_path: Path, source: str, title: str, number: signal.Signals
) -> None:
    assert pair.engines.processes is not None
    assert pair.engines.board is not None
    name, ranks, told = pair.engines.processes.record.name, pair.engines.board.ranks, tmp_path / "told"

    def script(file: str, code: str, *arguments: str) -> tuple[subprocess.Popen[str], Callable[[], str]]:
        path, errors = tmp_path / file, tmp_path / f"{file}.err"
        path.write_text(code)
        with errors.open("w") as stream:
            command = [sys.executable, str(path), name, *arguments]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True), errors.read_text

    first, _ = script("first.py", RUNS, str(told))
    try:
        until(lambda: (ranks["client"] == first.pid).all() and ranks["task"].all())
        second, errors = script("second.py", source)
        waits = f"{title}: waiting for run of first.py, process {first.pid}\n"
        until(lambda: waits in errors())
        first.send_signal(number)
        if number == signal.SIGKILL:
            first.wait()
            gone = f"{waits}{title}: waiting for run of process {first.pid}, which has ended, while its call goes on"
            until(lambda: gone in errors())
        told.touch()
        assert second.communicate()[0]
        assert second.returncode == 0
        assert errors().count(title) == 1 + (number == signal.SIGKILL)  # each of the two is said once
    finally:
        told.touch()
        first.kill()
        first.communicate()
