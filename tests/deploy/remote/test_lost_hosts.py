"""What is said and removed after a relay, an agent or a host was lost, without any cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from descriptions import described

from xpulab.deploy.launchers.ssh import CONNECT, HURRIED, Ssh
from xpulab.deploy.options import StartOptions
from xpulab.deploy.processes.processes import RELAY, Processes
from xpulab.deploy.processes.record import Record, identity
from xpulab.deploy.remote.messages import LOST, Lost, Start
from xpulab.deploy.remote.relay import _Link
from xpulab.deploy.tasks.conversation import Conversation
from xpulab.deploy.tasks.engines import Engines
from xpulab.exceptions import ClusterStartError, EngineLostError
from xpulab.sharing.program import program


@pytest.fixture
def relayed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Processes, subprocess.Popen[bytes]]]:
    """The processes of a cluster of which only the relay runs, and the process in its place."""
    settings = {"mpi": getattr(request, "param", "intel")}
    processes = Processes(Record(str(tmp_path), "test", identity(os.getpid()), "0", settings=settings).write())
    with subprocess.Popen(["sleep", "100"]) as relay:
        processes._watched[RELAY] = (relay.pid, os.pidfd_open(relay.pid))
        yield processes, relay
        relay.kill()
    processes.leave()


def logged(processes: Processes, text: str) -> None:
    """Write what mpiexec has said."""
    (processes.folder / "log").mkdir()
    (processes.folder / "log" / "mpiexec.log").write_text(text)


@pytest.mark.slow
def test_a_relay_that_was_killed_is_named(relayed: tuple[Processes, subprocess.Popen[bytes]]) -> None:
    processes, relay = relayed
    assert processes.lost_on_hosts() is None
    relay.kill()
    assert processes.lost_on_hosts() == Lost("the relay, which connects the hosts, ended")


def test_what_a_relay_has_lost_is_said_after_its_end(relayed: tuple[Processes, subprocess.Popen[bytes]]) -> None:
    processes, relay = relayed
    (processes.folder / LOST).write_text('{"why": "", "ranks": [2]}')
    relay.kill()
    assert processes.lost_on_hosts() == Lost(ranks=(2,))


class _Here:
    """Starts a program on this host, in place of the agent, which writes its messages into a new file."""

    def __init__(self, folder: Path, then: str) -> None:
        self.folder, self.then, self.number = folder, then, 0

    def command(self, words: Sequence[str]) -> list[str]:
        assert list(words) == program("xpulab.deploy.remote.agent")
        self.number += 1
        return ["sh", "-c", f"head -n 1 > {self.folder}/{self.number}; echo '{{}}'; {self.then}"]

    def message(self, number: int) -> Any:
        path, deadline = self.folder / str(number), time.monotonic() + 120
        while not (path.exists() and path.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return json.loads(path.read_text())


def _begun(here: _Here, start: Start) -> _Link:
    link = _Link("node1", here, start)
    link.process.wait(120)
    link.lines.read()
    assert not link.lines.open
    return link


def test_another_agent_removes_what_one_that_was_killed_has_left(tmp_path: Path) -> None:
    here = _Here(tmp_path, "")
    link = _begun(here, {"folder": "/tmp/one"})
    link.heard = time.monotonic()
    link.end(silent=False)
    assert here.message(2) == {"folder": "/tmp/one", "remove": True}
    with link.process:
        pass


def test_an_agent_that_has_never_said_anything_is_not_replaced(tmp_path: Path) -> None:
    """It has made no folder: the folder there, if any, may be that of this host, or another user's."""
    here = _Here(tmp_path, "")
    link = _begun(here, {"folder": "/tmp/one"})
    link.end(silent=False)
    assert here.number == 1
    with link.process:
        pass


