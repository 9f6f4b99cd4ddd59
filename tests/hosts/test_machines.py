"""The hosts of the tests are hosts: they share no process, no memory, no file and no clock, and leave nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from leftovers import runs
from machines import Network, network, why_not


def _ssh(hosts: Network, name: str, command: str) -> str:
    words = ["ssh", "-F", hosts.ssh_config, name, command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_each_host_has_its_own_name_processes_memory_files_and_clock(hosts: Network) -> None:
    here = Path(tempfile.mkdtemp())
    try:
        for host in hosts.hosts:
            assert _ssh(hosts, host.name, "hostname") == host.name
            assert _ssh(hosts, host.name, "ls -A /dev/shm") == ""
            assert _ssh(hosts, host.name, f"test -e {here}; echo $?") == "1"
            assert len(_ssh(hosts, host.name, "ps -eo pid=").split()) < 10
            clock = _ssh(hosts, host.name, f"{sys.executable} -S -c 'import time; print(time.monotonic())'")
            assert abs(float(clock) - time.monotonic()) > 500_000
            assert host.processes() == {}
            assert host.files() == set()
    finally:
        here.rmdir()


def test_hosts_reach_each_other_until_a_link_is_cut(hosts: Network) -> None:
    one, two = hosts.hosts
    connect = f"timeout 2 bash -c '</dev/tcp/{two.address}/22' 2>/dev/null; echo $?"
    assert _ssh(hosts, one.name, connect) == "0"
    two.link("down")
    try:
        assert _ssh(hosts, one.name, connect) != "0"
    finally:
        two.link("up")


def test_nothing_is_left() -> None:
    if reason := why_not():
        pytest.skip(reason)

    def there() -> str:
        shown = (["ip", "-o", "link"], ["ip", "netns", "list"])
        return "".join(subprocess.run(words, check=True, capture_output=True, text=True).stdout for words in shown)

    other = subprocess.Popen(["sleep", "1000"])  # its pid names another network than that of the other tests
    try:
        before = set(Path(tempfile.gettempdir()).glob("xpulab-hosts-*"))
        with network(1, other.pid) as made:
            assert f"xpu{other.pid}a" in there()
            pid = made.hosts[0].pid
        assert f"xpu{other.pid}" not in there()
        assert not runs(pid)
        assert set(Path(tempfile.gettempdir()).glob("xpulab-hosts-*")) == before
    finally:
        other.kill()
        other.wait()
