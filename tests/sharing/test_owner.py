from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from xpulab.sharing import owner


def test_a_process_ends_with_its_owner() -> None:
    owner = subprocess.Popen(["sleep", "3600"])
    code = (
        "import sys, time; from xpulab.sharing import owner; owner.end_with(int(sys.argv[1]));"
        "print('up', flush=True); time.sleep(3600)"
    )
    served = subprocess.Popen([sys.executable, "-c", code, str(owner.pid)], stdout=subprocess.PIPE)
    assert served.stdout is not None
    served.stdout.readline()
    owner.kill()
    owner.wait()
    served.wait(120)
    served.stdout.close()


def test_a_process_whose_owner_has_ended_says_so() -> None:
    owner = subprocess.Popen(["true"])
    owner.wait()
    code = "import sys; from xpulab.sharing import owner; owner.end_with(int(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(owner.pid)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "has ended" in done.stderr


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_a_process_ends_if_its_owner_is_terminated_or_killed(signal: str) -> None:
    owner = subprocess.Popen(["sleep", "3600"])
    code = "import sys, time; from xpulab.sharing import owner; owner.end_with(int(sys.argv[1])); time.sleep(3600)"
    served = subprocess.Popen([sys.executable, "-c", code, str(owner.pid)])
    time.sleep(0.5)
    subprocess.run(["kill", f"-{signal}", str(owner.pid)], check=True)
    owner.wait()
    assert served.wait(120) != 0


@pytest.mark.parametrize("others", ["run", "ended"])
def test_a_detached_process_ends_with_the_processes_that_follow_its_owner(others: str) -> None:
    owner, other = subprocess.Popen(["sleep", "3600"]), subprocess.Popen(["sleep", "3600"])
    code = (
        "import sys, time; from xpulab.sharing import owner;"
        "owner.end_with(int(sys.argv[1]), lambda: [int(sys.argv[2])]); print('up', flush=True); time.sleep(3600)"
    )
    served = subprocess.Popen([sys.executable, "-c", code, str(owner.pid), str(other.pid)], stdout=subprocess.PIPE)
    assert served.stdout is not None
    served.stdout.readline()
    if others == "run":
        owner.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            served.wait(0.5)
    other.kill()
    other.wait()
    owner.kill()
    owner.wait()
    assert served.wait(120) != 0
    served.stdout.close()


def test_only_processes_of_a_detached_cluster_have_successors(tmp_path: Path) -> None:
    assert owner.successors(str(tmp_path)) == []
    for detached, pids in ((True, [7, 8]), (False, [])):
        record = {"detached": detached, "processes": {"controller": [7, 0.5], "mpiexec": [8, 0.5]}}
        (tmp_path / owner.RECORD).write_text(json.dumps(record))
        assert owner.successors(str(tmp_path)) == pids


def test_a_forked_process_ends_if_the_one_before_ends_while_it_begins() -> None:
    """By then its parent is another process, which does not end."""
    code = (
        "import os, signal, time; from xpulab.sharing import owner; me = os.getpid()\n"
        "def wait():\n    while os.getppid() == me: time.sleep(0.01)\n"
        "os.register_at_fork(after_in_child=wait); owner.end_forks_with_this(); child = os.fork()\n"
        "if child: print(child, flush=True); os.kill(me, signal.SIGKILL)\n"
        "time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
    until(lambda: not owner.lives(child))


def test_a_process_that_has_ended_is_watched_as_one_that_ends() -> None:
    running, ended = subprocess.Popen(["sleep", "3600"]), subprocess.Popen(["true"])
    ended.wait()
    descriptors = [owner.watched(each.pid) for each in (running, ended)]
    assert select.select(descriptors, [], [], 0)[0] == descriptors[1:]
    running.kill()
    running.wait()
    assert select.select(descriptors, [], [])[0] == descriptors
    for descriptor in descriptors:
        os.close(descriptor)
