"""xpulab's own key for ssh: the command lines as text, and what a user reads where there is no terminal."""

from __future__ import annotations

import shlex
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xpulab.deploy.launchers import ssh
from xpulab.deploy.network.addresses import Address
from xpulab.deploy.remote.keys import HostKey, Keys, make_keys
from xpulab.exceptions import ClusterStartError, UsageError

BATCH = "-oBatchMode=yes -oConnectTimeout=10 -oServerAliveInterval=5"


@pytest.fixture
def own(tmp_path: Path, environment: Callable[..., None]) -> Path:
    """A user's empty folders for data and for the home."""
    environment(XDG_DATA_HOME=str(tmp_path / "data"), HOME=str(tmp_path))
    return tmp_path


def test_the_command_lines(own: Path) -> None:
    key = ssh.key_file()
    assert key == own / "data" / "xpulab" / "ssh" / "id_ed25519"
    assert shlex.join(ssh.making(key, "xpulab on a")) == f"ssh-keygen -q -t ed25519 -N '' -C 'xpulab on a' -f {key}"
    assert shlex.join(ssh.installing(key, "me@node1", None)) == f"ssh-copy-id -i {key}.pub me@node1"
    assert shlex.join(ssh.installing(key, "node1", "a b")) == f"ssh-copy-id -i {key}.pub -F 'a b' node1"
    for words in (ssh.making(key, ""), ssh.installing(key, "node1", None), ssh.options(None)):
        assert "StrictHostKeyChecking" not in shlex.join(words)


def test_ssh_uses_the_key_and_those_that_it_would_use_without(own: Path) -> None:
    assert shlex.join(ssh.options("config")) == f"-F config {BATCH}"
    (own / ".ssh").mkdir()
    (own / ".ssh" / "id_rsa").touch()
    assert shlex.join(ssh.options("config")) == f"-F config {BATCH}"
    key = ssh.key_file()
    key.parent.mkdir(parents=True)
    key.touch()
    assert shlex.join(ssh.options("config")) == f"-F config {BATCH} -i {key} -i {own}/.ssh/id_rsa"


def test_a_folder_with_a_percent_sign_is_none_of_sshs_tokens(own: Path, environment: Callable[..., None]) -> None:
    environment(XDG_DATA_HOME=str(own / "100%h"))
    key = ssh.key_file()
    key.parent.mkdir(parents=True)
    key.touch()
    assert ssh.options(None)[-1] == str(key).replace("%h", "%%h")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen not found")
def test_the_key_is_private_and_made_once(own: Path) -> None:
    first, again = make_keys([]), make_keys([])
    assert (first.made, again.made) == (True, False)
    key = Path(first.key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert key.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert first.key in str(first)
    assert "this call has made" in str(first)
    assert "this call has made" not in str(again)


def test_the_magic_makes_the_key_and_leaves_this_host_out(own: Path, shell: Any) -> None:
    found = shell.run_line_magic("xpu_cluster", "hosts --make-keys localhost")
    assert isinstance(found, Keys)
    assert found.hosts == ()
    assert Path(found.key).is_relative_to(own)


def test_without_a_terminal_the_result_says_what_to_type(own: Path) -> None:
    found = Keys("/key", False, (HostKey("a", "reached"), HostKey("b", "not reached", "ssh-copy-id -i k b", "<no>")))
    assert not found.ready
    assert "b: ssh said: <no>; type in a terminal: ssh-copy-id -i k b" in str(found)
    assert "&lt;no&gt;" in found._repr_html_()
    assert Keys("/key", True, (HostKey("a", "reached"),)).ready


def test_what_cannot_be_is_refused(own: Path, environment: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match="ssh-config"):
        make_keys([Address("node1")], "/no/such/file")
    (own / "data").touch()
    with pytest.raises(ClusterStartError, match=r"the folder .* for the key cannot be made"):
        make_keys([])
    (own / "data").unlink()
    environment(PATH="")
    with pytest.raises(ClusterStartError, match="this host has no ssh-keygen; type: sudo apt install openssh-client"):
        make_keys([])
