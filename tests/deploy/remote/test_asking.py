"""Why a host does not answer: what ssh says is told from what the host's shell and Python say, in the same words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xpulab.deploy.launchers.ssh import Ssh
from xpulab.deploy.remote.asking import Asked


@pytest.mark.parametrize(
    ("status", "said", "problem"),
    [
        (255, "me@node1: Permission denied (publickey).", "ssh has no key for it"),
        (126, "bash: line 1: /p/python: Permission denied", r"its .* cannot be executed \(bash: .*Permission denied\)"),
        (126, "sh: 1: exec: /p/python: Permission denied", "its .* cannot be executed"),
        (126, "bash: /p/python: cannot execute binary file: Exec format error", "its .* cannot be executed"),
        (1, "Traceback\nPermissionError: [Errno 13] Permission denied: '/p/x.py'", "it said: Traceback"),
        (1, "Traceback\nConnectionRefusedError: [Errno 111] Connection refused", "it said: Traceback"),
        (1, "Traceback\nTimeoutError: timed out", "it said: Traceback"),
        (255, "ssh: connect to host node1 port 22: Connection refused", "no sshd answers there"),
        (255, "ssh: connect to host node1 port 22: Connection timed out", "it cannot be reached"),
        (127, "bash: line 1: /p/python: No such file or directory", "it has no "),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: '/x'", "it said: FileNotFoundError"),
        (1, "/p/python: No module named xpulab", "xpulab is not installed there"),
        (0, "", "it said: nothing"),
    ],
)
def test_words_of_ssh_and_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
    environment: Callable[..., None],
    tmp_path: Path,
    status: int,
    said: str,
    problem: str,
) -> None:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$SAID" >&2\nexit {status}\n')
    program.chmod(0o755)
    environment(SAID=said)
    monkeypatch.setattr(Ssh, "command", lambda self, words: [str(program)])
    asked = Asked("node1", None, None, ["intel", "", ""])
    assert asked.answer() == {}
    asked.end()
    assert re.search(problem, asked.problem), asked.problem


def test_a_host_that_answers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "echo 'a start file speaks'; echo '{\"first\": 1}'; read line; echo \"$line\""
    monkeypatch.setattr(Ssh, "command", lambda self, words: ["sh", "-c", program])
    asked = Asked("node1", None, None, [])
    assert asked.answer() == {"first": 1}
    asked.say({"source": "node1", "doors": []})
    assert asked.answer() == {"source": "node1", "doors": []}
    asked.end()
    assert not asked.problem
