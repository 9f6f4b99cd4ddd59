"""The processes of a cluster, while they are started."""

from __future__ import annotations

import subprocess
import sys

import pytest
from leftovers import runs
from waiting import until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("begun", ["xpulab.deploy.processes.controller", "xpulab.engine"])
def test_an_interrupt_when_a_process_has_just_begun_leaves_nothing(begun: str) -> None:
    """The notebook lives on: the process ends although nothing has noted it yet."""
    code = f"""if True:
        import os, signal, subprocess, sys
        import ipyparallel.cluster.launcher, xpulab

        class Pressed(subprocess.Popen):
            def __init__(self, words, *arguments, **options):
                super().__init__(words, *arguments, **options)
                if {begun!r} in words:
                    print(self.pid, flush=True)
                    os.kill(os.getpid(), signal.SIGINT)

        ipyparallel.cluster.launcher.Popen = Pressed
        try:
            xpulab.XPUCluster(1).start()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as notebook:
        assert notebook.stdout is not None
        pid = int(notebook.stdout.readline())
        assert notebook.stdout.readline() == "interrupted\n"
        until(lambda: not runs(pid))
