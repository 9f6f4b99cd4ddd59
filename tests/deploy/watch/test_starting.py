"""Ranks that end or are stopped while they start are found, on every host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import until

from xpulab.deploy.remote.agent import _Agent
from xpulab.deploy.watch.starting import Starting
from xpulab.sharing.board import Board
from xpulab.sharing.folder import BOARD, write_private


@contextlib.contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps, in place of a rank, and is killed at the end."""
    with subprocess.Popen(["sleep", "1000"]) as rank:
        try:
            yield rank
        finally:
            rank.kill()


def sent(number: signal.Signals, pid: int) -> None:
    """Send a signal, and wait until the process is in the state that follows."""
    states = {signal.SIGSTOP: "stopped", signal.SIGCONT: "sleeping", signal.SIGKILL: "zombie"}
    os.kill(pid, number)
    until(lambda: psutil.Process(pid).status() == states[number])


@pytest.mark.parametrize(
    ("number", "what", "silence"), [(signal.SIGSTOP, "was stopped", 5.0), (signal.SIGKILL, "ended", 0.25)]
)
def test_a_rank_that_is_stopped_or_ends_is_named(number: signal.Signals, what: str, silence: float) -> None:
    """A rank may be stopped for as long as it may be silent; a child of a rank may be a zombie for a moment."""
    with sleeping() as rank:
        starting = Starting(5.0)
        assert starting.lost(lambda: [rank.pid], now=100.0) == ""
        sent(number, rank.pid)
        assert starting.lost(lambda: [rank.pid], now=101.0) == ""
        if silence > 0.5:
            assert starting.lost(lambda: [rank.pid], now=101.0 + silence) == ""
        assert starting.lost(lambda: [rank.pid], now=101.6 + silence) == f"an engine (pid {rank.pid}) {what}"


def test_ranks_are_looked_at_twice_a_second() -> None:
    starting, looks = Starting(5.0), 0

    def pids() -> list[int]:
        nonlocal looks
        looks += 1
        return []

    looked = []
    for now in (100.0, 100.4, 100.6, 101.0, 101.2):
        starting.lost(pids, now=now)
        looked.append(looks)
    assert looked == [1, 1, 2, 2, 3]


def test_an_ssh_of_mpiexec_that_ends_is_not_called_an_engine(tmp_path: Path) -> None:
    (tmp_path / "ssh").symlink_to("/bin/sleep")
    with subprocess.Popen([str(tmp_path / "ssh"), "0"]) as ssh:
        starting = Starting(silence=2.0)
        until(lambda: psutil.Process(ssh.pid).status() == "zombie")
        assert starting.lost(lambda: [ssh.pid], now=100.0) == ""
        found = starting.lost(lambda: [ssh.pid], now=101.0)
        assert found == f"mpiexec's connection to another host (pid {ssh.pid}) ended"


def test_a_rank_that_is_stopped_for_a_moment_is_well() -> None:
    with sleeping() as rank:
        starting = Starting(silence=1.0)
        for begun, number in enumerate((signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP), 100):
            sent(number, rank.pid)
            assert starting.lost(lambda: [rank.pid], now=begun) == ""
            assert starting.lost(lambda: [rank.pid], now=begun + 0.6) == ""


@pytest.mark.slow
def test_the_agent_tells_of_a_rank_that_is_stopped_before_its_first_task(
    tmp_path: Path, environment: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    environment(SSH_CONNECTION="127.0.0.1 50000 127.0.0.1 22")
    folder = tmp_path / "one"
    agent = _Agent({"folder": str(folder), "silence": 0.1, "mpi": "intel", "munge": ""})
    words = [sys.executable, "-c", "import time; time.sleep(100)", "xpulab.engine"]
    variables = {**os.environ, "XPULAB_ENGINE": json.dumps({"folder": str(folder)})}

    def told() -> bool:
        agent.look()
        return f'"an engine (pid {rank.pid}) was stopped while the cluster was starting"' in capsys.readouterr().out

    with subprocess.Popen(words, env=variables) as rank:
        until(lambda: "xpulab.engine" in Path(f"/proc/{rank.pid}/cmdline").read_text())
        assert not told()
        rank.send_signal(signal.SIGSTOP)
        until(told)
        board = Board.create(1)
        board.ranks["pid"] = os.getpid()
        write_private(folder / BOARD, json.dumps({"path": board.path, "ranks": [0]}))
        until(told)
        board.ranks["name"] = b"describe"  # from now on, the notebook looks for signs of life
        agent.look()
        agent.look()
        assert agent.starting is None  # nobody looks at the states of ranks any more
        capsys.readouterr()
        assert not told()
        rank.kill()
    agent.end()
