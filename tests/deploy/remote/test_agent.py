"""The program that looks after the engines of another host: its messages, and the folder that it makes and removes."""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xpulab.deploy.remote.agent import _Agent
from xpulab.deploy.remote.messages import FromAgent, FromRelay, Lines
from xpulab.sharing.board import ITERATION, ITERATIONS, Board
from xpulab.sharing.folder import BOARD, HOST, write_private


def test_messages_are_whole_lines_of_json() -> None:
    reading, writing = os.pipe()
    lines: Lines[dict[str, int]] = Lines(reading)
    os.write(writing, b'Welcome to node1\n{"a": 1}\n[2]\n{"b"')
    assert lines.read() == [{"a": 1}]
    os.write(writing, b": 2}\n")
    assert lines.read() == [{"b": 2}]
    assert lines.open
    os.close(writing)
    assert lines.read() == []
    assert not lines.open
    os.close(reading)


@pytest.fixture
def folder(tmp_path: Path, environment: Callable[..., None]) -> Path:
    """A folder for the folders of clusters, which no program has made yet."""
    environment(SSH_CONNECTION="127.0.0.1 50000 127.0.0.1 22")
    return tmp_path / "runtime"


def agent_in(folder: Path) -> Any:
    return _Agent({"folder": str(folder), "silence": 30.0, "mpi": "intel", "munge": ""})


def test_folders_are_private_and_removed_but_for_those_of_other_clusters(folder: Path) -> None:
    one, other = (agent_in(folder / name) for name in ("one", "other"))
    for path, mode in ((folder / "one", 0o700), (folder / "one" / HOST, 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert json.loads((folder / "one" / HOST).read_text()) == {
        "owner": os.getpid(),
        "environment": {"GLOO_SOCKET_IFNAME": "lo", "FI_TCP_IFACE": "lo"},
    }
    with pytest.raises(FileExistsError):  # it could be another user's
        agent_in(folder / "one")
    one.end()
    assert [path.name for path in folder.iterdir()] == ["other"]
    other.end()
    assert folder.exists()  # the first one made it, and could not remove it


def test_requests_and_failures_of_other_hosts_reach_the_board_even_if_it_is_made_later(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = agent_in(folder / "one")
    told: FromRelay = {
        "cancelled": [7, 9],
        "failed": [5, 6, 0],
        "ended": [3, 3, 3],
        "waits": [6.5, 1.0, 0.0],
        "waits_in": ["line 2 (recv)", "line 9", ""],
        "met": [0, 1, 0],
    }
    agent.take(told)
    board = Board.create(3)
    board.ranks["pid"][1], board.ranks["failed"][1] = os.getpid(), 4
    write_private(folder / "one" / BOARD, json.dumps({"path": board.path, "ranks": [1]}))
    agent.look()
    agent.take({})
    assert board.cancelled(7)
    assert board.cancelled(9)
    assert board.ranks["failed"].tolist() == [5, 4, 0]  # rank 1 is of this host, and knows better
    assert board.ranks["ended"].tolist() == [3, 0, 3]
    assert board.ranks["waits"].tolist() == [6.5, 0, 0]
    assert board.ranks["waits_in"].tolist() == [b"line 2 (recv)", b"", b""]
    assert board.ranks["met"].tolist() == [0, 0, 0]
    agent.take({**told, "cancelled": [], "failed": [5, 6, 8]})
    assert not board.cancelled(7)
    assert board.failed(8)
    assert '"ranks": {"1": ' in capsys.readouterr().out
    agent.end()


@pytest.mark.slow
def test_what_is_new_in_the_rings_comes_in_bounded_messages_twice_a_second(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = agent_in(folder / "one")
    board = Board.create(9)
    board.ranks["pid"][1:] = os.getpid()
    write_private(folder / "one" / BOARD, json.dumps({"path": board.path, "ranks": list(range(1, 9))}))
    agent.take({"clock": time.perf_counter() - 7.0})

    def note(ranks: range, *iterations: int) -> None:
        for rank in ranks:
            for iteration in iterations:
                board.note(rank, 5, 99, 1, iteration, 1.0 * iteration, *[0.0] * 7)

    def told(n: int) -> list[FromAgent]:
        """The next messages with iterations."""
        found: list[FromAgent] = []
        end = time.monotonic() + 120
        while len(found) < n and time.monotonic() < end:
            agent.look()
            lines = capsys.readouterr().out.splitlines()
            found += [each for line in lines if "iterations" in (each := json.loads(line))]
            time.sleep(0.01)
        return found

    note(range(1, 3), 1, 2, 3)
    (first,) = told(1)
    begun = time.monotonic()
    assert {rank: begin for rank, (begin, _) in first["iterations"].items()} == {"1": 0, "2": 0}
    assert first["late"] == pytest.approx(7.0, abs=0.1)
    note(range(1, 9), *range(4, 2000))
    second, third, last = told(3)
    assert time.monotonic() - begun >= 1.4
    first_of, text = second["iterations"]["8"]
    entries = np.frombuffer(base64.b64decode(text), ITERATION)
    assert (entries["iteration"][0], first_of) == (2000 - ITERATIONS, 1996 - ITERATIONS)
    assert len(entries) == 4 * ITERATIONS // 8
    assert len(second["iterations"]) == 8
    assert third["iterations"]["8"][0] == first_of + len(entries)
    rest = np.frombuffer(base64.b64decode(last["iterations"]["8"][1]), ITERATION)
    assert rest["iteration"].tolist() == [1999]
    agent.end()