def test_the_agent_of_a_silent_host_is_not_waited_for(tmp_path: Path) -> None:
    here = _Here(tmp_path, "exec sleep 100")
    link = _Link("node1", here, {})
    assert here.message(1) == {}
    with link.process:
        link.end(silent=True)
    assert link.process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_an_agent_that_is_to_remove_ends_the_engines_of_the_cluster_only(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    engines = []
    for folder in (mine, other):
        (folder / "security").mkdir(parents=True)
        environment = {**os.environ, "XPULAB_ENGINE": json.dumps({"folder": str(folder)})}
        engines.append(subprocess.Popen(["sleep", "100"], env=environment))
    message = json.dumps({"folder": str(mine), "remove": True}) + "\n"
    words = program("xpulab.deploy.remote.agent")
    try:
        with subprocess.Popen(words, stdin=subprocess.PIPE, text=True) as agent:
            assert agent.stdin is not None
            agent.stdin.write(message)
            agent.stdin.close()
            assert engines[0].wait(120) == -signal.SIGKILL  # the agent waits for its end, for which this process waits
        assert agent.returncode == 0
        assert engines[1].poll() is None
        assert not mine.exists()
        assert other.exists()
    finally:
        for engine in engines:
            engine.kill()
            engine.wait()


@pytest.mark.slow
def test_an_agent_that_cannot_write_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "kept").mkdir()
    words = [sys.executable, "-c", _FULL]
    for folder in (tmp_path / "file" / "one", tmp_path / "kept"):
        about = {"folder": str(folder), "silence": 1, "mpi": "intel", "munge": "", "limit": 10}
        found = subprocess.run(words, input=json.dumps(about) + "\n", text=True, capture_output=True, timeout=240)
        said = json.loads(found.stdout)["lost"]
        assert said.startswith(f"the files of the cluster cannot be written into {folder} there: ")
        assert "File exists" in said
    folder = tmp_path / "new" / "one"
    about["folder"] = str(folder)
    found = subprocess.run(words, input=json.dumps(about) + "\n", text=True, capture_output=True, timeout=240)
    assert "No space left on device" in json.loads(found.stdout)["lost"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kept"]


#: A program whose disk is full as soon as it has made folders.
_FULL = """
import os, runpy
opened = os.open
def full(path, *given, **named):
    if str(path).endswith(".part"):
        raise OSError(28, "No space left on device", str(path))
    return opened(path, *given, **named)
os.open = full
runpy.run_module("xpulab.deploy.remote.agent", run_name="__main__")
"""


class _Lost:
    """The life of engines that cannot be started again."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def start(self) -> object:
        assert self._engines.replaces
        raise ClusterStartError("node1: it cannot be reached")

    def logs(self, lines: int = 40) -> str:
        return ""

    def close(self, on_purpose: bool, keep_job: bool = False) -> None:
        pass

    def abandon(self) -> None:
        pass

    def to_go_on(self, over: bool = False) -> str:
        return "%xpu_cluster start"


def test_an_error_of_new_engines_begins_with_what_was_lost() -> None:
    engines = Engines(StartOptions())
    engines.life = _Lost(engines)
    with pytest.raises(ClusterStartError) as error:
        Conversation(engines).start_again(EngineLostError("words\nlogs", "nothing was heard of node1 for 15 s"))
    assert str(error.value) == (
        "nothing was heard of node1 for 15 s.\nNew engines could not be started: node1: it cannot be reached"
    )
    assert not engines.replaces


def test_ssh_waits_less_for_a_host_while_a_call_waits() -> None:
    assert f"-oConnectTimeout={HURRIED}" in Ssh("node1", None, HURRIED).command(["true"])
    assert f"-oConnectTimeout={CONNECT}" in Ssh("node1").command(["true"])
    assert HURRIED < CONNECT


@pytest.mark.slow
@pytest.mark.parametrize("relayed", ["openmpi"], indirect=True)
@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "node1 noticed that process rank 2 with PID 332 on node node1 exited on signal 9 (Killed).",
            "rank 2 (pid 332",
        ),
        ("nothing of use", "rank 0 (pid 330"),
    ],
)
def test_the_engine_that_mpiexec_names_was_lost_first(
    relayed: tuple[Processes, subprocess.Popen[bytes]], log: str, said: str
) -> None:
    """The relay may hear of an engine of this host, which Open MPI has ended, before it hears of another host's."""
    processes, relay = relayed
    logged(processes, f"mpirun {log}")
    (processes.folder / LOST).write_text('{"why": "", "ranks": [0]}')
    relay.kill()
    relay.wait()
    engines = Engines(StartOptions())
    engines.life, engines.processes = _Lost(engines), processes
    engines.facts = [described(rank, pid=330 + rank, host="there", here=False) for rank in range(3)]
    with pytest.raises(EngineLostError) as lost:
        engines.require_alive(processes)
    assert lost.value.reason.startswith(said)


@pytest.mark.parametrize(
    ("codes", "said"),
    [("9,9", r"rank 1 \(pid \d+ on .*\) ended"), ("1792,9", r"rank 0 .* ended: exited with status 7")],
)
def test_the_engine_whose_end_was_seen_first_is_named_although_mpiexec_names_one_that_it_has_killed(
    tmp_path: Path, codes: str, said: str
) -> None:
    """One that has ended by itself, such as in MPI_Abort, may end after those that mpiexec kills for this."""
    processes = Processes(Record(str(tmp_path), "test", identity(os.getpid()), "0", settings={"mpi": "intel"}).write())
    first = subprocess.Popen(["true"])
    first.wait()
    processes.watch([first.pid])
    logged(processes, f"=   RANK 0 PID 330 RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)\nExit codes: [vm] {codes}\n")
    engines = Engines(StartOptions())
    engines.life, engines.processes = _Lost(engines), processes
    engines.facts = [described(0, pid=330), described(1, pid=first.pid)]
    with pytest.raises(EngineLostError) as lost:
        engines.require_alive(processes)
    assert re.fullmatch(said, lost.value.reason)
    processes.leave()


@pytest.mark.parametrize(("log", "killed"), [("", True), ("[mpiexec@vm] Exit codes: [vm:0] 9,768", False)])
def test_an_mpiexec_that_was_killed_says_nothing_of_ranks(
    relayed: tuple[Processes, subprocess.Popen[bytes]], log: str, killed: bool
) -> None:
    processes, _ = relayed
    logged(processes, log)
    assert not processes.mpiexec_was_killed()  # this process has not started one
    with subprocess.Popen(["sleep", "100"]) as mpiexec:
        processes._watched["mpiexec"] = (mpiexec.pid, os.pidfd_open(mpiexec.pid))
        assert not processes.mpiexec_was_killed()
        mpiexec.kill()
        mpiexec.wait()
        assert processes.mpiexec_was_killed() is killed
    assert processes._ends_of_ranks() == ("" if killed else "rank 1 exited with status 3")


def test_logs_that_another_thread_removes_are_left_out(relayed: tuple[Processes, subprocess.Popen[bytes]]) -> None:
    """A thread that waited for lost engines reads them while another one starts new engines."""
    processes, _ = relayed
    logged(processes, "the last words")
    (processes.folder / "log" / "rank-0.log").symlink_to("removed")
    assert processes.logs() == "--- mpiexec\nthe last words"
