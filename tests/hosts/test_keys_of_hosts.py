"""xpulab's own key for ssh, installed on a host with a user's password, by a real sshd."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import Network
from mpis import skip_or_fail

from xpulab.deploy.network.addresses import Address, addresses
from xpulab.deploy.remote.hosts import look
from xpulab.deploy.remote.keys import make_keys

PASSWORD = "a password of the tests"
PORT = 2222


@pytest.fixture
def config(hosts: Network, tmp_path: Path, environment: Callable[..., None]) -> Iterator[Path]:
    """A configuration without a key, for an sshd on node1 that takes passwords, and keys from a home of its own."""
    if shutil.which("openssl") is None or shutil.which("ssh-copy-id") is None:
        skip_or_fail("openssl or ssh-copy-id not found; type: apt-get install openssl openssh-client")
    shared, host = Path(hosts.ssh_config).parent, hosts.hosts[0]
    digest = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"], input=PASSWORD, check=True, capture_output=True, text=True
    ).stdout.strip()
    shadow, daemon, home = shared / "shadow", shared / "passwords.sshd", "/run/home"
    shadow.write_text(f"root:{digest}:19000:0:99999:7:::\nsshd:!:19000::::::\n")
    known = (shared / "node1.sshd").read_text()
    lines = [line for line in known.splitlines() if not line.startswith(("Auth", "Password", "PidFile"))]
    pid = shared / "passwords.pid"
    own = [
        f"PidFile {pid}",
        f"Port {PORT}",
        "PasswordAuthentication yes",
        f"AuthorizedKeysFile {home}/.ssh/authorized_keys",
    ]
    daemon.write_text("\n".join([*own, *lines]).replace("SetEnv ", f"SetEnv HOME={home} ") + "\n")
    host.run("mkdir", "-p", home)
    host.run("mount", "--bind", str(shadow), "/etc/shadow")
    sshd = shutil.which("sshd")
    assert sshd is not None
    host.run(sshd, "-f", str(daemon), "-E", str(shared / "passwords.log"))
    path = tmp_path / "config"
    path.write_text(
        f"Host node1 {host.address}\n    HostName {host.address}\n    HostKeyAlias node1\n    Port {PORT}\n"
        f"Host *\n    UserKnownHostsFile {shared / 'known'}\n    IdentityAgent none\n"
    )
    environment(XDG_DATA_HOME=str(tmp_path / "data"), HOME=str(tmp_path))
    yield path
    host.run("kill", pid.read_text().strip())
    host.run("umount", "/etc/shadow")
    host.run("rm", "-r", home)


def answering(tmp_path: Path, environment: Callable[..., None], word: str) -> Path:
    """Have ssh ask a program for the password. Returns the file with its questions."""
    asked, program = tmp_path / "asked", tmp_path / "askpass"
    program.write_text(f'#!/bin/sh\necho "$1" >> {shlex.quote(str(asked))}\necho {shlex.quote(word)}\n')
    program.chmod(0o700)
    environment(SSH_ASKPASS=str(program), SSH_ASKPASS_REQUIRE="force")
    return asked


def test_a_key_is_installed_with_one_password_and_then_used(
    hosts: Network, config: Path, tmp_path: Path, environment: Callable[..., None]
) -> None:
    names = addresses("node1", None)
    assert "hosts --make-keys node1" in look(names, config).hosts[0].problem
    told = make_keys(names, config, terminal=False)
    assert not told.ready
    assert told.hosts[0].to_type == f"ssh-copy-id -i {told.key}.pub -F {config} node1"
    assert "Permission denied" in told.hosts[0].said
    asked = answering(tmp_path, environment, PASSWORD)
    made = make_keys([Address("localhost"), *names], config, terminal=True)
    assert [(host.name, host.state) for host in made.hosts] == [("node1", "installed")], str(made)
    assert made.ready
    assert len(asked.read_text().splitlines()) == 1
    assert look(names, config).ready
    assert [host.state for host in make_keys(names, config, terminal=True).hosts] == ["reached"]
    assert len(asked.read_text().splitlines()) == 1


def test_a_host_with_another_key_gets_no_password(
    hosts: Network, config: Path, tmp_path: Path, environment: Callable[..., None]
) -> None:
    asked = answering(tmp_path, environment, PASSWORD)
    known = tmp_path / "known"
    other = (Path(hosts.ssh_config).parent / "node2.pub").read_text()
    known.write_text(f"node1 {other}")
    config.write_text(f"UserKnownHostsFile {known}\nGlobalKnownHostsFile /dev/null\n{config.read_text()}")
    found = make_keys(addresses("node1", None), config, terminal=True)
    assert not found.ready
    assert "Host key verification failed" in found.hosts[0].said
    assert not asked.exists()
