"""`xpulab run` on two hosts: output marked by rank, the exit status of the first that fails, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machines import Network

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

RUN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from xpulab.cli import main; sys.exit(main(['run', *sys.argv[1:]]))"
)


def begun(hosts: Network, script: Path, source: str, *words: str) -> subprocess.Popen[str]:
    script.write_text(source)
    options = ["-n", "2", "--hosts", f"{hosts.address}:1,node1:1", "--ssh-config", hosts.ssh_config]
    command = [sys.executable, "-c", RUN, *options, str(script), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def require_clean(hosts: Network) -> None:
    deadline = time.monotonic() + 120
    while hosts.hosts[0].processes() or hosts.hosts[0].files():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_arguments_marks_and_collectives(hosts: Network, tmp_path: Path) -> None:
    source = """import platform, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(sys.argv[1:], __name__, platform.node(), comm.allreduce(comm.rank + 1))
print("to stderr", comm.rank, file=sys.stderr)
"""
    said, error = begun(hosts, tmp_path / "script.py", source, "-n", "two words").communicate(timeout=80)
    about = "['-n', 'two words'] __main__"
    lines = said.splitlines()
    assert f"[0] {about} {os.uname().nodename} 3" in lines, error
    assert f"[1] {about} node1 3" in lines
    assert "[1] to stderr 1" in lines
    require_clean(hosts)


@pytest.mark.parametrize(
    ("ending", "status"), [("raise ValueError('mine')", 1), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_status_of_the_first_that_fails(hosts: Network, tmp_path: Path, ending: str, status: int) -> None:
    source = f"""import os, sys, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    {ending}
time.sleep(600)
"""
    process = begun(hosts, tmp_path / "script.py", source)
    said, error = process.communicate(timeout=80)
    assert process.returncode == status, said + error
    assert ("[1] ValueError: mine" in said) == ("mine" in ending)
    assert ("rank 1 (pid" if status == 137 else f"rank 1 ended with status {status}, and so all") in error
    require_clean(hosts)


def test_ctrl_c_ends_all(hosts: Network, tmp_path: Path) -> None:
    process = begun(hosts, tmp_path / "script.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    assert process.stdout is not None
    while "begun" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    said, error = process.communicate(timeout=120)
    assert process.returncode == 130, said + error
    assert "Traceback" not in error
    require_clean(hosts)
