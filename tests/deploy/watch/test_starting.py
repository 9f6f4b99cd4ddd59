"""Ranks that end or are stopped while they start are found, on every host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from xpulab.deploy.remote.agent import _Agent
from xpulab.deploy.watch.starting import Starting
from xpulab.sharing.board import Board
from xpulab.sharing.folder import BOARD, write_private


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "what", "silence"), [(signal.SIGSTOP, "was stopped", 0.6), (signal.SIGKILL, "ended", 9.0)]
)
def test_a_rank_that_is_stopped_or_ends_is_named(number: signal.Signals, what: str, silence: float) -> None:
    with subprocess.Popen(["sleep", "100"]) as rank:
        starting, found = Starting(silence), ""
        assert starting.lost(lambda: [rank.pid]) == ""
        rank.send_signal(number)
        sent = time.monotonic()
        while not found:
            assert time.monotonic() < sent + 10
            found = starting.lost(lambda: [rank.pid])
        assert found == f"an engine (pid {rank.pid}) {what}"
        assert (time.monotonic() - sent > silence) == (number == signal.SIGSTOP)
        rank.kill()


@pytest.mark.slow
def test_an_ssh_of_mpiexec_that_ends_is_not_called_an_engine(tmp_path: Path) -> None:
    (tmp_path / "ssh").symlink_to("/bin/sleep")
    with subprocess.Popen([str(tmp_path / "ssh"), "0"]) as ssh:
        starting, found, begun = Starting(silence=2.0), "", time.monotonic()
        while not found:
            assert time.monotonic() < begun + 10
            found = starting.lost(lambda: [ssh.pid])
        assert found == f"mpiexec's connection to another host (pid {ssh.pid}) ended"


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_a_moment_is_well() -> None:
    with subprocess.Popen(["sleep", "100"]) as rank:
        starting = Starting(silence=1.0)
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGSTOP):
            rank.send_signal(number)
            until_ = time.monotonic() + 0.7
            while time.monotonic() < until_:
                assert starting.lost(lambda: [rank.pid]) == ""
                time.sleep(0.05)
        rank.kill()


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
        end = time.monotonic() + 1.2
        agent.look()
        agent.look()
        capsys.readouterr()
        while time.monotonic() < end:
            assert not told()
            time.sleep(0.05)
        rank.kill()
    agent.end()
