"""Several processes that call engines of this host at once, also some that are killed while they call."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import xpulab
from xpulab import cli
from xpulab.exceptions import XpulabError

pytestmark = pytest.mark.cluster

CLIENT = """
import sys
import xpulab

with xpulab.XPUCluster.attach(sys.argv[1]) as cluster:
    print("calls", flush=True)
    for number in range(int(sys.argv[2])):
        assert cluster.run(lambda task, n: (n, task.comm.allgather(task.comm.rank), bytes(n)), number) == [
            (number, [0, 1], bytes(number))
        ] * 2
print("done", flush=True)
"""


def client(cluster: xpulab.XPUCluster, calls: int) -> subprocess.Popen[str]:
    assert cluster.engines.processes is not None
    words = [sys.executable, "-c", CLIENT, cluster.engines.processes.record.name, str(calls)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "calls\n"
    return process


def call(cluster: xpulab.XPUCluster, calls: int, wrong: list[Any], content: bytes = b"") -> None:
    for number in range(calls):
        found = cluster.run(lambda task, n, content: (n, task.comm.allgather(task.comm.rank), content), number, content)
        if found != [(number, [0, 1], content)] * 2:
            wrong.append(found)


def test_processes_and_threads_that_call_at_once_get_their_own_replies(pair: xpulab.XPUCluster) -> None:
    others = [client(pair, 20) for _ in range(2)]
    wrong: list[Any] = []
    threads = [threading.Thread(target=call, args=(pair, 20, wrong, bytes(length))) for length in (0, 3_000, 300_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in others:
        assert other.communicate()[0] == "done\n"
        assert other.returncode == 0
    assert not wrong
    folder = pair.engines.processes.folder  # type: ignore[union-attr]
    call(pair, 1, wrong)
    assert {each.name.split("-")[1] for each in Path(folder).glob("replies-*")} == {str(os.getpid())}


def test_a_process_that_is_killed_while_it_calls_leaves_engines_that_agree(pair: xpulab.XPUCluster) -> None:
    drawn, wrong = random.Random(0), list[Any]()
    for _ in range(4):
        other = client(pair, 1_000_000)
        time.sleep(drawn.uniform(0, 0.05))
        other.kill()
        other.communicate()
        call(pair, 5, wrong)
    assert not wrong


def test_only_the_user_can_ring(pair: xpulab.XPUCluster) -> None:
    call(pair, 1, [])
    folder = Path(pair.engines.processes.folder)  # type: ignore[union-attr]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    pipes = [each for each in folder.iterdir() if each.name.startswith(("bell", "replies"))]
    assert len(pipes) >= 4  # two bells, the lock, and the mailbox of this thread
    assert {stat.S_IMODE(each.stat().st_mode) for each in pipes} == {0o600}
    assert pair.engines.board.path.startswith("/proc/")  # type: ignore[union-attr]


def test_engines_that_wait_for_a_task_take_no_time_of_a_processor(pair: xpulab.XPUCluster) -> None:
    engines = [psutil.Process(fact.pid) for fact in pair.facts]
    call(pair, 1, [])
    before = [sum(engine.cpu_times()[:2]) for engine in engines]
    time.sleep(1.5)
    after = [sum(engine.cpu_times()[:2]) for engine in engines]
    assert sum(after) - sum(before) < 0.1 * len(engines) * 1.5  # a heartbeat twice a second is what they do


def test_a_thread_whose_first_call_comes_after_the_end_of_the_cluster_learns_of_it() -> None:
    """The folder in which a thread makes its mailbox is gone then."""
    name = f"gone{os.getpid()}"
    with xpulab.XPUCluster(1, detach=True, name=name) as cluster:
        call_here(cluster, said := list[str]())
        assert cli.main(["stop", name]) == 0
        thread = threading.Thread(target=call_here, args=(cluster, said))
        thread.start()
        thread.join()
    assert said[0] == "[0]"
    assert "another process has stopped or restarted the cluster" in said[1]


def call_here(cluster: xpulab.XPUCluster, said: list[str]) -> None:
    try:
        said.append(str(cluster.run(lambda task: task.comm.rank)))
    except XpulabError as error:
        said.append(repr(error))
