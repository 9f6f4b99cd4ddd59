"""The program that looks after the engines of another host: its messages, and the folder that it makes and removes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from xpulab.deploy.remote.agent import Lines, _Agent
from xpulab.sharing.board import Board
from xpulab.sharing.folder import BOARD, HOST, write_private


def test_messages_are_whole_lines_of_json() -> None:
    reading, writing = os.pipe()
    lines = Lines(reading)
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the folders of clusters, which no program has made yet."""
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 50000 127.0.0.1 22")
    return tmp_path / "runtime"


def test_folders_are_private_and_removed_but_for_those_of_other_clusters(folder: Path) -> None:
    one, other = (
        _Agent({"folder": str(folder / name), "silence": 30.0, "mpi": "intel", "munge": ""})
        for name in ("one", "other")
    )
    for path, mode in ((folder / "one", 0o700), (folder / "one" / HOST, 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert json.loads((folder / "one" / HOST).read_text()) == {
        "owner": os.getpid(),
        "environment": {"GLOO_SOCKET_IFNAME": "lo", "FI_TCP_IFACE": "lo"},
    }
    with pytest.raises(FileExistsError):  # it could be another user's
        _Agent({"folder": str(folder / "one"), "silence": 30.0, "mpi": "intel", "munge": ""})
    one.end()
    assert [path.name for path in folder.iterdir()] == ["other"]
    other.end()
    assert folder.exists()  # the first one made it, and could not remove it


def test_requests_and_failures_of_other_hosts_reach_the_board_even_if_it_is_made_later(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = _Agent({"folder": str(folder / "one"), "silence": 30.0, "mpi": "intel", "munge": ""})
    others = {"ended": [3, 3, 3], "waits": [6.5, 1.0, 0.0], "waits_in": ["line 2 (recv)", "line 9", ""]}
    agent.take({"cancelled": [7, 9], "failed": [5, 6, 0], **others})
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
    agent.take({"cancelled": [], "failed": [5, 6, 8], **others})
    assert not board.cancelled(7)
    assert board.failed(8)
    assert '"ranks": {"1": ' in capsys.readouterr().out
    agent.end()
