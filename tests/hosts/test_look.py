"""What is found out about hosts before a start, and what a user reads about hosts that are not ready."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import Host, Network

import xpulab
from xpulab.deploy.network.addresses import addresses
from xpulab.deploy.remote import describe_host
from xpulab.deploy.remote.hosts import look
from xpulab.exceptions import ClusterStartError, UsageError
from xpulab.libraries import oneapi


def test_hosts_are_ready_and_what_to_type_is_said(hosts: Network, shell: Any) -> None:
    found = shell.run_line_magic("xpu_cluster", f"hosts node1,{hosts.address},node2:3 --ssh-config {hosts.ssh_config}")
    assert found.ready, str(found)
    assert [host.name for host in found.hosts] == [hosts.address, "node1", "node2"]  # this host comes first
    assert [host.here for host in found.hosts] == [True, False, False]
    assert [host.address for host in found.hosts] == ["", *(host.address for host in hosts.hosts)]
    assert [host.probe.host for host in found.hosts[1:]] == ["node1", "node2"]
    assert f"%xpu_cluster start --hosts {hosts.address},node1,node2:3 --ssh-config {hosts.ssh_config}" in str(found)
    assert "node2" in found._repr_html_()


def test_the_plan_shows_each_rank_on_its_host(hosts: Network) -> None:
    cluster = xpulab.XPUCluster(3, hosts=[hosts.address, "node1"], ssh_config=hosts.ssh_config)
    answer = cluster.plan(show=True)
    assert [rank.address for rank in answer.ranks] == ["", "", "node1"]
    assert answer.ranks[2].host == "node1"
    assert f"-ppn 1 -hosts {hosts.address},{hosts.address},node1 " in answer.command
    assert all(host.processes() == {} for host in hosts.hosts)


def test_hosts_that_are_not_ready_say_what_to_type(
    hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path(hosts.ssh_config).read_text()
    config = tmp_path / "config"

    def problem(text: str, host: str = "node1") -> str:
        config.write_text(text)
        found = look(addresses(host, None), config)
        assert not found.ready
        with pytest.raises(ClusterStartError, match="look again: %xpu_cluster hosts"):
            found.require_ready()
        return found.hosts[0].problem

    (tmp_path / "known").touch()
    unknown = f"UserKnownHostsFile {tmp_path / 'known'}\nGlobalKnownHostsFile /dev/null\n"
    assert "its key is not known" in problem(unknown + whole)
    assert "ssh-copy-id" in problem(f"IdentityFile {tmp_path / 'none'}\n" + whole.replace("IdentityFile", "#"))
    assert "no sshd answers" in problem("Port 9\n" + whole)
    assert "its name is not known" in problem(whole, "no-such-host.invalid")
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert "it has no /no/such/python" in problem(whole)
    monkeypatch.setattr("sys.executable", "/etc/hosts")  # ssh says "Permission denied", too, of a key
    words = problem(whole)
    assert words.startswith("its /etc/hosts cannot be executed (")
    assert "Permission denied" in words
    assert words.endswith(f"type: ssh -F {config} node1 ls -l /etc/hosts")
    monkeypatch.setattr("xpulab.deploy.remote.asking._TIMEOUT", 0.01)
    assert "did not answer within" in problem(whole)


@contextlib.contextmanager
def replaced(host: Host, path: Path) -> Iterator[None]:
    """A context in which a file of a host is empty."""
    host.run("mount", "--bind", "/dev/null", str(path.resolve()))
    try:
        yield
    finally:
        host.run("umount", str(path.resolve()))


def test_another_source_under_the_same_version_is_not_ready(hosts: Network) -> None:
    with replaced(hosts.hosts[0], Path(xpulab.__file__).parent / "demo.py"):
        found = look(addresses("node1", None), hosts.ssh_config)
    assert not found.ready
    assert re.search(
        rf"source of xpulab with the digest \w{{12}} \(here {describe_host.digest()}\)", found.hosts[0].problem
    )
    assert "install the versions of this host there" in str(found)


def test_a_host_without_a_device_is_not_ready(hosts: Network) -> None:
    with replaced(hosts.hosts[0], oneapi.library_folder() / "libintelocl.so"):
        found = look(addresses(f"{hosts.address},node1", None), hosts.ssh_config)
    assert [bool(host.problem) for host in found.hosts] == [False, True]
    assert "no SYCL device was found on node1" in found.hosts[1].problem
    assert "type: xpulab doctor" in str(found)
    with pytest.raises(ClusterStartError, match="no SYCL device was found on node1"):
        found.require_ready()


def test_other_versions_are_refused_before_anything_starts(hosts: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = describe_host.versions() | {"xpulab": "0.0.1"}
    monkeypatch.setattr(describe_host, "versions", lambda *_: mine)
    cluster = xpulab.XPUCluster(hosts=f"{hosts.address},node1", ssh_config=hosts.ssh_config)
    match = rf"node1: it has xpulab {xpulab.__version__} \(here 0.0.1\); install"
    with pytest.raises(ClusterStartError, match=match):
        cluster.start()
    mine["digest"] = "1"  # that of another version is another one
    with pytest.raises(ClusterStartError, match=match):
        cluster.plan()


def test_a_host_with_two_names_and_a_missing_configuration_are_refused(hosts: Network) -> None:
    with pytest.raises(UsageError, match="names of the same host"):
        look(addresses(f"localhost,{hosts.address}", None))
    with pytest.raises(UsageError, match="ssh-config"):
        look(addresses("node1", None), "/no/such/file")
